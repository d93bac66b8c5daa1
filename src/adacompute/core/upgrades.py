"""Upgrades: the steps of each question's concave envelope, and the price at which buying stops.

The best allocation within a budget buys upgrades, from any question, in the order of gain per cost,
until the next one does not fit. Three functions compute this block by block. Their results merge in
any order to the same answer, so a table never has to be in memory as a whole:

    scan             one pass at two prices: sum the cost of questions for which both prices lead to
                     the same level, and keep the other questions
    locate_cutoff    find the exact upgrade at which buying stops, from the questions that were kept
    apply_cutoff     one pass: the level of each question under that cutoff

Ties between questions are broken by the hash of their keys. This module does not know estimation:
it takes utilities as true.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import DataError, InfeasibleBudget
from adacompute.core.types import (
    BoolArray,
    FloatArray,
    IntArray,
    KeyArray,
    UtilityTable,
    cost_units,
    hash_keys,
    join_tables,
    sum_cost,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

BLOCK_SIZE = 1 << 14
"""Questions per block: their utilities fit into the cache of one core."""

ROUNDING_TOLERANCE = 2.0**-46
"""Net values closer than this, relative to their terms, may be in the wrong order by rounding."""

MIN_RATIO = float(np.nextafter(0.0, 1.0))
"""Smallest ratio of a gain to its cost. A price of 0 is reserved for "every upgrade fits"."""

MAX_INT_SUM = 2**62
"""Sums up to this value fit into 64 bits, even if the estimate of the sum is rounded."""


@dataclass(frozen=True, eq=False)
class Upgrades:
    """All upgrades with a positive gain, of all questions, in no particular order.

    ``step`` numbers the upgrades of a question, and ``ratio`` is ``gain / extra_cost``.
    """

    question: IntArray
    level: IntArray
    ratio: FloatArray
    extra_cost: FloatArray
    gain: FloatArray
    step: IntArray


@dataclass(frozen=True, eq=False)
class Scan:
    """Result of one pass at two prices. Scans of different blocks merge in any order."""

    n_questions: int
    decided_cost: Fraction
    undecided: UtilityTable

    @staticmethod
    def merge(scans: Iterable[Scan]) -> Scan:
        """Merge the scans of different blocks."""
        parts = list(scans)
        return Scan(
            n_questions=sum(part.n_questions for part in parts),
            decided_cost=sum((part.decided_cost for part in parts), Fraction(0)),
            undecided=join_tables([part.undecided for part in parts]),
        )


@dataclass(frozen=True)
class Cutoff:
    """Where buying stops: this upgrade, and all that come after it in the order, are not bought.

    ``key`` is the question whose upgrade to ``level`` does not fit, and ``probability`` is the
    share of its cost that the rest of the budget pays for. If all upgrades fit, the price is 0 and
    the key is None.
    """

    price: float
    tie: int = 0
    step: int = 0
    key: int | None = None
    level: int = 0
    probability: float = 0.0


def envelope(table: UtilityTable) -> tuple[IntArray, Upgrades]:
    """Return the cheapest level of each question, and all upgrades from it.

    Of levels with equal cost only the best counts. Gains are positive, and the ratios of a
    question's upgrades never increase. Levels on a straight line are separate upgrades.
    """
    rows = np.arange(len(table))
    order = np.lexsort((-table.utility, table.costs), axis=1)
    utility = np.take_along_axis(table.utility, order, axis=1)
    cost = np.take_along_axis(table.costs, order, axis=1)
    start = order[:, 0]
    current = np.zeros(len(table), dtype=np.int64)
    last_ratio = np.full(len(table), np.inf)
    found: list[tuple[IntArray, ...]] = []
    ratios, extra_costs, gains = [], [], []
    for step in range(table.n_levels - 1):
        here = np.arange(len(rows)), current
        gain = utility - utility[here][:, None]
        extra_cost = cost - cost[here][:, None]
        is_upgrade = (gain > 0) & (extra_cost > 0)
        ratio = np.divide(gain, extra_cost, out=np.full_like(gain, -np.inf), where=is_upgrade)
        np.maximum(ratio, MIN_RATIO, out=ratio, where=is_upgrade)
        best = ratio.argmax(axis=1)  # of equal ratios the nearest level
        there = np.arange(len(rows)), best
        goes_on = ratio[there] > 0
        if not goes_on.any():
            break
        # Rounding must not reverse the order of two upgrades of a question.
        last_ratio = np.minimum(ratio[there], last_ratio)[goes_on]
        steps = np.full(int(goes_on.sum()), step)
        found.append((rows[goes_on], order[there][goes_on], steps))
        ratios.append(last_ratio)
        extra_costs.append(extra_cost[there][goes_on])
        gains.append(gain[there][goes_on])
        rows, order, utility = rows[goes_on], order[goes_on], utility[goes_on]
        cost, current = cost[goes_on], best[goes_on]
    if not found:
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return start, Upgrades(none, none, empty, empty, empty, none)
    question, level, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return start, Upgrades(
        question=question,
        level=level,
        ratio=np.concatenate(ratios),
        extra_cost=np.concatenate(extra_costs),
        gain=np.concatenate(gains),
        step=steps,
    )


def choose(table: UtilityTable, price: float) -> IntArray:
    """Return each question's level with the largest utility − price × cost; ties go to the cheaper.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
    >>> choose(table, 0.1).tolist(), choose(table, 0.3).tolist()
    ([0, 1], [0, 0])
    """
    return apply_cutoff(table, Cutoff(price))


def _choose_at(table: UtilityTable, prices: tuple[float, ...]) -> list[tuple[IntArray, BoolArray]]:
    """Choose at several prices in one pass, and return which choices are certain.

    A choice is certain if its lead is larger than any rounding error, so that ``envelope`` must
    agree with it. At a price of 0 or infinity nothing is rounded.
    """
    columns = np.ascontiguousarray(table.utility.T)
    max_utility = max(float(columns.max(initial=0.0)), -float(columns.min(initial=0.0)))
    max_cost = float(table.cost.max(initial=0.0))
    shared = table.cost.ndim == 1
    order = np.argsort(table.cost, kind="stable") if shared else np.arange(table.n_levels)
    columns, cost = columns[order], table.cost.T[order]
    chosen = []
    for price in prices:
        best, lead = (_shared_costs if shared else _own_costs)(columns, cost, price)
        tolerance = -1.0
        if price not in (0.0, np.inf):
            tolerance = ROUNDING_TOLERANCE * (max_utility + price * max_cost)
        chosen.append((order[best], lead > tolerance))
    return chosen


def _shared_costs(
    columns: FloatArray, cost: FloatArray, price: float
) -> tuple[npt.NDArray[Any], FloatArray]:
    """Return the best level and its lead over the best level of another cost.

    Levels are sorted by cost.
    """
    if price == np.inf:
        columns, price = columns[: int((cost == cost[0]).sum())], 0.0
    level_type = np.int8 if len(columns) <= np.iinfo(np.int8).max else np.int64
    level = np.zeros(columns.shape[1], dtype=level_type)
    best = columns[0] - price * cost[0]
    second = np.full_like(best, -np.inf)
    net, loser = np.empty_like(best), np.empty_like(best)
    better = np.empty(len(best), dtype=np.bool_)
    for k in range(1, len(columns)):
        np.subtract(columns[k], price * cost[k], out=net)
        np.greater(net, best, out=better)
        np.minimum(net, best, out=loser)
        if cost[k] == cost[k - 1]:
            loser[cost[level] == cost[k]] = -np.inf
        np.maximum(second, loser, out=second)
        np.maximum(level, better * level_type(k), out=level)  # many times faster than a mask
        np.maximum(best, net, out=best)
    return level, best - second


def _own_costs(columns: FloatArray, cost: FloatArray, price: float) -> tuple[IntArray, FloatArray]:
    """Do the same where each question has its own costs, so that levels are not sorted by cost."""
    value, tie = (-cost, columns) if price == np.inf else (columns - price * cost, -cost)
    rows = np.arange(columns.shape[1])
    level = np.zeros(len(rows), dtype=np.int64)
    second = np.full(len(rows), -np.inf)
    for k in range(1, len(columns)):
        best, best_tie = value[level, rows], tie[level, rows]
        loser = np.minimum(best, value[k])
        loser[cost[level, rows] == cost[k]] = -np.inf
        np.maximum(second, loser, out=second)
        level[(value[k] > best) | ((value[k] == best) & (tie[k] > best_tie))] = k
    return level, value[level, rows] - second


def scan(block: UtilityTable, *, low: float, high: float) -> Scan:
    """Choose at two prices, sum the cost of equal choices, and keep the other questions.

    A level that is best at both prices is best at every price between them.
    """
    (at_high, high_certain), (at_low, low_certain) = _choose_at(block, (high, low))
    decided = (at_high == at_low) & high_certain & low_certain
    return Scan(len(block), sum_cost(block.cost_of(at_high)[decided]), block.take(~decided))


def locate_cutoff(merged: Scan, *, budget: float, low: float, high: float) -> Cutoff | None:
    """Find the upgrade at which buying stops; None if its price is not within low and high.

    Raises InfeasibleBudget if not even the cheapest levels fit.
    """
    table = merged.undecided
    start, upgrades = envelope(table)
    limit = Fraction(budget) * merged.n_questions
    left = limit - merged.decided_cost - sum_cost(table.cost_of(start))
    if left < 0:
        if high == np.inf:
            raise infeasible(budget, float((limit - left) / merged.n_questions))
        return None
    tie = hash_keys(table.key)[upgrades.question]
    order = np.lexsort((upgrades.step, tie, -upgrades.ratio))
    n_bought, spent = _afford(upgrades.extra_cost[order], left)
    if n_bought == len(order):
        return Cutoff(price=0.0) if low == 0.0 else None
    at = order[n_bought]
    price = float(upgrades.ratio[at])
    if not low <= price <= high:
        return None
    _reject_equal_keys(upgrades, tie, order, n_bought)
    return Cutoff(
        price=price,
        tie=int(tie[at]),
        step=int(upgrades.step[at]),
        key=int(table.key[upgrades.question[at]]),
        level=int(upgrades.level[at]),
        probability=float((left - spent) / Fraction(float(upgrades.extra_cost[at]))),
    )


def infeasible(budget: float, min_cost: float) -> InfeasibleBudget:
    """Return the error for a budget below the mean cost of every question's cheapest level."""
    return InfeasibleBudget(
        f"a mean budget of {budget:.9g} is below {min_cost:.9g}, the mean cost of every question's "
        "cheapest level: raise the budget or add a cheaper level"
    )


def _afford(cost: FloatArray, left: Fraction) -> tuple[int, Fraction]:
    """Count how many of the first costs fit into what is left, and sum them exactly."""
    units = cost_units(float(cost.max(initial=0.0)))
    counted, room = (cost * units).astype(np.int64), int(left * int(units))
    if float(cost.sum()) * units < MAX_INT_SUM:
        spent, room = np.cumsum(counted), min(room, MAX_INT_SUM)
    else:
        spent = np.cumsum(counted, dtype=np.object_)
    count = int(np.searchsorted(spent, room, side="right"))
    return count, Fraction(int(spent[count - 1]) if count else 0, int(units))


def _reject_equal_keys(upgrades: Upgrades, tie: KeyArray, order: IntArray, at: int) -> None:
    """Raise DataError if two questions with one key are tied at the cutoff: neither comes first."""
    for other in (at - 1, at + 1):
        if 0 <= other < len(order):
            a, b = order[at], order[other]
            same_rank = upgrades.ratio[a] == upgrades.ratio[b] and tie[a] == tie[b]
            if same_rank and upgrades.step[a] == upgrades.step[b]:
                raise DataError("two questions have the same key: give each question its own key")


def apply_cutoff(block: UtilityTable, cutoff: Cutoff) -> IntArray:
    """Return each question's level under the cutoff."""
    return apply_cutoffs(block, (cutoff,))[0]


def apply_cutoffs(block: UtilityTable, cutoffs: tuple[Cutoff, ...]) -> list[IntArray]:
    """Return each question's level under several cutoffs, in one pass over the block."""
    prices = tuple(dict.fromkeys(cutoff.price for cutoff in cutoffs))
    chosen = dict(zip(prices, _choose_at(block, prices), strict=True))
    near = {price: np.flatnonzero(~certain) for price, (_, certain) in chosen.items()}
    found, envelopes = [], {}
    for cutoff in cutoffs:
        rows, choice = near[cutoff.price], chosen[cutoff.price][0].copy()
        if len(rows):
            if cutoff.price not in envelopes:
                part = block.take(rows)
                envelopes[cutoff.price] = (*envelope(part), hash_keys(part.key))
            start, upgrades, tie = envelopes[cutoff.price]
            tie, last = tie[upgrades.question], np.uint64(cutoff.tie)
            earlier = (tie < last) | ((tie == last) & (upgrades.step < cutoff.step))
            tied = upgrades.ratio == cutoff.price
            bought = (upgrades.ratio > cutoff.price) | (tied & earlier)
            choice[rows] = start
            choice[rows[upgrades.question[bought]]] = upgrades.level[bought]
        found.append(choice)
    return found
