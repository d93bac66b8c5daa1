"""Upgrades: the steps of each question's concave envelope, and the price that stops buying them.

The best allocation within a budget buys upgrades, from any question, in the order of gain per
cost, until one does not fit. Three functions do this over blocks of any size whose results merge
in any order to the same answer, so that a table never has to be held whole:

    scan      one pass at two prices: what both agree on is summed, what they do not is kept
    cut       the stopping upgrade, exactly, from the questions that were kept
    apply     one pass: each question's level under that cut

Ties between questions break by the hash of their keys. It knows nothing of estimation: utilities
are taken as true.
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
"""Questions in a block: their utilities fit a core's cache."""

DOUBT = 2.0**-46
"""Net values closer than this, relative to their parts, may owe their order to rounding."""

LEAST = float(np.nextafter(0.0, 1.0))
"""A gain is worth at least this much a cost, however small: a price of 0 means that all fits."""

LARGEST = 2**62
"""Sums up to this fit into 64 bits, a rounded estimate of them included."""


@dataclass(frozen=True, eq=False)
class Upgrades:
    """Every worthwhile step of every question, flat and in no order."""

    question: IntArray
    level: IntArray
    ratio: FloatArray
    extra: FloatArray
    gain: FloatArray
    step: IntArray


@dataclass(frozen=True, eq=False)
class Scan:
    """What one pass at two prices found; scans of different blocks merge in any order."""

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
    """Where buying stops: upgrades dearer than this one are not bought.

    ``key`` is the question whose upgrade, to ``level``, did not fit, and ``probability`` what of it
    the rest of the budget pays for. Without such an upgrade the price is 0 and the key None.
    """

    price: float
    tie: int = 0
    step: int = 0
    key: int | None = None
    level: int = 0
    probability: float = 0.0


def envelope(table: UtilityTable) -> tuple[IntArray, Upgrades]:
    """Cheapest level of each question, and the upgrades on from it.

    Of levels with equal cost the best counts, steps have a positive gain, and their ratios never
    rise along a question. Levels on a straight line are separate steps.
    """
    rows = np.arange(len(table))
    order = np.lexsort((-table.utility, table.costs), axis=1)
    utility = np.take_along_axis(table.utility, order, axis=1)
    cost = np.take_along_axis(table.costs, order, axis=1)
    start = order[:, 0]
    here = np.zeros(len(table), dtype=np.int64)
    last = np.full(len(table), np.inf)
    found: list[tuple[IntArray, ...]] = []
    ratios, extras, gains = [], [], []
    for step in range(table.n_levels - 1):
        at = np.arange(len(rows)), here
        gain = utility - utility[at][:, None]
        extra = cost - cost[at][:, None]
        worth = (gain > 0) & (extra > 0)
        ratio = np.divide(gain, extra, out=np.full_like(gain, -np.inf), where=worth)
        np.maximum(ratio, LEAST, out=ratio, where=worth)
        there = ratio.argmax(axis=1)  # the first of equals is the nearest
        to = np.arange(len(rows)), there
        on = ratio[to] > 0
        if not on.any():
            break
        last = np.minimum(ratio[to], last)[on]  # rounding must not reverse the order of two steps
        found.append((rows[on], order[to][on], np.full(int(on.sum()), step)))
        ratios.append(last)
        extras.append(extra[to][on])
        gains.append(gain[to][on])
        rows, order, utility, cost = rows[on], order[on], utility[on], cost[on]
        here = there[on]
    if not found:
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return start, Upgrades(none, none, empty, empty, empty, none)
    question, level, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return start, Upgrades(
        question=question,
        level=level,
        ratio=np.concatenate(ratios),
        extra=np.concatenate(extras),
        gain=np.concatenate(gains),
        step=steps,
    )


def choose(table: UtilityTable, price: float) -> IntArray:
    """Each question's level of largest utility − price × cost, ties to the cheaper one.

    >>> table = UtilityTable(np.array([[0.9, 0.9], [0.2, 0.8]]), np.array([1, 4]))
    >>> choose(table, 0.1).tolist(), choose(table, 0.3).tolist()
    ([0, 1], [0, 0])
    """
    return apply(table, Cutoff(price))


def _choose_at(table: UtilityTable, prices: tuple[float, ...]) -> list[tuple[IntArray, BoolArray]]:
    """Choose at several prices in one pass over the block, and tell which choices are sure.

    A choice is sure when it leads by more than rounding can make up, so that ``envelope`` must
    agree with it. At a price of 0 or infinity nothing is rounded.
    """
    columns = np.ascontiguousarray(table.utility.T)
    largest = max(float(columns.max(initial=0.0)), -float(columns.min(initial=0.0)))
    dearest = float(table.cost.max(initial=0.0))
    shared = table.cost.ndim == 1
    order = np.argsort(table.cost, kind="stable") if shared else np.arange(table.n_levels)
    columns, cost = columns[order], table.cost.T[order]
    chosen = []
    for price in prices:
        place, lead = (_shared_costs if shared else _own_costs)(columns, cost, price)
        doubt = -1.0 if price in (0.0, np.inf) else DOUBT * (largest + price * dearest)
        chosen.append((order[place], lead > doubt))
    return chosen


def _shared_costs(
    columns: FloatArray, cost: FloatArray, price: float
) -> tuple[npt.NDArray[Any], FloatArray]:
    """Choose and lead over the next best at another cost; levels come by rising cost."""
    if price == np.inf:
        columns, price = columns[: int((cost == cost[0]).sum())], 0.0
    place_type = np.int8 if len(columns) <= np.iinfo(np.int8).max else np.int64
    place = np.zeros(columns.shape[1], dtype=place_type)
    best = columns[0] - price * cost[0]
    second = np.full_like(best, -np.inf)
    net, loser = np.empty_like(best), np.empty_like(best)
    better = np.empty(len(best), dtype=np.bool_)
    for k in range(1, len(columns)):
        np.subtract(columns[k], price * cost[k], out=net)
        np.greater(net, best, out=better)
        np.minimum(net, best, out=loser)
        if cost[k] == cost[k - 1]:
            loser[cost[place] == cost[k]] = -np.inf
        np.maximum(second, loser, out=second)
        np.maximum(place, better * place_type(k), out=place)  # many times faster than a mask
        np.maximum(best, net, out=best)
    return place, best - second


def _own_costs(columns: FloatArray, cost: FloatArray, price: float) -> tuple[IntArray, FloatArray]:
    """Choose and lead as above, where levels come in any order and a tie must be looked at."""
    value, tie = (-cost, columns) if price == np.inf else (columns - price * cost, -cost)
    rows = np.arange(columns.shape[1])
    place = np.zeros(len(rows), dtype=np.int64)
    second = np.full(len(rows), -np.inf)
    for k in range(1, len(columns)):
        best, cheap = value[place, rows], tie[place, rows]
        loser = np.minimum(best, value[k])
        loser[cost[place, rows] == cost[k]] = -np.inf
        np.maximum(second, loser, out=second)
        place[(value[k] > best) | ((value[k] == best) & (tie[k] > cheap))] = k
    return place, value[place, rows] - second


def scan(block: UtilityTable, *, low: float, high: float) -> Scan:
    """Choose at two prices, sum what both agree on, keep the questions on which they do not.

    What leads at both prices leads at every price between them.
    """
    (cheap, sure), (dear, sure_too) = _choose_at(block, (high, low))
    decided = (cheap == dear) & sure & sure_too
    return Scan(len(block), sum_cost(block.cost_of(cheap)[decided]), block.take(~decided))


def cut(merged: Scan, *, budget: float, low: float, high: float) -> Cutoff | None:
    """Find the upgrade at which buying stops; None when its price is not between the two.

    Raises InfeasibleBudget when not even the cheapest levels fit.
    """
    table = merged.undecided
    start, upgrades = envelope(table)
    limit = Fraction(budget) * merged.n_questions
    left = limit - merged.decided_cost - sum_cost(table.cost_of(start))
    if left < 0:
        if high == np.inf:
            least = float((limit - left) / merged.n_questions)
            raise InfeasibleBudget(
                f"a mean budget of {budget:.9g} is below {least:.9g}, the mean cost of every "
                "question's cheapest level: raise the budget or add a cheaper level"
            )
        return None
    tie = hash_keys(table.key)[upgrades.question]
    order = np.lexsort((upgrades.step, tie, -upgrades.ratio))
    first, spent = _afford(upgrades.extra[order], left)
    if first == len(order):
        return Cutoff(price=0.0) if low == 0.0 else None
    at = order[first]
    price = float(upgrades.ratio[at])
    if not low <= price <= high:
        return None
    _refuse_twins(upgrades, tie, order, first)
    return Cutoff(
        price=price,
        tie=int(tie[at]),
        step=int(upgrades.step[at]),
        key=int(table.key[upgrades.question[at]]),
        level=int(upgrades.level[at]),
        probability=float((left - spent) / Fraction(float(upgrades.extra[at]))),
    )


def _afford(extra: FloatArray, left: Fraction) -> tuple[int, Fraction]:
    """Count the first costs that fit into what is left, and sum them exactly."""
    units = cost_units(float(extra.max(initial=0.0)))
    counted, room = (extra * units).astype(np.int64), int(left * int(units))
    if float(extra.sum()) * units < LARGEST:
        spent, room = np.cumsum(counted), min(room, LARGEST)
    else:
        spent = np.cumsum(counted, dtype=np.object_)
    count = int(np.searchsorted(spent, room, side="right"))
    return count, Fraction(int(spent[count - 1]) if count else 0, int(units))


def _refuse_twins(upgrades: Upgrades, tie: KeyArray, order: IntArray, first: int) -> None:
    """Refuse two questions of one key at the cut: which of them to buy would be arbitrary."""
    for other in (first - 1, first + 1):
        if 0 <= other < len(order):
            a, b = order[first], order[other]
            same_rank = upgrades.ratio[a] == upgrades.ratio[b] and tie[a] == tie[b]
            if same_rank and upgrades.step[a] == upgrades.step[b]:
                raise DataError(
                    "two questions share one key and one rank: give each question a key of its own"
                )


def apply(block: UtilityTable, at: Cutoff) -> IntArray:
    """Each question's level under the cut."""
    choice, sure = _choose_at(block, (at.price,))[0]
    near = np.flatnonzero(~sure)
    if len(near):
        part = block.take(near)
        start, upgrades = envelope(part)
        tie = hash_keys(part.key)[upgrades.question]
        tied = upgrades.ratio == at.price
        first = (tie < np.uint64(at.tie)) | ((tie == np.uint64(at.tie)) & (upgrades.step < at.step))
        bought = (upgrades.ratio > at.price) | (tied & first)
        choice[near] = start
        choice[near[upgrades.question[bought]]] = upgrades.level[bought]
    return choice
