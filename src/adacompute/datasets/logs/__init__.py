"""Logs: samples from the logs of evaluation frameworks."""
