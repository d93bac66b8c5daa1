"""Fixtures that all tests of the reproduction share."""

from __future__ import annotations

import pytest

from reproduction.registered_rivals import register_rivals
from test_support.fixtures import (
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


@pytest.fixture
def rivals(own_policies: None) -> None:  # noqa: ARG001 - it ends after this one
    """Register the methods of the literature."""
    register_rivals()
