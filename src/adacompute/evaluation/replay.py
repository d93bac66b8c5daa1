"""Replay: policies run on recorded samples, in many random orders of each question's samples.

Every policy sees the same orders, so that differences between policies are not noise of the
orders. Decisions are made by the episodes that also serve; only the draws come from the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import order_samples
from adacompute.core.votes import running_majority
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, play
from adacompute.policies.policy import Policy, Record

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.pool import Pool


@dataclass(frozen=True, eq=False)
class Ran:
    """Means over the orders of each question, (N,), and the variance of two of them."""

    cost: FloatArray
    accuracy: FloatArray
    samples: FloatArray
    rounds: FloatArray
    cost_spread: FloatArray
    accuracy_spread: FloatArray


@dataclass(frozen=True, eq=False)
class Replay:
    """Orders of a pool's samples, long enough for the largest level, and how often one may draw."""

    pool: Pool
    orders: int
    length: int
    seed: int = 0
    rounds: int = UNLIMITED_ROUNDS

    @cached_property
    def _index(self) -> IntArray:
        """Samples in each order, (N · orders, length)."""
        index = order_samples(
            self.pool.answers, orders=self.orders, length=self.length, seed=self.seed
        )
        return index.reshape(-1, self.length)

    @cached_property
    def record(self) -> Record:
        """The draws, one row an order."""
        return Record(self.pool.answers.answer[self._index])

    @cached_property
    def _value(self) -> FloatArray:
        """Chance that the vote is right after 0, 1, … draws."""
        answers = self.pool.answers
        value = running_majority(self.record.answer, answers.share[self._index])
        return np.pad(value, ((0, 0), (1, 0)))

    @cached_property
    def _spent(self) -> FloatArray:
        """Cost of the first 0, 1, … draws."""
        spent = np.cumsum(self.pool.draw_cost[self._index], axis=1)
        return np.pad(spent, ((0, 0), (1, 0)))

    def run(
        self,
        policy: Policy,
        price: float,
        *,
        draw_cost: float = 1.0,
        features: Float32Array | None = None,
    ) -> Ran:
        """Run a policy at a price on every question and every order.

        ``draw_cost`` is what the policy is told that a draw costs, ``features`` what it has
        digested; those of the pool unless others are given.
        """
        if features is None:
            features = policy.digest(self.pool.features)
        size = len(self.pool)
        samples = np.array([level.samples for level in policy.levels], dtype=np.float64)
        start = Episode.start(
            policy,
            price,
            key=self.pool.key,
            features=features,
            cost=np.broadcast_to(draw_cost * samples, (size, len(samples))),
            record=self.record,
            rounds=self.rounds,
        )
        played = play(start.decide().repeat(self.orders)).state
        drawn, rounds = played.draws.size, self.rounds - played.rounds_left
        rows = np.arange(len(drawn))
        shape = (size, self.orders)
        spent = (self._spent[rows, drawn] + self.pool.round_cost * rounds).reshape(shape)
        value = self._value[rows, drawn].reshape(shape)
        return Ran(
            cost=spent.mean(axis=1),
            accuracy=value.mean(axis=1),
            samples=drawn.reshape(shape).mean(axis=1),
            rounds=rounds.reshape(shape).mean(axis=1),
            cost_spread=spent.var(axis=1),
            accuracy_spread=value.var(axis=1),
        )
