"""Evaluation: honest scores of policies on questions they have not seen."""
