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
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

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

if TYPE_CHECKING:
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.lookup import Lookup
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.sequential.arm_samples import OrderedSamples
    from adacompute.policies.sequential.policy import Ends

_MASK = (1 << 64) - 1

NO_LEVEL = -1
"""Level of a question before its first sample."""


@dataclass(frozen=True, eq=False)
class SampleMatrix:
    """Samples in the order in which they are drawn, (M, n): one row per question.

    ``answer`` holds answer classes, −1 if the answer could not be parsed.
    """

    answer: IntArray

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


class SampleEvidence(NamedTuple):
    """What the samples of one question say of themselves: log-odds, and weights in votes."""

    log_odds: list[float]
    weight: list[float]

    def add(self, log_odds: float, weight: float) -> None:
        """Add one sample."""
        self.log_odds.append(log_odds)
        self.weight.append(weight)

    def first(self, count: int) -> SampleEvidence:
        """Return the evidence of the first samples."""
        return SampleEvidence(self.log_odds[:count], self.weight[:count])


class SeenSamples(NamedTuple):
    """The samples of one question so far: the arm, answer and evidence of each."""

    arm: Sequence[int]
    answer: Sequence[int]
    evidence: SampleEvidence


class PreparedKind(Enum):
    """What a policy keeps of the features of a question."""

    NOTHING = "nothing"
    CELL = "cell"
    LEVELS = "levels"
    FEATURES = "features"


class Policy:
    """Decides which level each question should reach next, at a price.

    A policy derives from this class. ``levels`` are those to choose from, by number of samples; of
    several arms, one arm after another. The other members say what code that carries decisions out
    needs to know, and have defaults for a policy of one arm that sees only votes.
    """

    name: str = ""
    levels: tuple[Level, ...]

    arms: tuple[str, ...] = ()
    """Names of the arms, if the policy sees arms and the confidence of samples."""

    sample_cost: tuple[float, ...] = ()
    """Mean cost of a sample of each of the arms."""

    confidence: Confidence | None = None
    """What samples say of themselves, if the policy sees it; votes are then weighted by it."""

    pooled: Policy | None = None
    """The policy for questions whose text is not known; None if this one decides about them."""

    schedule: PriceSchedule | None = None
    """Prices of the settings of the policy, if it has settings."""

    takes_all: bool = False
    """Whether samples are taken that can no longer change the answer."""

    needs_choice: bool = True
    """Whether a single level leaves nothing to decide."""

    @property
    def max_by_arm(self) -> tuple[int, ...]:
        """Largest number of samples of each of the arms, if decisions depend on them one by one."""
        return ()

    @property
    def prepared(self) -> PreparedKind:
        """What ``prepare_features`` keeps; a cell is the first of the numbers."""
        return PreparedKind.FEATURES

    @property
    def n_cells(self) -> int:
        """Cells that questions are in, if ``prepared`` is a cell."""
        return 0

    @property
    def decides_once(self) -> bool:
        """Whether the first decision, before there are samples, is the last."""
        return False

    @property
    def is_stepped(self) -> bool:
        """Whether there are no settings between those of the schedule."""
        return False

    @property
    def is_index_rule(self) -> bool:
        """Whether a decision compares the price with one number per vote state."""
        return False

    @property
    def highest_price(self) -> float:
        """Price of a sample above which an index rule draws one sample."""
        return 0.0

    @property
    def max_samples(self) -> int:
        """Largest number of samples of a question."""
        return max(level.n_samples for level in self.levels)

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        del level
        return 0

    def plans_for(self, max_rounds: int | None) -> bool:
        """Whether decisions are meant for so many rounds; None means any number."""
        del max_rounds
        return True

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return what decisions need of the features; it is called once per question."""
        return features[:, :0]

    def describe_text(self, prepared: Float32Array) -> FloatArray:
        """Return what the policy knows of the text of questions, (N, D), from prepared features."""
        return np.zeros((len(prepared), 0))

    def prepare_plan(self, features: Float32Array) -> npt.NDArray[Any]:
        """Return what first decisions need of the features, (N, width), at any price."""
        return self.prepare_features(features)

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question; the current level means stop.

        Policies that see arms decide by ``next_level`` instead.
        """
        raise NotImplementedError(f"{type(self).__name__} has no decide")

    def next_level(
        self, seen: SeenSamples, *, price: float, key: int, cell: int, rounds_left: int
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop.

        It is the decision about one question by a policy that sees arms and evidence.
        """
        raise NotImplementedError(f"{type(self).__name__} does not see arms")

    def first_levels(
        self, price: float, prepared: npt.NDArray[Any], keys: KeyArray
    ) -> IntArray | None:
        """Return the first level of each question from its plan; None if it must be asked."""
        del price, prepared, keys
        return None

    def make_lookup(self) -> Lookup | None:
        """Return what decides about one question at a time without arrays, None if it cannot."""
        return None

    def list_uniform(self) -> list[tuple[int, str | None]]:
        """Return the number of samples and the arm of each setting that is uniform."""
        return []

    def find_ends(
        self, samples: OrderedSamples, cell: IntArray, latency_s: FloatArray | None = None
    ) -> Ends:
        """Return where each order of samples ends at each price of the schedule.

        Only a policy with ``max_by_arm`` can say it. ``latency_s`` (M, W) is how long each sample
        takes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no positions")

    def mean_samples(self, prices: FloatArray) -> FloatArray | None:
        """Return the mean samples of a question in each cell at prices of a sample, (P, C).

        None if they do not follow from the policy.
        """
        del prices
        return None


class IndexRule(Protocol):
    """A policy that goes on while the price of a sample is below one number per vote state."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """One level per sample."""

    def continue_price(
        self, vote_states: IntArray, features: Float32Array, key: KeyArray
    ) -> FloatArray:
        """Return the price of a sample below which another one is drawn in vote states, (M, n)."""


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
