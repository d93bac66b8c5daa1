"""Graders: extract answers from completions and compare them with the gold answer."""
