"""Cutoff: where buying stops, found from blocks of questions, and the levels that are bought.

Blocks are merged in any order to the same answer, so a table never has to be in memory as a whole.
A long table takes one pass, with a sample of the questions to begin with. The sample says between
which two upgrades buying will stop. Upgrades are ordered by ratio, tie and step, so these two can
be far apart in price or lie among millions of upgrades of equal ratio. Questions that get the same
level at both are summed up, the few others are kept, and the exact upgrade is found among them.

If the sample was misleading, the pass is repeated with a wider bracket, so the result is always
exact. This module does not know where blocks come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.core.allocation.upgrades import Upgrades, envelope
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
    import numpy.typing as npt

BLOCK_SIZE = 1 << 14
"""Questions per block: their utilities fit into the cache of one core."""

ROUNDING_TOLERANCE = 2.0**-46
"""Net values closer than this, relative to their terms, may be in the wrong order by rounding."""

BUDGET_TOLERANCE = 1e-9
"""Part of a budget by which it may be below the minimum cost: sums in floating point differ."""

SAMPLE_SIZE = 1 << 17
"""Questions from which the bracket is estimated."""

SLACKS = (4.0, 16.0)
"""Standard errors of the mean cost on both sides of the budget that brackets contain."""

MAX_INT_SUM = 2**62
"""Sums up to this value fit into 64 bits, even if the estimate of the sum is rounded."""


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


NOTHING, EVERYTHING = Cutoff(price=np.inf), Cutoff(price=0.0)
"""Cutoffs at which no upgrade is bought, and all are."""


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


@dataclass(frozen=True)
class Bracket:
    """Two cutoffs: less is bought under ``first`` than under ``last``."""

    first: Cutoff = NOTHING
    last: Cutoff = EVERYTHING

    def contains(self, cutoff: Cutoff) -> bool:
        """Whether a cutoff is between the two, or one of them."""
        return _rank(self.first) <= _rank(cutoff) <= _rank(self.last)


class Scan(NamedTuple):
    """One pass: the cost of questions whose level is the same in a bracket, and the others."""

    n_questions: int
    decided_cost: Fraction
    undecided: UtilityTable


class FoundCutoff(NamedTuple):
    """A cutoff, and the pass that found it."""

    cutoff: Cutoff
    scanned: Scan

    @property
    def cost(self) -> Fraction:
        """Cost of all questions at the levels that the cutoff chooses."""
        rest = self.scanned.undecided
        return self.scanned.decided_cost + sum_cost(rest.cost_of(apply_cutoff(rest, self.cutoff)))


def _rank(cutoff: Cutoff) -> tuple[float, int, int]:
    """Return the place of a cutoff in the order of upgrades."""
    return -cutoff.price, cutoff.tie, cutoff.step


def cutoff_before(upgrades: Upgrades, at: int) -> Cutoff:
    """Return the cutoff of what comes before an upgrade in the order of upgrades."""
    return Cutoff(float(upgrades.ratio[at]), int(upgrades.tie[at]), int(upgrades.step[at]))


def is_sampled(key: KeyArray, n_questions: int) -> BoolArray:
    """Return which questions are in the sample: about ``SAMPLE_SIZE``, by the hash of their keys.

    It is another hash than the one that breaks ties.
    """
    if n_questions <= SAMPLE_SIZE:
        return np.ones(len(key), dtype=np.bool_)
    limit = np.uint64(int(2**64 * (SAMPLE_SIZE / n_questions)))
    return np.asarray(hash_keys(hash_keys(key)) < limit)


def estimate_bracket(sample: UtilityTable, budget: float, slack: float) -> Bracket:
    """Return the cutoffs at the budget minus and plus some standard errors of the mean cost."""
    start, upgrades = envelope(sample)
    order = upgrades.order()
    base = float(sample.cost_of(start).mean())
    cost = base + np.cumsum(upgrades.extra_cost[order]) / len(sample)

    def cutoff_at(mean: float) -> Cutoff:
        if mean < base:
            return NOTHING
        at = int(np.searchsorted(cost, mean, side="right"))
        return EVERYTHING if at >= len(order) else cutoff_before(upgrades, int(order[at]))

    chosen = sample.cost_of(apply_cutoff(sample, cutoff_at(budget)))
    margin = slack * float(chosen.std()) / float(np.sqrt(len(sample)))
    return Bracket(cutoff_at(budget - margin), cutoff_at(budget + margin))


def scan(blocks: Iterable[UtilityTable], bracket: Bracket) -> Scan:
    """Apply both cutoffs, sum the cost of equal levels, and keep the other questions.

    A level that is best at both is best at every cutoff between them.
    """
    n_questions, decided_cost, undecided = 0, Fraction(0), []
    for block in blocks:
        first, last = apply_cutoffs(block, (bracket.first, bracket.last))
        decided = first == last
        n_questions += len(block)
        decided_cost += sum_cost(block.cost_of(first)[decided])
        undecided.append(block.take(~decided))
    return Scan(n_questions, decided_cost, join_tables(undecided))


def locate_cutoff(scanned: Scan, budget: float, bracket: Bracket) -> Cutoff | None:
    """Find the upgrade at which buying stops; None if it is not in the bracket.

    Raises InfeasibleBudget if not even the cheapest levels fit, but for rounding.
    """
    table = scanned.undecided
    start, upgrades = envelope(table)
    limit = Fraction(budget) * scanned.n_questions
    least = scanned.decided_cost + sum_cost(table.cost_of(start))
    left = limit - least
    if left < 0 and bracket.first == NOTHING:
        check_feasible(budget, float(least / scanned.n_questions))
        left = Fraction(0)  # the budget is the minimum cost, but for rounding
    if left < 0:
        return None
    order = upgrades.order()
    n_bought, spent = _afford(upgrades.extra_cost[order], left)
    if n_bought == len(order):
        return EVERYTHING if bracket.last == EVERYTHING else None
    at = int(order[n_bought])
    cutoff = cutoff_before(upgrades, at)
    if not bracket.contains(cutoff):
        return None
    _reject_equal_keys(upgrades, order, n_bought)
    return replace(
        cutoff,
        key=int(table.key[upgrades.question[at]]),
        level=int(upgrades.level[at]),
        probability=float((left - spent) / Fraction(float(upgrades.extra_cost[at]))),
    )


def check_feasible(budget: float, min_cost: float) -> None:
    """Refuse a budget below the mean cost of every question's cheapest level."""
    if budget < min_cost * (1 - BUDGET_TOLERANCE):
        raise InfeasibleBudget(
            f"a mean budget of {budget:.9g} is below {min_cost:.9g}, the mean cost of every "
            "question's cheapest level: raise the budget or add a cheaper level"
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


def _reject_equal_keys(upgrades: Upgrades, order: IntArray, at: int) -> None:
    """Raise DataError if two questions with one key are tied at the cutoff: neither comes first."""
    for other in (at - 1, at + 1):
        if 0 <= other < len(order):
            one, two = (cutoff_before(upgrades, int(order[i])) for i in (at, other))
            if one == two:
                raise DataError("two questions have the same key: give each question its own key")


def find_cutoff(
    read_blocks: Callable[[], Iterable[UtilityTable]], sample: UtilityTable | None, budget: float
) -> FoundCutoff:
    """Find the cutoff of a table from its blocks; each call of ``read_blocks`` is one pass.

    ``sample`` holds some of the questions, chosen at random; without it all questions are kept.
    """
    slacks = iter(SLACKS)
    while True:
        # The bracket of all cutoffs contains every one.
        bracket = Bracket()
        if sample is not None and (slack := next(slacks, None)) is not None:
            bracket = estimate_bracket(sample, budget, slack)
        scanned = scan(read_blocks(), bracket)
        if (cutoff := locate_cutoff(scanned, budget, bracket)) is not None:
            return FoundCutoff(cutoff, scanned)
