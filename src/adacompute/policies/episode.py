"""Episode: the state machine that runs a policy on a block of questions.

start → decide → feed samples → decide … → done. Replay on recorded samples, the gateway (one
question at a time) and batch runs (blocks) all drive this machine, so every decision is made here.
It does no I/O: it says how many samples it needs and receives them. It does not know who draws them
or what they finally cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import DataError
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, Policy, SampleMatrix, State

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray

UNLIMITED_ROUNDS = 1 << 30


def start_state(
    *,
    key: KeyArray,
    features: Float32Array,
    cost: FloatArray,
    samples: SampleMatrix,
    max_rounds: int = UNLIMITED_ROUNDS,
) -> State:
    """Return the state of questions without samples. Row i of ``samples`` belongs to question i.

    ``features`` are those returned by the policy's ``prepare_features``.
    """
    size = len(key)
    return State(
        key=key,
        features=features,
        cost=cost,
        observed=ObservedSamples(samples, np.arange(size), np.zeros(size, dtype=np.int64)),
        level=np.full(size, NO_LEVEL, dtype=np.int64),
        rounds_left=np.full(size, max_rounds, dtype=np.int64),
    )


@dataclass(frozen=True, eq=False)
class Episode:
    """The current state of N questions, and which of them are still active.

    ``cost`` (N, K) is the cost of each level from the start. ``active`` holds the rows of active
    questions. ``target`` is how many samples each active question should have before the next
    decision. ``level_samples`` is the number of samples of each level.
    """

    policy: Policy
    price: float
    state: State
    cost: FloatArray
    active: IntArray
    target: IntArray
    level_samples: IntArray

    @staticmethod
    def start(policy: Policy, price: float, state: State) -> Episode:
        """Start where no question has samples yet."""
        level_samples = np.array([level.n_samples for level in policy.levels])
        rows, none = np.arange(len(state)), state.observed.n_samples
        return Episode(policy, price, state, state.cost, rows, none, level_samples)

    def repeat(self, times: int) -> Episode:
        """Repeat every question ``times`` times, each on its own row of the samples.

        All repetitions share the first decision, which does not depend on samples.
        """
        if len(self.active) != len(self.state) or self.state.observed.n_samples.any():
            raise DataError("an episode that has samples cannot be repeated")
        rows = np.repeat(np.arange(len(self.state)), times)
        state = self.state.take(rows)
        observed = replace(state.observed, row=np.arange(len(rows)))
        return replace(
            self,
            state=replace(state, observed=observed),
            cost=self.cost[rows],
            active=np.arange(len(rows)),
            target=self.target[rows],
        )

    def decide(self) -> Episode:
        """Decide for every active question; those that stop are no longer active."""
        if not len(self.active):
            return self
        state = self.state.take(self.active)
        next_level = self.policy.decide(state, self.price)
        goes_on = (next_level > state.level) & (state.rounds_left > 0)
        active, next_level = self.active[goes_on], next_level[goes_on]
        level = self.state.level.copy()
        level[active] = next_level
        target = self.state.observed.n_samples.copy()
        target[active] = self.level_samples[next_level]
        return replace(self, state=replace(self.state, level=level), active=active, target=target)

    def feed(self, samples: SampleMatrix) -> Episode:
        """Accept the samples that were needed: ``samples`` holds all samples so far."""
        if samples.answer.shape[1] < int(self.target.max(initial=0)):
            raise DataError(
                f"{int(self.target.max())} samples are needed, got {samples.answer.shape[1]}"
            )
        n_samples = self.state.observed.n_samples.copy()
        n_samples[self.active] = self.target[self.active]
        rounds = self.state.rounds_left.copy()
        rounds[self.active] -= 1
        spent = np.where(
            self.state.level >= 0,
            np.take_along_axis(self.cost, np.maximum(self.state.level, 0)[:, None], axis=1)[:, 0],
            0.0,
        )
        state = replace(
            self.state,
            observed=ObservedSamples(samples, self.state.observed.row, n_samples),
            cost=np.maximum(0.0, self.cost - spent[:, None]),
            rounds_left=rounds,
        )
        return replace(self, state=state)


def run_episode(episode: Episode) -> Episode:
    """Run an episode to its end on recorded samples, after its first decision."""
    while len(episode.active):
        episode = episode.feed(episode.state.observed.samples).decide()
    return episode
