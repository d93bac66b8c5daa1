"""Replay: policies run on recorded samples, in many random orders of the samples of each question.

All policies see the same orders, so differences between policies do not come from the orders.
Decisions are made by the same episodes that serve live requests; only the samples are recorded.
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
    n_samples: FloatArray
    n_rounds: FloatArray
    cost_variance: FloatArray
    accuracy_variance: FloatArray
    resorted: FloatArray


@dataclass(frozen=True, eq=False)
class Replay:
    """Random orders of the samples of a pool, each ``length`` samples long.

    ``indices`` (N · n_permutations, length) holds the orders if they are known; otherwise they are
    drawn with the seed.
    """

    pool: Pool
    n_permutations: int
    length: int
    seed: int = 0
    max_rounds: int = UNLIMITED_ROUNDS
    indices: IntArray | None = None

    def take(self, rows: IntArray) -> Replay:
        """Return these questions with the orders that they have here.

        A policy that is replayed on part of a pool then sees the same samples as one that is
        replayed on all of it.
        """
        pool = self.pool.take(rows)
        shift = self.pool.answers.offsets[rows] - pool.answers.offsets[:-1]
        orders = self._order.reshape(len(self.pool), self.n_permutations, -1)[rows]
        indices = (orders - shift[:, None, None]).reshape(-1, self.length)
        return replace(self, pool=pool, indices=indices)

    @cached_property
    def _order(self) -> IntArray:
        """Indices of the samples in each order, (N · n_permutations, length)."""
        if self.indices is not None:
            return self.indices
        indices = order_samples(
            self.pool.answers, n_orders=self.n_permutations, length=self.length, seed=self.seed
        )
        return indices.reshape(-1, self.length)

    @cached_property
    def samples(self) -> SampleMatrix:
        """The samples, one row per order, with empty columns for those of a last resort."""
        answer = self.pool.answers.answer[self._order]
        resort = self.pool.resort
        n_extra = 0 if resort is None else resort.level.n_samples
        return SampleMatrix(np.pad(answer, ((0, 0), (0, n_extra)), constant_values=UNPARSED))

    @cached_property
    def _accuracy(self) -> FloatArray:
        """Probability that the vote is correct after 0, 1, … samples of each order."""
        return self._vote(self.pool.logprob)

    def _vote(self, logprob: FloatArray | None) -> FloatArray:
        """Return the accuracy of votes with ties broken by log-probability, or at random."""
        answers, order = self.pool.answers, self._order
        ordered = None if logprob is None else logprob[order]
        accuracy = running_accuracy(answers.answer[order], answers.class_accuracy[order], ordered)
        return np.pad(accuracy, ((0, 0), (1, 0)))

    def tie_gains(self, max_samples: int) -> FloatArray:
        """Return what breaking ties by log-probability adds to each vote state, (states, N).

        The gain is a mean over the orders. It is exactly zero where nothing is tied.
        """
        all_states, columns = states(), slice(min(max_samples, self.length) + 1)
        total = np.zeros((int(all_states.first[max_samples + 1]), len(self.pool)))
        gain = (self._accuracy - self._vote(None))[:, columns]
        row, n_samples = np.nonzero(gain)
        state = all_states.find(self.samples.vote_keys[row, n_samples])
        question, gain_per_order = row // self.n_permutations, gain / self.n_permutations
        np.add.at(total, (state, question), gain_per_order[row, n_samples])
        return total

    @cached_property
    def _cost(self) -> FloatArray:
        """Cost of the first 0, 1, … samples of each order."""
        cost = np.cumsum(self.pool.sample_cost[self._order], axis=1)
        return np.pad(cost, ((0, 0), (1, 0)))

    @cached_property
    def _resorted(self) -> tuple[FloatArray, FloatArray]:
        """Cost of the last resort in each order, and whether its vote is correct there."""
        resort = self.pool.resort
        if resort is None:
            raise DataError("the policy has a last resort, but no samples of its model are given")
        size, answers = resort.level.n_samples, resort.answers
        n_orders = self.n_permutations
        index = order_samples(answers, n_orders=n_orders, length=size, seed=self.seed + 1)
        index = index.reshape(-1, size)
        correct = running_accuracy(answers.answer[index], answers.class_accuracy[index])[:, -1]
        return resort.sample_cost[index].sum(axis=1), correct

    def run(
        self,
        policy: Policy,
        price: float,
        *,
        sample_cost: float = 1.0,
        features: Float32Array | None = None,
    ) -> ReplayResult:
        """Run a policy at a price on every question and every order.

        ``sample_cost`` is the cost of a sample that the policy decides by. ``features`` are the
        prepared features of the policy, by default those of the pool.
        """
        if features is None:
            features = policy.prepare_features(self.pool.features)
        start = Episode.start(
            policy,
            price,
            key=self.pool.key,
            features=features,
            cost=self._level_cost(policy, sample_cost),
            samples=self.samples,
            max_rounds=self.max_rounds,
        )
        ended = run_episode(start.decide().repeat(self.n_permutations))
        n_samples = ended.state.observed.n_samples
        n_rounds = self.max_rounds - ended.state.rounds_left
        shape, resorted = (len(self.pool), self.n_permutations), ended.resorted
        own = n_samples - np.where(resorted, policy.levels[-1].n_samples, 0)
        rows = np.arange(len(n_samples))
        round_cost = np.repeat(self.pool.round_costs, self.n_permutations)
        cost = self._cost[rows, own] + round_cost * n_rounds
        accuracy = self._accuracy[rows, own]
        if resorted.any():
            resort_cost, resort_correct = self._resorted
            cost = cost + np.where(resorted, resort_cost, 0)
            accuracy = np.where(resorted, resort_correct, accuracy)
        cost, accuracy = cost.reshape(shape), accuracy.reshape(shape)
        return ReplayResult(
            cost=cost.mean(axis=1),
            accuracy=accuracy.mean(axis=1),
            n_samples=n_samples.reshape(shape).mean(axis=1),
            n_rounds=n_rounds.reshape(shape).mean(axis=1),
            cost_variance=cost.var(axis=1),
            accuracy_variance=accuracy.var(axis=1),
            resorted=resorted.reshape(shape).mean(axis=1),
        )

    def _level_cost(self, policy: Policy, sample_cost: float) -> FloatArray:
        """Return the cost of each level that the policy decides by, (N, K)."""
        cost = np.array([sample_cost * level.n_samples for level in policy.levels])
        known = np.tile(cost, (len(self.pool), 1))
        if answers_alone(policy.levels).any() and self.pool.resort is not None:
            known[:, -1] = self.pool.resort.cost.mean()
        return known
