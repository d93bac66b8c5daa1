"""Block cutoff: where buying stops, found from blocks of questions.

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
from typing import NamedTuple

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
from adacompute.core.upgrades import Cutoff, Upgrades, apply_cutoff, apply_cutoffs, envelope

SAMPLE_SIZE = 1 << 17
"""Questions from which the bracket is estimated."""

SLACKS = (4.0, 16.0)
"""Standard errors of the mean cost on both sides of the budget that brackets contain."""

MAX_INT_SUM = 2**62
"""Sums up to this value fit into 64 bits, even if the estimate of the sum is rounded."""

NOTHING, EVERYTHING = Cutoff(price=np.inf), Cutoff(price=0.0)
"""Cutoffs at which no upgrade is bought, and all are."""


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
        return EVERYTHING if at >= len(order) else upgrades.cutoff_before(int(order[at]))

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

    Raises InfeasibleBudget if not even the cheapest levels fit.
    """
    table = scanned.undecided
    start, upgrades = envelope(table)
    limit = Fraction(budget) * scanned.n_questions
    left = limit - scanned.decided_cost - sum_cost(table.cost_of(start))
    if left < 0:
        if bracket.first == NOTHING:
            raise infeasible(budget, float((limit - left) / scanned.n_questions))
        return None
    order = upgrades.order()
    n_bought, spent = _afford(upgrades.extra_cost[order], left)
    if n_bought == len(order):
        return EVERYTHING if bracket.last == EVERYTHING else None
    at = int(order[n_bought])
    cutoff = upgrades.cutoff_before(at)
    if not bracket.contains(cutoff):
        return None
    _reject_equal_keys(upgrades, order, n_bought)
    return replace(
        cutoff,
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


def _reject_equal_keys(upgrades: Upgrades, order: IntArray, at: int) -> None:
    """Raise DataError if two questions with one key are tied at the cutoff: neither comes first."""
    for other in (at - 1, at + 1):
        if 0 <= other < len(order):
            one, two = (upgrades.cutoff_before(int(order[i])) for i in (at, other))
            if one == two:
                raise DataError("two questions have the same key: give each question its own key")


def find_block_cutoff(
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
