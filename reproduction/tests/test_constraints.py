"""Constraints: optima of one limit are those of the solver, and limits hold."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import InfeasibleBudget
from adacompute.core.types import UtilityTable
from reproduction.constraints import solve_constraints

RNG = np.random.default_rng(0)
UTILITY, COST = np.sort(RNG.random((30, 4)), axis=1), np.array([1.0, 2.0, 4.0, 8.0])


def test_one_constraint_is_the_oracle_with_its_split() -> None:
    weights = solve_constraints(UTILITY, [COST], [2.5])
    found = solve(UtilityTable(UTILITY, COST), 2.5)
    assert float((weights * UTILITY).sum()) / 30 == pytest.approx(found.mixed_utility)


def test_several_constraints_hold_and_split_few_questions() -> None:
    latency = RNG.random((30, 4)).cumsum(axis=1)
    weights = solve_constraints(UTILITY, [COST, latency], [3.0, 0.9])
    assert float((weights * COST).sum()) / 30 <= 3.0 + 1e-9
    assert float((weights * latency).sum()) / 30 <= 0.9 + 1e-9
    assert int(((weights > 1e-9).sum(axis=1) > 1).sum()) <= 2
    with pytest.raises(InfeasibleBudget):
        solve_constraints(UTILITY, [COST], [0.5])
