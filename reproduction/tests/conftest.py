"""Fixtures that all tests of the reproduction share."""

from test_support.fixtures import (
    make_run,
    one_assignment,
    own_state,
    rows,
    run,
    shared_results,
    source,
    write,
)

__all__ = [
    "make_run",
    "one_assignment",
    "own_state",
    "rows",
    "run",
    "shared_results",
    "source",
    "write",
]
