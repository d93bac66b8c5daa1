"""Oracle: the best allocation of a mean budget when the utilities of every question are known.

``solve`` returns one level per question that never overspends, the price at which it is optimal,
the split that spends the rest of the budget, and a bound on the utility of every allocation
(Proposition 1 of the paper, corrected: the deterministic choice can be below the bound by the gain
of one upgrade divided by N). ``frontier`` returns the best utility at every budget.

An oracle is not a policy, because it knows the answers. Its bound applies to static choices from
this table of utilities; a sequential policy can be better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adacompute.core.allocation.cutoff import (
    BLOCK_SIZE,
    SAMPLE_SIZE,
    Cutoff,
    apply_cutoff,
    check_feasible,
    choose,
    find_cutoff,
)
from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import (
    Allocation,
    FloatArray,
    IntArray,
    Split,
    UtilityTable,
    sum_cost,
)


def solve(table: UtilityTable, budget: float) -> Allocation:
    """Choose a level for each question so that the mean cost stays within budget.

    The choice is optimal at the returned price. Levels are discrete, so it may not use the whole
    budget. ``gap`` bounds the loss from that; it is at most the gain of a single upgrade divided by
    ``len(table)``.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1.0, 4.0]))
    >>> solve(table, budget=2.5).choice.tolist()
    [0, 1]
    """
    if len(table) == 0:
        raise DataError("the table has no question to allocate to")
    if not np.isfinite(budget):
        raise ConfigError(f"budget must be a finite number, got {budget}")
    rounded = _round_budget(table, budget)
    stride = len(table) // SAMPLE_SIZE
    sample = table.take(slice(None, None, stride)) if stride > 1 else None
    cutoff = find_cutoff(lambda: table.blocks(BLOCK_SIZE), sample, rounded).cutoff
    choice = np.concatenate([apply_cutoff(block, cutoff) for block in table.blocks(BLOCK_SIZE)])
    found = _allocate(table, rounded, choice, cutoff)
    if rounded == budget:
        return found
    return replace(found, cost=budget, mixed_cost=budget)  # the unrounded costs are lower


def _round_budget(table: UtilityTable, budget: float) -> float:
    """Round the budget up if the cheapest levels exceed it only because costs were rounded up."""
    if table.rounding == 0.0:
        return budget
    cheapest = float(sum_cost(table.costs.min(axis=1)) / len(table))
    fits = cheapest - table.rounding <= budget * (1 + 1e-12)
    return cheapest if fits and budget < cheapest else budget


def _allocate(table: UtilityTable, budget: float, choice: IntArray, cutoff: Cutoff) -> Allocation:
    cost = float(sum_cost(table.cost_of(choice)) / len(table))
    utility = float(table.utility_of(choice).mean())
    # Every chosen level has the largest net value at this price, so this is the dual.
    bound = utility + cutoff.price * (budget - cost)
    question = np.empty(0, dtype=np.int64)
    if cutoff.probability > 0:
        question = _cutoff_row(table, choice, cutoff)
    level = np.full(len(question), cutoff.level)
    probability = np.full(len(question), cutoff.probability)
    split = Split(question, level, probability)
    mixed_cost, mixed_utility = mix_split(table, choice, split, cost, utility)
    return Allocation(
        choice=choice,
        price=cutoff.price,
        cost=cost,
        utility=utility,
        bound=max(bound, utility),
        split=split,
        mixed_cost=mixed_cost,
        mixed_utility=mixed_utility,
    )


def _cutoff_row(table: UtilityTable, choice: IntArray, cutoff: Cutoff) -> IntArray:
    """Return the row of the question at the cutoff; of equal keys, the one with that upgrade."""
    rows = np.flatnonzero(table.key == np.uint64(cutoff.key or 0))
    part = table.take(rows)
    current = choice[rows]
    extra_cost = part.cost_of(np.full(len(rows), cutoff.level)) - part.cost_of(current)
    gain = part.utility[:, cutoff.level] - part.utility_of(current)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where(extra_cost > 0, np.abs(gain / extra_cost - cutoff.price), np.inf)
    return rows[[int(off.argmin())]]


def mix_split(
    table: UtilityTable, choice: IntArray, split: Split, cost: float, utility: float
) -> tuple[float, float]:
    """Return the mean cost and utility with the split."""
    rows = table.take(split.question)
    current = choice[split.question]
    extra_cost = rows.cost_of(split.level) - rows.cost_of(current)
    gain = rows.utility_of(split.level) - rows.utility_of(current)
    size = len(table)
    return (
        cost + float((split.probability * extra_cost).sum()) / size,
        utility + float((split.probability * gain).sum()) / size,
    )


def dual(table: UtilityTable, price: float, budget: float) -> float:
    """Return an upper bound on the utility of all static policies within the budget.

    Every price gives a bound; the price of ``solve`` gives the lowest.
    """
    choice = choose(table, price)
    net = table.utility_of(choice) - price * table.cost_of(choice)
    return float(net.mean()) + price * budget


@dataclass(frozen=True, eq=False)
class Frontier:
    """Best utility at every budget: linear between these points, constant after the last one.

    ``price[i]`` is the ratio of the upgrade that ends at point i; the first point is the cheapest
    level of every question, at a price of infinity.
    """

    price: FloatArray
    cost: FloatArray
    utility: FloatArray

    def utility_at(self, budget: float) -> float:
        """Return the best utility within a budget, with mixing allowed."""
        check_feasible(budget, float(self.cost[0]))
        return float(np.interp(budget, self.cost, self.utility))

    def price_at(self, budget: float) -> float:
        """Return the ratio of the first upgrade that does not fit into a budget, 0 if all do."""
        first = int(np.searchsorted(self.cost, budget, side="right"))
        return float(self.price[first]) if first < len(self.price) else 0.0


def frontier(table: UtilityTable) -> Frontier:
    """Compute the whole frontier, with one point per upgrade.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1.0, 4.0]))
    >>> frontier(table).cost.tolist()
    [1.0, 2.5]
    """
    start, upgrades = envelope(table)
    order = np.argsort(-upgrades.ratio, kind="stable")
    size = max(1, len(table))
    first = float(table.cost_of(start).sum()) / size, float(table.utility_of(start).sum()) / size
    return Frontier(
        price=np.concatenate([[np.inf], upgrades.ratio[order]]),
        cost=np.concatenate([[0.0], np.cumsum(upgrades.extra_cost[order]) / size]) + first[0],
        utility=np.concatenate([[0.0], np.cumsum(upgrades.gain[order]) / size]) + first[1],
    )
