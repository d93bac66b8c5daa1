"""Bounds: what allocations that know each question's curve would get, honestly and as published.

The cross-fitted oracle chooses on one half of a question's samples and is scored on the other, so
it cannot profit from noise; the in-sample oracle is the paper's: five levels, windows, chosen and
scored on the same samples. Oracles are allocations, not policies: they know the key.
"""

from __future__ import annotations

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import Allocation, FloatArray, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.pool import Pool

PAPER_LEVELS = (1, 2, 4, 8, 16)
HALVINGS = 10


def cross_fitted_oracle(
    pool: Pool, samples: tuple[int, ...], budgets: tuple[float, ...], *, seed: int
) -> dict[float, tuple[float, FloatArray]]:
    """Cost, and utility of each question, under the cross-fitted oracle, by budget."""
    rng = np.random.default_rng(seed)
    total = {budget: np.zeros(len(pool)) for budget in budgets}
    spent = dict.fromkeys(budgets, 0.0)
    cost = pool.level_cost(samples)
    for _ in range(HALVINGS):
        halves = pool.answers.halves(rng)
        worth = [estimate(half, samples, standard_errors=False).utility for half in halves]
        for chosen_on, scored_on in (worth, worth[::-1]):
            table = UtilityTable(chosen_on, cost, pool.key)
            for budget in budgets:
                found = solve(table, budget)
                total[budget] += realise(found, scored_on)
                spent[budget] += found.mixed_cost
    times = 2 * HALVINGS
    return {budget: (spent[budget] / times, value / times) for budget, value in total.items()}


def in_sample(pool: Pool, budgets: tuple[float, ...]) -> dict[float, tuple[float, FloatArray]]:
    """Cost, and utility of each question, under the oracle as the paper scores it, by budget."""
    most = int(pool.answers.n_samples.min())
    table = pool.table(tuple(n for n in PAPER_LEVELS if n <= most), method="windows")
    found = {budget: solve(table, budget) for budget in budgets}
    return {
        budget: (allocation.mixed_cost, realise(allocation, table.utility))
        for budget, allocation in found.items()
    }


def realise(found: Allocation, utility: FloatArray) -> FloatArray:
    """Expected utility of each question under an allocation, its split included."""
    value = utility[np.arange(len(utility)), found.choice]
    rows, share = found.split.question, found.split.probability
    value[rows] += share * (utility[rows, found.split.level] - value[rows])
    return np.asarray(value, dtype=np.float64)
