"""Replay: policies run on recorded samples, in many random orders of the samples of each question.

All policies see the same orders, so differences between policies do not come from the orders. The
orders of a question depend only on its key, so questions can be replayed in blocks, and memory does
not grow with their number. Decisions are made by the same episodes that serve live requests; only
the samples are recorded. A policy that compares a price with one number per vote state is replayed
at all prices at once, one that decides once is looked up, and a rule is replayed without the rest
of the state; the decisions are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from adacompute.core.answers import order_samples
from adacompute.core.errors import DataError
from adacompute.core.state_sums import TieGains
from adacompute.core.states import states
from adacompute.core.votes import running_accuracy
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode
from adacompute.policies.policy import IndexRule, ObservedSamples, Policy, SampleMatrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, FloatArray, IntArray
    from adacompute.evaluation.pool import Pool
    from adacompute.policies.rule_policy import Rule

BLOCK_SIZE = 1024
"""Questions that are replayed at a time; with 40 orders of 16 samples a block takes 60 MB."""

MAX_CACHED_BLOCKS = 4
"""Blocks that are kept from one replay to the next, if there are not more."""


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Means over the orders of each question, and the variance of two of them.

    The arrays are (N, prices), or (N,) for a single setting.
    """

    cost: FloatArray
    accuracy: FloatArray
    n_samples: FloatArray
    n_rounds: FloatArray
    cost_variance: FloatArray
    accuracy_variance: FloatArray

    def take(self, rows: IntArray) -> ReplayResult:
        """Return these questions."""
        return ReplayResult(*(getattr(self, one.name)[rows] for one in fields(self)))

    def columns(self, settings: IntArray) -> ReplayResult:
        """Return these settings."""
        return ReplayResult(*(getattr(self, one.name)[:, settings] for one in fields(self)))

    def mix(self, first: int, share: float) -> ReplayResult:
        """Return the mixture of the setting ``first`` and, with probability ``share``, the next.

        A question gets one of the two, so their difference adds to the variance.
        """
        after = min(first + 1, self.cost.shape[1] - 1)
        columns = (getattr(self, one.name) for one in fields(self))
        if not share:
            return ReplayResult(*(column[:, first] for column in columns))
        mixed = ReplayResult(*(c[:, first] * (1 - share) + c[:, after] * share for c in columns))
        cost, accuracy = (c[:, after] - c[:, first] for c in (self.cost, self.accuracy))
        return replace(
            mixed,
            cost_variance=mixed.cost_variance + share * (1 - share) * cost**2,
            accuracy_variance=mixed.accuracy_variance + share * (1 - share) * accuracy**2,
        )

    @staticmethod
    def _combine(
        results: Sequence[ReplayResult], combine: Callable[[list[FloatArray]], FloatArray]
    ) -> ReplayResult:
        columns = ([getattr(r, one.name) for r in results] for one in fields(ReplayResult))
        return ReplayResult(*(combine(column) for column in columns))

    @staticmethod
    def concatenate(parts: Sequence[ReplayResult]) -> ReplayResult:
        """Return one result from results for successive questions."""
        return ReplayResult._combine(parts, np.concatenate)

    @staticmethod
    def side_by_side(results: Sequence[ReplayResult]) -> ReplayResult:
        """Return one result from results for the same questions at other settings."""
        return ReplayResult._combine(results, np.column_stack)

    @staticmethod
    def join(parts: Sequence[ReplayResult], rows: Sequence[IntArray]) -> ReplayResult:
        """Return one result for all questions, from results for the questions of each part.

        A question in several parts gets the mean of its results; how much they differ is part of
        their variance.
        """
        every = np.concatenate(rows)
        joined = ReplayResult.concatenate(parts).take(np.argsort(every, kind="stable"))
        n_times = len(every) // max(1, len(np.unique(every)))
        if n_times == 1:
            return joined

        def split(column: FloatArray) -> FloatArray:
            return column.reshape(-1, n_times, *column.shape[1:])

        mean = ReplayResult(
            *(split(getattr(joined, one.name)).mean(axis=1) for one in fields(joined))
        )
        return replace(
            mean,
            cost_variance=mean.cost_variance + split(joined.cost).var(axis=1),
            accuracy_variance=mean.accuracy_variance + split(joined.accuracy).var(axis=1),
        )


@dataclass(frozen=True, eq=False)
class Replay:
    """Random orders of the samples of a pool, each ``length`` samples long."""

    pool: Pool
    n_permutations: int
    length: int
    seed: int = 0
    max_rounds: int = UNLIMITED_ROUNDS

    def blocks(self) -> Iterator[tuple[IntArray, Replay]]:
        """Yield blocks of questions: their rows, and their own replay."""
        if len(self.pool) <= MAX_CACHED_BLOCKS * BLOCK_SIZE:
            yield from self._cached_blocks
        else:
            yield from self._make_blocks()

    @cached_property
    def _cached_blocks(self) -> list[tuple[IntArray, Replay]]:
        return list(self._make_blocks())

    def _make_blocks(self) -> Iterator[tuple[IntArray, Replay]]:
        for start in range(0, len(self.pool), BLOCK_SIZE):
            rows = np.arange(start, min(start + BLOCK_SIZE, len(self.pool)))
            yield rows, replace(self, pool=self.pool.take(rows))

    def run(
        self,
        policy: Policy,
        prices: Sequence[float],
        *,
        sample_cost: float = 1.0,
        features: Float32Array | None = None,
    ) -> ReplayResult:
        """Run a policy at falling prices on every question and every order, (N, prices).

        ``sample_cost`` is the cost of a sample that the policy decides by. ``features`` are the
        prepared features of the policy, by default those of the pool.
        """
        if features is None:
            features = policy.prepare_features(self.pool.features)
        return ReplayResult.concatenate(
            [
                block.run_block(policy, prices, features[rows], sample_cost)
                for rows, block in self.blocks()
            ]
        )

    def run_block(
        self, policy: Policy, prices: Sequence[float], features: Float32Array, sample_cost: float
    ) -> ReplayResult:
        """Run a policy at falling prices on the questions of a block."""
        if policy.arms:
            raise DataError("a policy that sees arms and confidence is replayed by its evidence")
        free_rounds = self.max_rounds >= self.length and not self.pool.round_costs.any()
        if policy.is_index_rule and free_rounds:
            return self._run_index(
                cast("IndexRule", policy), np.asarray(prices), features, sample_cost
            )
        run = self._run_once if policy.decides_once else self._run_episode
        return ReplayResult.side_by_side(
            [run(policy, price, features, sample_cost) for price in prices]
        )

    def run_rule(self, rule: Rule) -> ReplayResult:
        """Run a rule that may stop after every sample on the questions of a block, (N,)."""
        return self.summarise(*self.play_rule(rule))

    def play_rule(self, rule: Rule) -> tuple[IntArray, IntArray]:
        """Return the samples and the rounds that a rule takes in each order of a block.

        A rule sees the votes alone, so this does what an episode does, without its other state.
        """
        n_samples, n_rounds = np.zeros((2, len(self.samples.answer)), dtype=np.int64)
        active = np.arange(len(n_samples))
        while len(active):
            now = n_samples[active]
            target = rule.target_samples(ObservedSamples(self.samples, active, now))
            target = np.minimum(target, self.length)
            goes_on = (target > now) & (n_rounds[active] < self.max_rounds)
            active = active[goes_on]
            n_samples[active] = target[goes_on]
            n_rounds[active] += 1
        return n_samples, n_rounds

    def _run_index(
        self,
        policy: IndexRule,
        prices: FloatArray,
        features: Float32Array,
        sample_cost: float,
    ) -> ReplayResult:
        """Replay a rule that goes on while the price is below a number given by the vote state.

        The number of samples at a price is 1 plus the number of samples before which the smallest
        limit so far is above the price. So each sample has one price below which it is drawn.
        """
        size, last = len(self.pool), min(self.length, len(policy.levels))
        repeated = np.repeat(np.arange(size), self.n_permutations)
        path = states().find(self.samples.vote_keys[:, 1:last])
        limit = policy.continue_price(path, features[repeated], self.pool.key[repeated])
        lowest = np.minimum.accumulate(limit, axis=1) / sample_cost
        n_prices = len(prices)
        column = n_prices - np.searchsorted(prices[::-1], lowest, side="left")
        cell = (repeated[:, None] * (n_prices + 1) + column).ravel()

        def mean(value: FloatArray) -> FloatArray:
            """Return the mean over orders at each price of a value after 1, 2, … samples."""
            first = value[:, 0].reshape(size, -1).sum(axis=1, keepdims=True)
            added = np.bincount(cell, np.diff(value, axis=1).ravel(), size * (n_prices + 1))
            later = added.reshape(size, n_prices + 1)[:, :n_prices].cumsum(axis=1)
            return np.asarray((first + later) / self.n_permutations)

        cost, accuracy = (table[:, 1 : last + 1] for table in (self._cost, self._accuracy))
        n_samples = mean(np.broadcast_to(np.arange(1.0, last + 1), cost.shape))
        mean_cost, mean_accuracy = mean(cost), mean(accuracy)
        return ReplayResult(
            cost=mean_cost,
            accuracy=mean_accuracy,
            n_samples=n_samples,
            n_rounds=n_samples,
            cost_variance=np.maximum(mean(cost**2) - mean_cost**2, 0.0),
            accuracy_variance=np.maximum(mean(accuracy**2) - mean_accuracy**2, 0.0),
        )

    @cached_property
    def _order(self) -> IntArray:
        """Indices of the samples in each order, (N · n_permutations, length)."""
        known = {"n_orders": self.n_permutations, "length": self.length, "seed": self.seed}
        return order_samples(self.pool.answers, self.pool.key, **known).reshape(-1, self.length)

    @cached_property
    def samples(self) -> SampleMatrix:
        """The samples, one row per order."""
        draft = self.pool.draft
        return SampleMatrix(
            self.pool.answers.answer[self._order],
            uncertainty=None if draft is None else draft.value[self._order],
        )

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

    @property
    def tie_gain(self) -> FloatArray:
        """What breaking ties by log-probability adds after 0, 1, … samples of each order."""
        return self._accuracy - self._vote(None)

    def tie_gains(self, max_samples: int) -> TieGains:
        """Return what breaking ties by log-probability adds to vote states, as a mean over orders.

        States without ties have no entry.
        """
        parts = []
        for rows, block in self.blocks():
            gain = block.tie_gain[:, : min(max_samples, self.length) + 1]
            order, n_samples = np.nonzero(gain)
            state = states().find(block.samples.vote_keys[order, n_samples])
            question, mean_gain = rows[order // self.n_permutations], gain[order, n_samples]
            parts.append((state, question, mean_gain / self.n_permutations))
        return TieGains(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @cached_property
    def _cost(self) -> FloatArray:
        """Cost of the first 0, 1, … samples of each order."""
        cost = np.cumsum(self.pool.sample_cost[self._order], axis=1)
        return np.pad(cost, ((0, 0), (1, 0)))

    def _run_episode(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> ReplayResult:
        """Run a policy at one price, decision by decision, (N,)."""
        first = self._start(policy, price, features, sample_cost)
        ended = run_episode(first.repeat(self.n_permutations))
        n_samples = ended.state.observed.n_samples
        return self.summarise(n_samples, self.max_rounds - ended.state.rounds_left)

    def _run_once(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> ReplayResult:
        """Run a policy that decides once, before it sees a sample, at one price, (N,)."""
        n_samples = self._start(policy, price, features, sample_cost).target
        every = np.arange(len(self.pool))
        columns = (getattr(self._levels, one.name) for one in fields(ReplayResult))
        return ReplayResult(*(column[every, n_samples] for column in columns))

    @cached_property
    def _levels(self) -> ReplayResult:
        """The results of 0, 1, … samples of every question in one round, (N, length + 1)."""
        size = len(self.pool) * self.n_permutations
        return ReplayResult.side_by_side(
            [
                self.summarise(np.full(size, n), np.full(size, min(n, 1)))
                for n in range(self.length + 1)
            ]
        )

    def summarise(self, n_samples: IntArray, n_rounds: IntArray) -> ReplayResult:
        """Return the results of so many samples and rounds in each order, (N,)."""
        shape, rows = (len(self.pool), self.n_permutations), np.arange(len(n_samples))
        round_cost = np.repeat(self.pool.round_costs, self.n_permutations)
        cost = (self._cost[rows, n_samples] + round_cost * n_rounds).reshape(shape)
        accuracy = self._accuracy[rows, n_samples].reshape(shape)
        return ReplayResult(
            cost=cost.mean(axis=1),
            accuracy=accuracy.mean(axis=1),
            n_samples=n_samples.reshape(shape).mean(axis=1),
            n_rounds=n_rounds.reshape(shape).mean(axis=1),
            cost_variance=cost.var(axis=1),
            accuracy_variance=accuracy.var(axis=1),
        )

    def measure_latency(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> FloatArray:
        """Return how long each order takes, in seconds: in each round, as long as its slowest.

        The questions of a block are replayed; the samples must have recorded latencies.
        """
        latency, position = self._latency, np.arange(self.length)
        episode = self._start(policy, price, features, sample_cost).repeat(self.n_permutations)
        total = np.zeros(len(latency))
        while len(rows := episode.active):
            first, end = episode.state.observed.n_samples[rows], episode.target[rows]
            in_round = (position >= first[:, None]) & (position < end[:, None])
            total[rows] += np.where(in_round, latency[rows], 0.0).max(axis=1)
            episode = episode.feed(self.samples).decide()
        return total

    def measure_parallel_latency(self) -> FloatArray:
        """Return how long all samples of each order take if they are drawn in one round."""
        return np.asarray(self._latency.max(axis=1))

    @property
    def _latency(self) -> FloatArray:
        if self.pool.latency_s is None:
            raise DataError("the latency of the samples was not recorded")
        return self.pool.latency_s[self._order]

    def _start(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> Episode:
        """Return an episode of every question after the first decision, which all orders share."""
        start = Episode.start(
            policy,
            price,
            key=self.pool.key,
            features=features,
            cost=self._level_cost(policy, sample_cost),
            samples=self.samples,
            max_rounds=self.max_rounds,
        )
        return start.decide()

    def _level_cost(self, policy: Policy, sample_cost: float) -> FloatArray:
        """Return the cost of each level that the policy decides by, (N, K)."""
        cost = np.array([sample_cost * level.n_samples for level in policy.levels])
        return np.tile(cost, (len(self.pool), 1))
