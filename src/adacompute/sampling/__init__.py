"""Sampling: one question from the first decision to the answer, over any model."""
