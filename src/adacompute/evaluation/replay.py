"""Replay: policies run on recorded samples, in many random orders of each question's samples.

Every policy sees the same orders, so that differences between policies are not noise of the
orders. Decisions are made by the episodes that also serve; only the draws come from the record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, order_samples
from adacompute.core.errors import DataError
from adacompute.core.states import states
from adacompute.core.votes import running_accuracy
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode
from adacompute.policies.policy import Policy, SampleMatrix, answers_alone

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.pool import Pool


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Means over the orders of each question, (N,), and the variance of two of them.

    ``resorted`` is the share of orders in which another model was asked in the end.
    """

    cost: FloatArray
    accuracy: FloatArray
    samples: FloatArray
    rounds: FloatArray
    cost_spread: FloatArray
    accuracy_spread: FloatArray
    resorted: FloatArray


@dataclass(frozen=True, eq=False)
class Replay:
    """Orders of a pool's samples, long enough for the largest level, and how often one may draw.

    ``ordered`` holds the orders where they were drawn before; else the seed draws them.
    """

    pool: Pool
    orders: int
    length: int
    seed: int = 0
    rounds: int = UNLIMITED_ROUNDS
    ordered: IntArray | None = None

    def take(self, rows: IntArray) -> Replay:
        """Return these questions in the orders that they have here.

        So policies that are replayed on parts of a pool see the draws that others see on all of it.
        """
        held = self.pool.take(rows)
        shift = self.pool.answers.offsets[rows] - held.answers.offsets[:-1]
        own = self._index.reshape(len(self.pool), self.orders, -1)[rows] - shift[:, None, None]
        return replace(self, pool=held, ordered=own.reshape(-1, self.length))

    @cached_property
    def _index(self) -> IntArray:
        """Samples in each order, (N · orders, length)."""
        if self.ordered is not None:
            return self.ordered
        index = order_samples(
            self.pool.answers, n_orders=self.orders, length=self.length, seed=self.seed
        )
        return index.reshape(-1, self.length)

    @cached_property
    def record(self) -> SampleMatrix:
        """The draws, one row an order, and room for those of a last resort."""
        answer = self.pool.answers.answer[self._index]
        resort = self.pool.resort
        room = 0 if resort is None else resort.level.n_samples
        return SampleMatrix(np.pad(answer, ((0, 0), (0, room)), constant_values=UNPARSED))

    @cached_property
    def _value(self) -> FloatArray:
        """Chance that the vote is right after 0, 1, … draws."""
        return self._vote(self.pool.logprob)

    def _vote(self, logprob: FloatArray | None) -> FloatArray:
        """Chance that it is right with ties broken by these, or at random."""
        answers, index = self.pool.answers, self._index
        drawn = None if logprob is None else logprob[index]
        value = running_accuracy(answers.answer[index], answers.class_accuracy[index], drawn)
        return np.pad(value, ((0, 0), (1, 0)))

    def tie_gains(self, most: int) -> FloatArray:
        """What breaking ties by log-probability adds to each vote state, (states, N), by orders.

        Where nothing is tied it adds nothing, so it is as exact there as what it is added to.
        """
        every, columns = states(), slice(min(most, self.length) + 1)
        total = np.zeros((int(every.first[most + 1]), len(self.pool)))
        gain = (self._value - self._vote(None))[:, columns]
        row, draws = np.nonzero(gain)
        state = every.find(self.record.vote_keys[row, draws])
        np.add.at(total, (state, row // self.orders), gain[row, draws] / self.orders)
        return total

    @cached_property
    def _spent(self) -> FloatArray:
        """Cost of the first 0, 1, … draws."""
        spent = np.cumsum(self.pool.sample_cost[self._index], axis=1)
        return np.pad(spent, ((0, 0), (1, 0)))

    @cached_property
    def _resorted(self) -> tuple[FloatArray, FloatArray]:
        """What the last resort costs in each order, and whether its vote is right there."""
        resort = self.pool.resort
        if resort is None:
            raise DataError("a policy has a last resort, and no samples of its model are given")
        size, answers = resort.level.n_samples, resort.answers
        index = order_samples(answers, n_orders=self.orders, length=size, seed=self.seed + 1)
        index = index.reshape(-1, size)
        right = running_accuracy(answers.answer[index], answers.class_accuracy[index])[:, -1]
        return resort.sample_cost[index].sum(axis=1), right

    def run(
        self,
        policy: Policy,
        price: float,
        *,
        sample_cost: float = 1.0,
        features: Float32Array | None = None,
    ) -> ReplayResult:
        """Run a policy at a price on every question and every order.

        ``sample_cost`` is what the policy is told that a draw costs, ``features`` what it has
        digested; those of the pool unless others are given.
        """
        if features is None:
            features = policy.prepare_features(self.pool.features)
        start = Episode.start(
            policy,
            price,
            key=self.pool.key,
            features=features,
            cost=self._told(policy, sample_cost),
            samples=self.record,
            max_rounds=self.rounds,
        )
        played = run_episode(start.decide().repeat(self.orders))
        drawn, rounds = played.state.observed.n_samples, self.rounds - played.state.rounds_left
        shape, alone = (len(self.pool), self.orders), played.resorted
        own = drawn - np.where(alone, policy.levels[-1].n_samples, 0)
        rows = np.arange(len(drawn))
        spent = self._spent[rows, own] + np.repeat(self.pool.round_costs, self.orders) * rounds
        value = self._value[rows, own]
        if alone.any():
            price_paid, right = self._resorted
            spent, value = spent + np.where(alone, price_paid, 0), np.where(alone, right, value)
        spent, value = spent.reshape(shape), value.reshape(shape)
        return ReplayResult(
            cost=spent.mean(axis=1),
            accuracy=value.mean(axis=1),
            samples=drawn.reshape(shape).mean(axis=1),
            rounds=rounds.reshape(shape).mean(axis=1),
            cost_spread=spent.var(axis=1),
            accuracy_spread=value.var(axis=1),
            resorted=alone.reshape(shape).mean(axis=1),
        )

    def _told(self, policy: Policy, sample_cost: float) -> FloatArray:
        """What the policy is told that each level costs, (N, K)."""
        cost = np.array([sample_cost * level.n_samples for level in policy.levels])
        told = np.tile(cost, (len(self.pool), 1))
        if answers_alone(policy.levels).any() and self.pool.resort is not None:
            told[:, -1] = self.pool.resort.cost.mean()
        return told
