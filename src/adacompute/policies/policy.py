"""Policy: the interface between a decision and the code that carries it out.

A policy decides for a whole block of questions at once: at this price, given what is known about
each question and its samples so far, which level should it reach next? Returning the current level
means stop. A router ignores the samples, a stopping rule ignores the features. The price is the
only parameter that changes after training.

N questions, K levels, F features, M rows of n samples each. This module does not know where samples
come from or which answer is correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from adacompute.core import votes
from adacompute.core.states import states, vote_keys
from adacompute.core.types import (
    Float32Array,
    FloatArray,
    IntArray,
    KeyArray,
    Level,
    hash_keys,
)

_MASK = (1 << 64) - 1

NO_LEVEL = -1
"""Level of a question before its first sample."""


@dataclass(frozen=True, eq=False)
class SampleMatrix:
    """Samples in the order in which they are drawn, (M, n): one row per question.

    ``answer`` holds answer classes, −1 if the answer could not be parsed. ``logprob`` holds the
    mean log-probability of each sample, if it is known, and ``uncertainty`` that of a draft;
    unknown entries are NaN. ``arm`` and ``bin`` are the arm and the confidence bin of each sample,
    for policies that see them.
    """

    answer: IntArray
    logprob: FloatArray | None = None
    uncertainty: FloatArray | None = None
    arm: IntArray | None = None
    bin: IntArray | None = None

    @cached_property
    def tally(self) -> votes.Tally:
        """Vote counts after 0..n samples, (M, n + 1)."""
        counted = votes.tally(self.answer)

        def with_zero(column: IntArray) -> IntArray:
            padded = np.zeros((len(column), column.shape[1] + 1), dtype=column.dtype)
            padded[:, 1:] = column  # np.pad takes ten times as long for one question
            return padded

        return votes.Tally(
            leading=with_zero(counted.leading),
            runner_up=with_zero(counted.runner_up),
            n_parsed=with_zero(counted.n_parsed),
            streak=with_zero(counted.streak),
        )

    @cached_property
    def vote_keys(self) -> KeyArray:
        """Keys of the vote states after 0..n samples, (M, n + 1)."""
        return vote_keys(self.answer)


@dataclass(frozen=True, eq=False)
class ObservedSamples:
    """The samples that N questions have so far: the first ``n_samples`` of some rows of a matrix.

    It is a view. The matrix may contain later samples, which a policy must not use.
    """

    samples: SampleMatrix
    row: IntArray
    n_samples: IntArray

    @property
    def leading(self) -> IntArray:
        """Votes for the leading answer."""
        return self.samples.tally.leading[self.row, self.n_samples]

    @property
    def runner_up(self) -> IntArray:
        """Votes for the second answer."""
        return self.samples.tally.runner_up[self.row, self.n_samples]

    @property
    def n_parsed(self) -> IntArray:
        """Number of samples whose answer could be parsed."""
        return self.samples.tally.n_parsed[self.row, self.n_samples]

    @property
    def streak(self) -> IntArray:
        """Number of equal parsed answers in a row, up to the last sample."""
        return self.samples.tally.streak[self.row, self.n_samples]

    @property
    def states(self) -> IntArray:
        """Vote state of each question."""
        return states().find(self.samples.vote_keys[self.row, self.n_samples])

    def take(self, rows: IntArray) -> ObservedSamples:
        """Return these questions."""
        return ObservedSamples(self.samples, self.row[rows], self.n_samples[rows])


@dataclass(frozen=True, eq=False)
class State:
    """Everything that is known about N questions when a decision is made.

    ``key`` seeds deterministic mixing. ``features`` are those returned by ``prepare_features``.
    ``cost`` (N, K) is the cost of reaching each level from here. ``level`` is the current level of
    each question, and ``rounds_left`` is how many more times it may be sampled.
    """

    key: KeyArray
    features: Float32Array
    cost: FloatArray
    observed: ObservedSamples
    level: IntArray
    rounds_left: IntArray

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: IntArray) -> State:
        """Return these questions."""
        return State(
            key=self.key[rows],
            features=self.features[rows],
            cost=self.cost[rows],
            observed=self.observed.take(rows),
            level=self.level[rows],
            rounds_left=self.rounds_left[rows],
        )


class Policy(Protocol):
    """Decides which level each question should reach next, at a price."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels to choose from, by number of samples; of several arms, one arm after another."""

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return what decisions need of the features; it is called once per question."""

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question; the current level means stop."""


class NextLevel(Protocol):
    """Decides about one question from the arms, classes and confidence bins of its samples."""

    def __call__(
        self,
        arm: Sequence[int],
        answer: Sequence[int],
        bins: Sequence[int],
        *,
        price: float,
        key: int,
        cell: int,
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""


def decide_rows(next_level: NextLevel, state: State, price: float) -> IntArray:
    """Decide about each question of a block by a function for one question."""
    observed, level = state.observed, state.level.copy()
    samples = observed.samples
    none = np.zeros_like(samples.answer)
    arm = none if samples.arm is None else samples.arm
    bins = none if samples.bin is None else samples.bin
    for i, (row, n) in enumerate(
        zip(observed.row.tolist(), observed.n_samples.tolist(), strict=True)
    ):
        found = next_level(
            arm[row, :n].tolist(),
            samples.answer[row, :n].tolist(),
            bins[row, :n].tolist(),
            price=price,
            key=int(state.key[i]),
            cell=int(state.features[i, 0]) if state.features.shape[1] else 0,
        )
        if found is not None:
            level[i] = found[0]
    return level


def mixing_uniform(key: KeyArray) -> FloatArray:
    """Return a pseudo-random number in [0, 1) for each question that depends only on its key."""
    salted = hash_keys(hash_keys(key))  # a single hash is what the oracle breaks ties by
    return np.asarray((salted >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def mixing_uniform_of(key: int) -> float:
    """Return the number of ``mixing_uniform`` for one question, without arrays.

    >>> bool(mixing_uniform_of(7) == mixing_uniform(np.array([7], dtype=np.uint64))[0])
    True
    """
    for _ in range(2):
        key = (key + 0x9E3779B97F4A7C15) & _MASK
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
        key ^= key >> 31
    return (key >> 11) * 2.0**-53
