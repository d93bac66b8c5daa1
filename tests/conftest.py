"""Fixtures that all tests of the package share."""

from test_support.fixtures import few_scores, make_run, own_state, rows, run, source, write

__all__ = ["few_scores", "make_run", "own_state", "rows", "run", "source", "write"]
