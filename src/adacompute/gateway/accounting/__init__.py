"""Accounting: what every call costs, the caps on it, and the metrics of requests."""
