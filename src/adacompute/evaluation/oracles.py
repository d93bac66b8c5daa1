"""Oracles: the scores of allocations that know the utility curve of each question.

The cross-fitted oracle chooses on one half of the samples of a question and is scored on the other
half, so noise does not help it. The in-sample oracle is scored as in the paper: five levels,
windows, and chosen and scored on the same samples. Oracles are allocations, not policies, because
they use the answer key.
"""

from __future__ import annotations

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import Allocation, FloatArray, UtilityTable
from adacompute.core.utility import estimate
from adacompute.evaluation.pool import Pool

PAPER_LEVELS = (1, 2, 4, 8, 16)
N_HALVINGS = 10
"""Random halvings of the samples that the scores are averaged over."""

OracleScores = dict[float, tuple[float, FloatArray]]
"""Mean cost, and utility of each question (N,), by budget."""


def cross_fitted_oracle(
    pool: Pool, levels: tuple[int, ...], budgets: tuple[float, ...], *, seed: int
) -> OracleScores:
    """Return the scores of the oracle that chooses and is scored on different samples."""
    rng = np.random.default_rng(seed)
    total = {budget: np.zeros(len(pool)) for budget in budgets}
    total_cost = dict.fromkeys(budgets, 0.0)
    cost = pool.level_cost(levels)
    for _ in range(N_HALVINGS):
        halves = pool.answers.halves(rng)
        utilities = [estimate(half, levels, standard_errors=False).utility for half in halves]
        for chosen_on, scored_on in (utilities, utilities[::-1]):
            table = UtilityTable(chosen_on, cost, pool.key)
            for budget in budgets:
                allocation = solve(table, budget)
                total[budget] += allocation_utility(allocation, scored_on)
                total_cost[budget] += allocation.mixed_cost
    times = 2 * N_HALVINGS
    return {budget: (total_cost[budget] / times, value / times) for budget, value in total.items()}


def in_sample_oracle(pool: Pool, budgets: tuple[float, ...]) -> OracleScores:
    """Return the scores of the oracle as the paper computes them."""
    n_samples = int(pool.answers.n_samples.min())
    table = pool.table(tuple(n for n in PAPER_LEVELS if n <= n_samples), method="windows")
    allocations = {budget: solve(table, budget) for budget in budgets}
    return {
        budget: (allocation.mixed_cost, allocation_utility(allocation, table.utility))
        for budget, allocation in allocations.items()
    }


def allocation_utility(allocation: Allocation, utility: FloatArray) -> FloatArray:
    """Return the expected utility of each question under an allocation, its split included."""
    value = utility[np.arange(len(utility)), allocation.choice]
    split = allocation.split
    rows, share = split.question, split.probability
    value[rows] += share * (utility[rows, split.level] - value[rows])
    return np.asarray(value, dtype=np.float64)
