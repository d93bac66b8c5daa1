"""Evaluation: scores of policies on questions that they were not fitted to."""
