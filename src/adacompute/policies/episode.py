"""Episode: the state machine around a policy, for a block of questions.

start → decide → feed draws → decide … → stopped. Replay on recorded samples, the gateway (one
question) and batch (blocks) drive this same machine; it makes every decision there is. It is pure:
it asks for draws and is given them, and does not know who draws them or what they cost in the end.

A level of another model than the first is a last resort: its draws answer alone, whatever was drawn
before, and end the question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core import votes
from adacompute.core.errors import DataError
from adacompute.policies.policy import (
    NO_LEVEL,
    ObservedSamples,
    Policy,
    SampleMatrix,
    State,
    answers_alone,
)

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, Float32Array, FloatArray, IntArray, KeyArray

UNLIMITED_ROUNDS = 1 << 30
FIRST_SEEN, LOGPROB = "first", "logprob"
TIE_BREAKS = (FIRST_SEEN, LOGPROB)
"""Who wins where votes are equal: the answer seen first, or the likeliest one."""


@dataclass(frozen=True, eq=False)
class Episode:
    """N questions on their way: what is known of them, and which of them are still open.

    ``cost`` (N, K) is what each level costs from nothing; ``target`` is how many samples each
    active question should have before the next decision. ``level_samples`` is the number of samples
    of each level, and ``apart`` marks the last resorts.
    """

    policy: Policy
    price: float
    state: State
    cost: FloatArray
    active: IntArray
    target: IntArray
    level_samples: IntArray
    apart: BoolArray

    @staticmethod
    def start(
        policy: Policy,
        price: float,
        *,
        key: KeyArray,
        features: Float32Array,
        cost: FloatArray,
        samples: SampleMatrix,
        max_rounds: int = UNLIMITED_ROUNDS,
    ) -> Episode:
        """Begin with no draws. Row i of the record belongs to question i.

        The features are those that the policy has digested.
        """
        size = len(key)
        none = np.zeros(size, dtype=np.int64)
        state = State(
            key=key,
            features=features,
            cost=cost,
            observed=ObservedSamples(samples, np.arange(size), none),
            level=np.full(size, NO_LEVEL, dtype=np.int64),
            rounds_left=np.full(size, max_rounds, dtype=np.int64),
        )
        level_samples = np.array([level.n_samples for level in policy.levels])
        apart = answers_alone(policy.levels)
        return Episode(policy, price, state, cost, np.arange(size), none, level_samples, apart)

    def repeat(self, times: int) -> Episode:
        """Let every question go on several times over, on as many rows of the record each.

        Before the first draw nothing tells them apart, so that decision is made once for all.
        """
        if len(self.active) != len(self.state) or self.state.observed.n_samples.any():
            raise DataError("only an episode without draws can be repeated")
        again = np.repeat(np.arange(len(self.state)), times)
        state = self.state.take(again)
        rows = ObservedSamples(
            state.observed.samples, np.arange(len(again)), state.observed.n_samples
        )
        return replace(
            self,
            state=replace(state, observed=rows),
            cost=self.cost[again],
            active=np.arange(len(again)),
            target=self.target[again],
        )

    def decide(self) -> Episode:
        """Decide on every open question; those that stop are closed."""
        if not len(self.active):
            return self
        state = self.state.take(self.active)
        level = self.policy.decide(state, self.price)
        goes_on = (level > state.level) & (state.rounds_left > 0)
        at = self.state.level.copy()
        at[self.active[goes_on]] = level[goes_on]
        target = self.state.observed.n_samples.copy()
        rows, level = self.active[goes_on], level[goes_on]
        target[rows] = target[rows] * self.apart[level] + self.level_samples[level]
        moved = replace(self.state, level=at)
        return replace(self, state=moved, active=rows, target=target)

    @property
    def resorted(self) -> BoolArray:
        """Which questions are at a level whose draws answer alone."""
        return np.asarray(
            self.apart[self.state.level] & (self.state.level != NO_LEVEL), dtype=np.bool_
        )

    def feed(self, samples: SampleMatrix) -> Episode:
        """Take the draws that were target: ``samples`` holds all draws so far, row by question.

        After those of a last resort there is nothing to decide.
        """
        if samples.answer.shape[1] < int(self.target.max(initial=0)):
            raise DataError(
                f"{int(self.target.max())} samples are needed, got {samples.answer.shape[1]}"
            )
        size = self.state.observed.n_samples.copy()
        size[self.active] = self.target[self.active]
        rounds = self.state.rounds_left.copy()
        rounds[self.active] -= 1
        here = np.where(
            self.state.level >= 0,
            np.take_along_axis(self.cost, np.maximum(self.state.level, 0)[:, None], axis=1)[:, 0],
            0.0,
        )
        state = replace(
            self.state,
            observed=ObservedSamples(samples, self.state.observed.row, size),
            cost=np.where(self.apart, self.cost, np.maximum(0.0, self.cost - here[:, None])),
            rounds_left=rounds,
        )
        return replace(self, state=state, active=self.active[~self.resorted[self.active]])

    def winner(self, *, tie_break: str = FIRST_SEEN) -> IntArray:
        """Draw that answers each question: the first of its leading class, −1 when none is read.

        Where another model was resorted to, its draws alone vote. ``tie_break`` says who wins: the
        first seen, or the likeliest where log-probabilities are recorded.
        """
        observed = self.state.observed
        answer = observed.samples.answer[observed.row]
        first = np.where(
            self.resorted, observed.n_samples - self.level_samples[self.state.level], 0
        )
        place = np.arange(answer.shape[1])
        seen = (place >= first[:, None]) & (place < observed.n_samples[:, None])
        logprob = observed.samples.logprob if tie_break == LOGPROB else None
        logprob = None if logprob is None else np.where(seen, logprob[observed.row], -np.inf)
        return votes.winner(np.where(seen, answer, -1), logprob=logprob)


def run_episode(episode: Episode) -> Episode:
    """Run a decided episode to its end on draws that were recorded before."""
    while len(episode.active):
        episode = episode.feed(episode.state.observed.samples).decide()
    return episode
