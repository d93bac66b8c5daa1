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
    Record,
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

    ``cost`` (N, K) is what each level costs from nothing; ``wanted`` is how many samples each open
    question should have before the next decision. ``samples`` and ``apart`` are of the levels: how
    many they draw, and which are last resorts.
    """

    policy: Policy
    price: float
    state: State
    cost: FloatArray
    open: IntArray
    wanted: IntArray
    samples: IntArray
    apart: BoolArray

    @staticmethod
    def start(
        policy: Policy,
        price: float,
        *,
        key: KeyArray,
        features: Float32Array,
        cost: FloatArray,
        record: Record,
        rounds: int = UNLIMITED_ROUNDS,
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
            draws=ObservedSamples(record, np.arange(size), none),
            level=np.full(size, NO_LEVEL, dtype=np.int64),
            rounds_left=np.full(size, rounds, dtype=np.int64),
        )
        samples = np.array([level.samples for level in policy.levels])
        apart = answers_alone(policy.levels)
        return Episode(policy, price, state, cost, np.arange(size), none, samples, apart)

    def repeat(self, times: int) -> Episode:
        """Let every question go on several times over, on as many rows of the record each.

        Before the first draw nothing tells them apart, so that decision is made once for all.
        """
        if len(self.open) != len(self.state) or self.state.draws.size.any():
            raise DataError("only an episode without draws can be repeated")
        again = np.repeat(np.arange(len(self.state)), times)
        state = self.state.take(again)
        rows = ObservedSamples(state.draws.record, np.arange(len(again)), state.draws.size)
        return replace(
            self,
            state=replace(state, draws=rows),
            cost=self.cost[again],
            open=np.arange(len(again)),
            wanted=self.wanted[again],
        )

    def decide(self) -> Episode:
        """Decide on every open question; those that stop are closed."""
        if not len(self.open):
            return self
        state = self.state.take(self.open)
        level = self.policy.decide(state, self.price)
        goes_on = (level > state.level) & (state.rounds_left > 0)
        at = self.state.level.copy()
        at[self.open[goes_on]] = level[goes_on]
        wanted = self.state.draws.size.copy()
        rows, level = self.open[goes_on], level[goes_on]
        wanted[rows] = wanted[rows] * self.apart[level] + self.samples[level]
        moved = replace(self.state, level=at)
        return replace(self, state=moved, open=rows, wanted=wanted)

    @property
    def resorted(self) -> BoolArray:
        """Which questions are at a level whose draws answer alone."""
        return np.asarray(
            self.apart[self.state.level] & (self.state.level != NO_LEVEL), dtype=np.bool_
        )

    def feed(self, record: Record) -> Episode:
        """Take the draws that were wanted: ``record`` holds all draws so far, row by question.

        After those of a last resort there is nothing to decide.
        """
        if record.answer.shape[1] < int(self.wanted.max(initial=0)):
            raise DataError(
                f"{int(self.wanted.max())} draws were wanted and {record.answer.shape[1]} are given"
            )
        size = self.state.draws.size.copy()
        size[self.open] = self.wanted[self.open]
        rounds = self.state.rounds_left.copy()
        rounds[self.open] -= 1
        here = np.where(
            self.state.level >= 0,
            np.take_along_axis(self.cost, np.maximum(self.state.level, 0)[:, None], axis=1)[:, 0],
            0.0,
        )
        state = replace(
            self.state,
            draws=ObservedSamples(record, self.state.draws.row, size),
            cost=np.where(self.apart, self.cost, np.maximum(0.0, self.cost - here[:, None])),
            rounds_left=rounds,
        )
        return replace(self, state=state, open=self.open[~self.resorted[self.open]])

    def winner(self, *, ties: str = FIRST_SEEN) -> IntArray:
        """Draw that answers each question: the first of its leading class, −1 when none is read.

        Where another model was resorted to, its draws alone vote. ``ties`` is who wins one: the
        first seen, or the likeliest where log-probabilities are recorded.
        """
        draws = self.state.draws
        answer = draws.record.answer[draws.row]
        first = np.where(self.resorted, draws.size - self.samples[self.state.level], 0)
        place = np.arange(answer.shape[1])
        seen = (place >= first[:, None]) & (place < draws.size[:, None])
        logprob = draws.record.logprob if ties == LOGPROB else None
        logprob = None if logprob is None else np.where(seen, logprob[draws.row], -np.inf)
        return votes.winner(np.where(seen, answer, -1), logprob=logprob)


def play(episode: Episode) -> Episode:
    """Run a decided episode to its end on draws that were recorded before."""
    while len(episode.open):
        episode = episode.feed(episode.state.draws.record).decide()
    return episode
