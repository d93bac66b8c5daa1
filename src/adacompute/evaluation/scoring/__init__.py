"""Scoring: policies on held-out questions, compared with a baseline, an oracle and today."""
