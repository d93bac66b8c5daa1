"""The paper's search for a price ends at the exact one, and never overspends."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import InfeasibleBudget
from adacompute.core.types import FloatArray, UtilityTable
from reproduction.bisection import bisect


def random_table(seed: int, *, own: bool) -> UtilityTable:
    """Return increasing utilities in steps of 1/48, like windows of 48 samples."""
    rng = np.random.default_rng(seed)
    steps = rng.random((300, 5)) * np.array([1.0, 0.4, 0.3, 0.2, 0.1])
    cost: FloatArray = np.array([2.0**k for k in range(5)])
    if own:
        cost = cost * rng.integers(1, 20, (300, 1)).astype(np.float64)
    return UtilityTable(np.rint(24 * np.cumsum(steps, axis=1)) / 48, cost)


@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_bisection_brackets_the_price_and_the_budget_at_every_step(
    seed: int, factor: float
) -> None:
    table = random_table(seed, own=seed > 0)
    budget = float(table.costs[:, 0].mean()) * factor
    exact, (found, trace) = solve(table, budget), bisect(table, budget)
    assert len(trace.low) == 50
    assert (np.diff(trace.low) >= 0).all()
    assert (np.diff(trace.high) <= 0).all()
    assert ((trace.low < trace.middle) & (trace.middle < trace.high)).all()
    assert ((trace.low <= exact.price) & (exact.price <= trace.high)).all()
    assert ((trace.cost_low > budget) & (trace.cost_high <= budget)).all()
    assert (trace.cost_low >= trace.cost_middle).all()
    assert (trace.cost_middle >= trace.cost_high).all()
    assert found.cost <= budget
    assert found.price == pytest.approx(exact.price, rel=1e-9)
    assert found.utility <= exact.bound + 1e-12 <= found.bound + 1e-11
    assert found.mixed_cost == pytest.approx(budget, rel=1e-12)
    assert found.mixed_utility == pytest.approx(exact.mixed_utility, abs=1e-6)


def test_bisection_with_a_large_budget_takes_no_step() -> None:
    found, trace = bisect(UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0])), 3.0)
    assert (len(trace.low), found.price, found.choice.tolist()) == (0, 0.0, [1])
    assert len(found.split) == 0


def test_a_budget_below_the_cheapest_levels_is_infeasible() -> None:
    with pytest.raises(InfeasibleBudget, match="raise the budget"):
        bisect(random_table(0, own=False), 0.9)
