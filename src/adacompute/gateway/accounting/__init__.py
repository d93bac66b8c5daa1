"""Accounting: what every call costs, the caps on it, and the metrics and traces of requests."""
