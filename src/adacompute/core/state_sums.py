"""State sums: how often groups of questions reach each vote state, in flat memory.

The measure of one question is a table of all vote states. A fit needs only sums of these tables
over groups of questions, so questions are measured in blocks and added up. Questions whose answers
have the same counts have the same measure, which is computed once: 100,000 questions of 16 samples
have a few thousand different ones.

This module does not know what the groups are.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import Answers, ClassCounts
from adacompute.core.states import (
    BLOCK_SIZE,
    StateMeasure,
    States,
    measure_counts,
    states,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

MAX_CACHED = 4 * BLOCK_SIZE
"""Different questions whose measures are kept from one sum to the next, at 54 kB each."""

NO_GROUP = -1
"""Group of a question that belongs to none."""


@dataclass(frozen=True, eq=False)
class StateSums:
    """Sums of the state measures of N questions over groups of them."""

    answers: Answers
    max_samples: int

    @cached_property
    def _kinds(self) -> tuple[ClassCounts, IntArray]:
        """The counts of different questions; the kind of each."""
        return self.answers.count_kinds()

    @cached_property
    def _cached(self) -> list[StateMeasure]:
        return list(self._measure_blocks())

    def _measure_blocks(self) -> Iterator[StateMeasure]:
        counts, _ = self._kinds
        for start in range(0, len(counts.n_samples), BLOCK_SIZE):
            block = counts.take(slice(start, start + BLOCK_SIZE))
            yield measure_counts(block, self.max_samples, self.reached)

    @cached_property
    def reached(self) -> IntArray:
        """States that some question can reach; the states before them are among them."""
        (count, _, unparsed), _ = self._kinds
        table, largest = states(), np.zeros(self.max_samples, dtype=np.int64)
        n_states = int(table.first[self.max_samples + 1])
        largest[: count.shape[1]] = count.max(axis=0)[: self.max_samples]
        padded = np.zeros((n_states, self.max_samples), dtype=np.int64)
        for i, votes in enumerate(table.votes[:n_states]):
            padded[i, : len(votes)] = votes
        fits = (padded <= largest).all(axis=1)
        return np.flatnonzero(fits & (table.n_unparsed[:n_states] <= unparsed.max(initial=0)))

    @cached_property
    def table(self) -> States:
        """The states that some question can reach."""
        return states().restrict(self.reached)

    def expand(self, table: FloatArray) -> FloatArray:
        """Return a table of the reached states as one of all states, with zeros for the others."""
        every = np.zeros((int(states().first[self.max_samples + 1]), table.shape[1]))
        every[self.reached] = table
        return every

    def sum(self, groups: Sequence[IntArray], sizes: Sequence[int]) -> list[StateMeasure]:
        """Return the sums over groups of questions, one measure (states, size) per assignment.

        ``groups`` are assignments of the questions to groups 0, 1, …, size − 1; NO_GROUP leaves a
        question out. The states are those of ``table``.
        """
        counts, kind = self._kinds
        n_kinds = len(counts.n_samples)
        first = np.concatenate([[0], np.cumsum(sizes)])
        weight = np.zeros((n_kinds, int(first[-1])))
        for group, start in zip(groups, first, strict=False):
            rows = np.flatnonzero(group != NO_GROUP)
            np.add.at(weight, (kind[rows], start + group[rows]), 1.0)
        mass, correct = (np.zeros((len(self.reached), weight.shape[1])) for _ in range(2))
        blocks = self._cached if n_kinds <= MAX_CACHED else self._measure_blocks()
        for i, block in enumerate(blocks):
            part = slice(i * BLOCK_SIZE, (i + 1) * BLOCK_SIZE)
            mass += block.mass @ weight[part]
            correct += block.correct_mass @ weight[part]
        total = StateMeasure(mass, correct)
        columns = [slice(a, b) for a, b in itertools.pairwise(first.tolist())]
        return [total.map(operator.itemgetter((slice(None), part))) for part in columns]
