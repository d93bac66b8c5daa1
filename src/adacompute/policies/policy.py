"""Policy: the one seam between deciding and everything that carries a decision out.

A policy answers one question for a whole block of questions at once: at this price, given what is
known of each question and the draws so far, which level should it reach next? The level it is at
means stop. A router ignores the draws, a stopping rule ignores the features, and the price is the
only dial.

N questions, K levels, F features, M records of n draws each. Nothing here knows where draws come
from, or that there is a right answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from adacompute.core import votes
from adacompute.core.states import states, vote_keys
from adacompute.core.types import (
    BoolArray,
    Float32Array,
    FloatArray,
    IntArray,
    KeyArray,
    Level,
    hash_keys,
)

NO_LEVEL = -1
"""Where a question is before its first draw."""


def answers_alone(levels: tuple[Level, ...]) -> BoolArray:
    """Which levels are of another model than the first: their draws answer without the others.

    Such a level is a last resort. Its draws come after those made before, and nothing comes after.
    """
    return np.array([level.model != levels[0].model for level in levels])


@dataclass(frozen=True, eq=False)
class SampleMatrix:
    """Draws in the order in which they were made, (M, n); −1 is an unreadable answer.

    Tokens and mean log-probabilities are given where they are known, NaN or None where not.
    """

    answer: IntArray
    tokens: FloatArray | None = None
    logprob: FloatArray | None = None

    @cached_property
    def tally(self) -> votes.Tally:
        """Votes after 0..n draws, (M, n + 1), counted once for every view of this record."""
        counted = votes.tally(self.answer)

        def with_none(column: IntArray) -> IntArray:
            return np.pad(column, ((0, 0), (1, 0)))

        return votes.Tally(
            leading=with_none(counted.leading),
            runner_up=with_none(counted.runner_up),
            n_parsed=with_none(counted.n_parsed),
            streak=with_none(counted.streak),
        )

    @cached_property
    def vote_keys(self) -> KeyArray:
        """Keys of the vote states after 0..n draws, (M, n + 1)."""
        return vote_keys(self.answer)


@dataclass(frozen=True, eq=False)
class ObservedSamples:
    """The first ``n_samples`` samples in some rows of a matrix: those that N questions have seen.

    A view: the rest of the record is not copied, and is not to be looked at.
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
        """Draws with a readable answer."""
        return self.samples.tally.n_parsed[self.row, self.n_samples]

    @property
    def streak(self) -> IntArray:
        """Equal readable answers in a row, up to now."""
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
    """What is known of N questions when a decision is due.

    ``key`` seeds deterministic mixing; ``features`` are as the policy digested them; ``cost``
    (N, K) is what each level costs from here on; ``level`` is the level each question is at;
    ``rounds_left`` how often it may still be drawn for.
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
    """Which level each question should reach next, at a price."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels it chooses from, by rising number of samples; those of another model last."""

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep what its decisions need of the features, worked out once a question."""

    def decide(self, state: State, price: float) -> IntArray:
        """Choose a level for each question; the one it is at means stop."""


def mixing_uniform(key: KeyArray) -> FloatArray:
    """Draw a number from [0, 1) for each question that depends on its key alone."""
    salted = hash_keys(hash_keys(key))  # once is what the oracle breaks its ties by
    return np.asarray((salted >> np.uint64(11)) * 2.0**-53, dtype=np.float64)
