"""Fixtures that all tests of the package share."""

from test_support.fixtures import (
    make_run,
    own_policies,
    own_state,
    rows,
    run,
    shared_results,
    source,
    write,
)

__all__ = [
    "make_run",
    "own_policies",
    "own_state",
    "rows",
    "run",
    "shared_results",
    "source",
    "write",
]
