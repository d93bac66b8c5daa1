"""Oracle: the best allocation of a mean budget when every question's utilities are known.

``solve`` gives one level per question that never overspends, the price at which it is optimal, the
split that spends the rest, and a bound that proves how good it is (Proposition 1 of the paper,
corrected: the deterministic choice may lie below the bound by one upgrade's gain / N).
``frontier`` gives every budget at once, ``bisect`` is the paper's own search.

An oracle is not a policy: it knows the answers. It speaks about this table of utilities and about
static choices only; a sequential policy can do better.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.core.types import (
    Allocation,
    FloatArray,
    IntArray,
    Split,
    Trace,
    UtilityTable,
    sum_cost,
)
from adacompute.core.upgrades import BLOCK_SIZE, Cutoff, Scan, apply, choose, cut, envelope, scan

SAMPLE = 1 << 17
"""Questions from which the bracket of prices is guessed before a long table is scanned."""

WIDEST = 64.0
"""A guessed bracket wider than this is given up for all prices."""


def solve(table: UtilityTable, budget: float, *, method: str = "exact") -> Allocation:
    """Choose a level for each question so that the mean cost stays within budget.

    The choice is optimal at the returned price. Levels are discrete, so it may leave part of the
    budget unspent; ``gap`` bounds what that can cost, and it is never more than the gain of a
    single upgrade divided by ``len(table)``. For budgets on several costs see ``solve_limits``.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1.0, 4.0]))
    >>> solve(table, budget=2.5).choice.tolist()
    [0, 1]
    """
    if len(table) == 0:
        raise DataError("there is no question to allocate to")
    if not np.isfinite(budget):
        raise ConfigError(f"a budget is a finite number, not {budget}")
    if method not in ("exact", "bisect"):
        raise ConfigError(f"method must be 'exact' or 'bisect', not {method!r}")
    enough = _round_budget(table, budget)
    if method == "bisect":
        found = _bisect(table, enough)
    else:
        cut_at = find_cutoff(table, enough)
        choice = np.concatenate([apply(block, cut_at) for block in table.blocks(BLOCK_SIZE)])
        found = _allocate(table, enough, choice, cut_at)
    if enough == budget:
        return found
    return replace(found, cost=budget, mixed_cost=budget)  # before costs were rounded, less


def _round_budget(table: UtilityTable, budget: float) -> float:
    """Round a budget up where only the rounding of costs puts it below every cheapest level."""
    if table.rounding == 0.0:
        return budget
    least = float(sum_cost(table.costs.min(axis=1)) / len(table))
    return least if least - table.rounding <= budget * (1 + 1e-12) and budget < least else budget


def find_cutoff(table: UtilityTable, budget: float) -> Cutoff:
    """Price and stopping point of a table held in memory, without sorting all its upgrades."""
    low, high = _bracket(table, budget)
    while True:
        merged = Scan.merge(scan(block, low=low, high=high) for block in table.blocks(BLOCK_SIZE))
        found = cut(merged, budget=budget, low=low, high=high)
        if found is not None:
            return found
        low, high = (0.0, np.inf) if high > WIDEST * low else (low / 2, high * 2)


def _bracket(table: UtilityTable, budget: float) -> tuple[float, float]:
    """Guess two prices around the one sought, from a share of the questions."""
    stride = len(table) // SAMPLE
    if stride < 2:  # noqa: PLR2004 - the sample would be the table
        return 0.0, np.inf
    part = table.take(slice(None, None, stride))
    curve = frontier(part)
    if curve.cost[0] > budget:
        return 0.0, np.inf
    spread = float(part.cost_of(choose(part, curve.price_at(budget))).std())
    slack = 4.0 * spread / float(np.sqrt(len(part)))
    low = curve.price_at(budget + slack)
    high = curve.price_at(budget - slack) if budget - slack > curve.cost[0] else np.inf
    return low * 0.999, high * 1.001


def _allocate(table: UtilityTable, budget: float, choice: IntArray, found: Cutoff) -> Allocation:
    costs = table.cost_of(choice)
    cost = float(sum_cost(costs) / len(table))
    utility = float(table.utility_of(choice).mean())
    # Every chosen level has the largest net value at this price, so the dual is this sum.
    bound = utility + found.price * (budget - cost)
    question = np.empty(0, dtype=np.int64)
    if found.probability > 0:
        question = _marginal_row(table, choice, found)
    level = np.full(len(question), found.level)
    probability = np.full(len(question), found.probability)
    split = Split(question, level, probability)
    mixed_cost, mixed_utility = _mix(table, choice, split, cost, utility)
    amount = None
    if table.continuous:
        amount = _amounts(table, choice, costs, split)
        if amount is not None:
            cost, utility = mixed_cost, mixed_utility
    return Allocation(
        choice=choice,
        price=found.price,
        cost=cost,
        utility=utility,
        bound=max(bound, utility),
        split=split,
        mixed_cost=mixed_cost,
        mixed_utility=mixed_utility,
        amount=amount,
    )


def _marginal_row(table: UtilityTable, choice: IntArray, found: Cutoff) -> IntArray:
    """Row of the question at the cut: of those with its key, the one whose upgrade it is."""
    rows = np.flatnonzero(table.key == np.uint64(found.key or 0))
    part = table.take(rows)
    at = choice[rows]
    extra = part.cost_of(np.full(len(rows), found.level)) - part.cost_of(at)
    gain = part.utility[:, found.level] - part.utility_of(at)
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.where(extra > 0, np.abs(gain / extra - found.price), np.inf)
    return rows[[int(off.argmin())]]


def _mix(
    table: UtilityTable, choice: IntArray, split: Split, cost: float, utility: float
) -> tuple[float, float]:
    """Mean cost and utility when the split questions are mixed as they should be."""
    rows = table.take(split.question)
    at = choice[split.question]
    more = rows.cost_of(split.level) - rows.cost_of(at)
    gain = rows.utility_of(split.level) - rows.utility_of(at)
    size = len(table)
    return (
        cost + float((split.probability * more).sum()) / size,
        utility + float((split.probability * gain).sum()) / size,
    )


def _amounts(
    table: UtilityTable, choice: IntArray, costs: FloatArray, split: Split
) -> FloatArray | None:
    """Cost of each question on a continuous table: the one at the cut stops inside a segment.

    None when that segment of the envelope bridges a knot below it: no single point lies on it.
    """
    amount = costs.copy()
    if len(split):
        row, level = int(split.question[0]), int(split.level[0])
        part = table.take(np.array([row]))
        knots = part.costs[0]
        start, end = knots[choice[row]], knots[level]
        if ((knots > start) & (knots < end)).any():
            return None
        amount[row] += float(split.probability[0]) * (end - start)
    return amount


def dual(table: UtilityTable, price: float, budget: float) -> float:
    """Bound on the utility of every static policy with mean cost within budget, at any price."""
    choice = choose(table, price)
    net = table.utility_of(choice) - price * table.cost_of(choice)
    return float(net.mean()) + price * budget


@dataclass(frozen=True, eq=False)
class Frontier:
    """Best utility at every budget: linear between these points, and flat after the last one.

    ``price[i]`` is the ratio of the upgrade that ends at point i; the first point is the cheapest
    level of every question, at a price of infinity.
    """

    price: FloatArray
    cost: FloatArray
    utility: FloatArray

    def utility_at(self, budget: float) -> float:
        """Best utility within a budget, mixing allowed."""
        if budget < self.cost[0]:
            raise InfeasibleBudget(
                f"a mean budget of {budget:.9g} is below {self.cost[0]:.9g}, the mean cost of "
                "every question's cheapest level: raise the budget or add a cheaper level"
            )
        return float(np.interp(budget, self.cost, self.utility))

    def price_at(self, budget: float) -> float:
        """Price at a budget: the ratio of the first upgrade that does not fit, 0 when all do."""
        first = int(np.searchsorted(self.cost, budget, side="right"))
        return float(self.price[first]) if first < len(self.price) else 0.0


def frontier(table: UtilityTable) -> Frontier:
    """Compute the whole frontier, every upgrade a point, in one sort.

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
        cost=np.concatenate([[0.0], np.cumsum(upgrades.extra[order]) / size]) + first[0],
        utility=np.concatenate([[0.0], np.cumsum(upgrades.gain[order]) / size]) + first[1],
    )


def _bisect(table: UtilityTable, budget: float, *, steps: int = 50) -> Allocation:
    """Search the price as the paper does: halve a bracket of prices a fixed number of times.

    The choice is the one at the upper end of the bracket, so it never overspends; the split mixes
    it with the one at the lower end, all questions alike, so that the mean cost is the budget.
    """
    low, high = 0.0, _largest_ratio(table) * 1.001 + 1e-12
    dear, cheap = choose(table, low), choose(table, high)
    spent_low, spent_high = sum_cost(table.cost_of(dear)), sum_cost(table.cost_of(cheap))
    limit = Fraction(budget) * len(table)
    if spent_high > limit:
        least = float(spent_high / len(table))
        raise InfeasibleBudget(
            f"a mean budget of {budget:.9g} is below {least:.9g}, the mean cost of every "
            "question's cheapest level: raise the budget or add a cheaper level"
        )
    rows = []
    if spent_low <= limit:
        high, cheap, spent_high = low, dear, spent_low
    else:
        for _ in range(steps):
            middle = (low + high) / 2
            choice = choose(table, middle)
            spent = sum_cost(table.cost_of(choice))
            means = (float(cost / len(table)) for cost in (spent_low, spent_high, spent))
            rows.append((low, high, middle, *means))
            if spent > limit:
                low, dear, spent_low = middle, choice, spent
            else:
                high, cheap, spent_high = middle, choice, spent
    share = float((limit - spent_high) / (spent_low - spent_high)) if spent_low > limit else 0.0
    question = np.flatnonzero(cheap != dear) if share else np.empty(0, dtype=np.int64)
    split = Split(question, dear[question], np.full(len(question), share))
    utility = float(table.utility_of(cheap).mean())
    cost = float(spent_high / len(table))
    mixed_cost, mixed_utility = _mix(table, cheap, split, cost, utility)
    return Allocation(
        choice=cheap,
        price=high,
        cost=cost,
        utility=utility,
        bound=max(dual(table, high, budget), utility),
        split=split,
        mixed_cost=mixed_cost,
        mixed_utility=mixed_utility,
        trace=Trace(*np.array(rows, dtype=np.float64).reshape(-1, 6).T),
    )


def _largest_ratio(table: UtilityTable) -> float:
    """No question upgrades above this price: the largest gain over the smallest extra cost."""
    extra = np.diff(np.sort(table.cost, axis=-1), axis=-1)
    gain = float(table.utility.max() - table.utility.min())
    return gain / float(extra.min(where=extra > 0, initial=np.inf))
