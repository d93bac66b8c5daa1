"""Hypothesis for all tests: the same examples on every run, and no deadline.

A busy machine is no fault of the code. ``pytest --hypothesis-profile=search`` looks further.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("adacompute", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=500)
settings.load_profile("adacompute")
