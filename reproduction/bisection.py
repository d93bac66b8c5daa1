"""Bisection: the paper's search for the price of a budget, with its steps.

The package finds the price exactly, and faster. It knows nothing of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from adacompute.core.allocation.cutoff import check_feasible, choose
from adacompute.core.allocation.oracle import dual, mix_split
from adacompute.core.types import Allocation, FloatArray, Split, UtilityTable, sum_cost

MAX_BISECTED_PRICE = 5.0
"""Upper end of the bracket in which the paper searches the price."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Steps of a bisection: the bracket of prices and the mean costs at its ends."""

    low: FloatArray
    high: FloatArray
    middle: FloatArray
    cost_low: FloatArray
    cost_high: FloatArray
    cost_middle: FloatArray


def bisect(table: UtilityTable, budget: float, *, steps: int = 50) -> tuple[Allocation, Trace]:
    """Search the price as the paper does: halve the bracket [0, 5] a fixed number of times.

    The bracket is larger only if some upgrade costs more, which samples never do. The choice is
    that at the upper end of the bracket, so it never overspends. The split mixes it
    with the choice at the lower end, with one probability for all questions, so that the mean cost
    equals the budget.
    """
    low, high = 0.0, max(MAX_BISECTED_PRICE, max_ratio(table) * 1.001)
    at_low, at_high = choose(table, low), choose(table, high)
    spent_low, spent_high = sum_cost(table.cost_of(at_low)), sum_cost(table.cost_of(at_high))
    limit = Fraction(budget) * len(table)
    if spent_high > limit:
        check_feasible(budget, float(spent_high / len(table)))
        limit = spent_high
    rows = []
    if spent_low <= limit:
        high, at_high, spent_high = low, at_low, spent_low
    else:
        for _ in range(steps):
            middle = (low + high) / 2
            choice = choose(table, middle)
            spent = sum_cost(table.cost_of(choice))
            means = (float(cost / len(table)) for cost in (spent_low, spent_high, spent))
            rows.append((low, high, middle, *means))
            if spent > limit:
                low, at_low, spent_low = middle, choice, spent
            else:
                high, at_high, spent_high = middle, choice, spent
    share = float((limit - spent_high) / (spent_low - spent_high)) if spent_low > limit else 0.0
    question = np.flatnonzero(at_high != at_low) if share else np.empty(0, dtype=np.int64)
    split = Split(question, at_low[question], np.full(len(question), share))
    utility = float(table.utility_of(at_high).mean())
    cost = float(spent_high / len(table))
    mixed_cost, mixed_utility = mix_split(table, at_high, split, cost, utility)
    found = Allocation(
        choice=at_high,
        price=high,
        cost=cost,
        utility=utility,
        bound=max(dual(table, high, budget), utility),
        split=split,
        mixed_cost=mixed_cost,
        mixed_utility=mixed_utility,
    )
    return found, Trace(*np.array(rows, dtype=np.float64).reshape(-1, 6).T)


def max_ratio(table: UtilityTable) -> float:
    """Return a price above all upgrades: the largest gain divided by the smallest extra cost."""
    extra_cost = np.diff(np.sort(table.cost, axis=-1), axis=-1)
    gain = float(table.utility.max() - table.utility.min())
    return gain / float(extra_cost.min(where=extra_cost > 0, initial=np.inf))
