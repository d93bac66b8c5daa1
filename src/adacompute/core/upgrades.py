"""Upgrades: the steps of each question's concave envelope, and the level at a price.

The best allocation within a budget buys upgrades, from any question, in the order of gain per cost,
until the next one does not fit. The upgrade at which buying stops is the cutoff; ``block_cutoff``
finds it. Ties between questions are broken by the hash of their keys. This module does not know
estimation: it takes utilities as true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.types import (
    BoolArray,
    FloatArray,
    IntArray,
    KeyArray,
    UtilityTable,
    hash_keys,
)

if TYPE_CHECKING:
    import numpy.typing as npt

BLOCK_SIZE = 1 << 14
"""Questions per block: their utilities fit into the cache of one core."""

ROUNDING_TOLERANCE = 2.0**-46
"""Net values closer than this, relative to their terms, may be in the wrong order by rounding."""

MIN_RATIO = float(np.nextafter(0.0, 1.0))
"""Smallest ratio of a gain to its cost. A price of 0 is reserved for "every upgrade fits"."""


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


@dataclass(frozen=True, eq=False)
class Upgrades:
    """All upgrades with a positive gain, of all questions, in no particular order.

    ``step`` numbers the upgrades of a question, ``ratio`` is ``gain / extra_cost``, and ``tie`` is
    the hash of the question's key.
    """

    question: IntArray
    level: IntArray
    ratio: FloatArray
    extra_cost: FloatArray
    gain: FloatArray
    step: IntArray
    tie: KeyArray

    def order(self) -> IntArray:
        """Return the upgrades in the order in which they are bought."""
        return np.lexsort((self.step, self.tie, -self.ratio))

    def cutoff_before(self, upgrade: int) -> Cutoff:
        """Return the cutoff of what comes before an upgrade in this order."""
        return Cutoff(float(self.ratio[upgrade]), int(self.tie[upgrade]), int(self.step[upgrade]))


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
        return start, Upgrades(none, none, empty, empty, empty, none, none.astype(np.uint64))
    question, level, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return start, Upgrades(
        question=question,
        level=level,
        ratio=np.concatenate(ratios),
        extra_cost=np.concatenate(extra_costs),
        gain=np.concatenate(gains),
        step=steps,
        tie=hash_keys(table.key)[question],
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
                envelopes[cutoff.price] = envelope(block.take(rows))
            start, upgrades = envelopes[cutoff.price]
            tie, last = upgrades.tie, np.uint64(cutoff.tie)
            earlier = (tie < last) | ((tie == last) & (upgrades.step < cutoff.step))
            tied = upgrades.ratio == cutoff.price
            bought = (upgrades.ratio > cutoff.price) | (tied & earlier)
            choice[rows] = start
            choice[rows[upgrades.question[bought]]] = upgrades.level[bought]
        found.append(choice)
    return found
