"""Hypothesis for all tests: no deadline, for a busy machine is no fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("adacompute", deadline=None, max_examples=60)
settings.load_profile("adacompute")
