"""Block cutoff: where buying stops, for tables that are too long for memory.

``find_cutoff`` of ``oracle`` works on a table in memory. This module finds the same cutoff in one
pass over blocks, with a sample of the questions to begin with. The sample says between which two
upgrades buying will stop. Upgrades are ordered by ratio, tie and step, so these two can be far
apart in price or lie among millions of upgrades of equal ratio. Questions that get the same level
at both are summed up, the few others are kept, and the exact upgrade is found among them.

If the sample was misleading, the pass is repeated with a wider bracket, so the result is always
exact. This module does not know where blocks come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from adacompute.core.types import BoolArray, KeyArray, UtilityTable, hash_keys, sum_cost
from adacompute.core.upgrades import (
    Cutoff,
    Scan,
    apply_cutoff,
    apply_cutoffs,
    envelope,
    locate_cutoff,
)

SAMPLE_SIZE = 1 << 17
"""Questions from which the bracket is estimated."""

SLACKS = (4.0, 16.0)
"""Standard errors of the mean cost on both sides of the budget that brackets contain."""

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


class FoundCutoff(NamedTuple):
    """A cutoff, and the cost of all questions at the levels that it chooses."""

    cutoff: Cutoff
    cost: Fraction


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
    tie = hash_keys(sample.key)[upgrades.question]
    order = np.lexsort((upgrades.step, tie, -upgrades.ratio))
    base = float(sample.cost_of(start).mean())
    cost = base + np.cumsum(upgrades.extra_cost[order]) / len(sample)

    def cutoff_at(mean: float) -> Cutoff:
        if mean < base:
            return NOTHING
        at = int(np.searchsorted(cost, mean, side="right"))
        if at >= len(order):
            return EVERYTHING
        one = order[at]
        return Cutoff(float(upgrades.ratio[one]), int(tie[one]), int(upgrades.step[one]))

    chosen = sample.cost_of(apply_cutoff(sample, cutoff_at(budget)))
    margin = slack * float(chosen.std()) / float(np.sqrt(len(sample)))
    return Bracket(cutoff_at(budget - margin), cutoff_at(budget + margin))


def scan_bracket(block: UtilityTable, bracket: Bracket) -> Scan:
    """Apply both cutoffs, sum the cost of equal levels, and keep the other questions."""
    first, last = apply_cutoffs(block, (bracket.first, bracket.last))
    decided = first == last
    return Scan(len(block), sum_cost(block.cost_of(first)[decided]), block.take(~decided))


def find_block_cutoff(
    read_blocks: Callable[[], Iterable[UtilityTable]], sample: UtilityTable, budget: float
) -> FoundCutoff:
    """Find the cutoff of a table from its blocks; each call of ``read_blocks`` is one pass.

    ``sample`` holds some of the questions, chosen at random.
    """
    slacks = iter(SLACKS)
    while True:
        slack = next(slacks, None)
        # The bracket of all cutoffs contains every one.
        bracket = Bracket() if slack is None else estimate_bracket(sample, budget, slack)
        if (found := _try(read_blocks, bracket, budget)) is not None:
            return found


def _try(
    read_blocks: Callable[[], Iterable[UtilityTable]], bracket: Bracket, budget: float
) -> FoundCutoff | None:
    """Return the cutoff if it is in the bracket."""
    merged = Scan.merge(scan_bracket(block, bracket) for block in read_blocks())
    high, low = bracket.first.price, bracket.last.price
    cutoff = locate_cutoff(merged, budget=budget, low=low, high=high)
    if cutoff is None or not bracket.contains(cutoff):
        return None
    rest = merged.undecided
    return FoundCutoff(
        cutoff, merged.decided_cost + sum_cost(rest.cost_of(apply_cutoff(rest, cutoff)))
    )
