"""API: the estimators and functions that `adacompute` exports."""
