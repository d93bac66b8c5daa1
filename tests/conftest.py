"""Fixtures that all tests of the package share."""

from test_support.fixtures import (
    all_assignments,
    make_run,
    one_assignment,
    own_policies,
    own_state,
    rows,
    run,
    shared_results,
    source,
    write,
)

__all__ = [
    "all_assignments",
    "make_run",
    "one_assignment",
    "own_policies",
    "own_state",
    "rows",
    "run",
    "shared_results",
    "source",
    "write",
]
