"""Replay: policies run on recorded samples, in many random orders of the samples of each question.

All policies see the same orders, so differences between policies do not come from the orders. The
orders of a question depend only on its key, so questions can be replayed in blocks, and memory does
not grow with their number. Decisions are made by the same episodes that serve live requests; only
the samples are recorded. A policy that compares a price with one number per vote state is replayed
at all prices at once, and a rule without the rest of the state; the decisions are the same.

Policies are replayed by ``Experiment.run``, which knows those over arms, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from adacompute.core.answers import order_samples
from adacompute.core.errors import DataError
from adacompute.core.states import states
from adacompute.core.votes import running_accuracy
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, run_episode, start_state
from adacompute.policies.policy import IndexRule, ObservedSamples, Policy, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule, fit_price_schedule

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

    @staticmethod
    def of_orders(
        n_questions: int,
        cost: FloatArray,
        accuracy: FloatArray,
        n_samples: FloatArray | IntArray,
        n_rounds: FloatArray | IntArray,
    ) -> ReplayResult:
        """Return the results of single orders, (M,) or (M, settings), as those of questions."""

        def split(values: FloatArray | IntArray) -> FloatArray | IntArray:
            return values.reshape(n_questions, -1, *cost.shape[1:])

        means = (split(one).mean(axis=1) for one in (cost, accuracy, n_samples, n_rounds))
        return ReplayResult(*means, *(split(one).var(axis=1) for one in (cost, accuracy)))

    def apply(self, change: Callable[[FloatArray], FloatArray]) -> ReplayResult:
        """Change every array."""
        return ReplayResult(*(change(getattr(self, one.name)) for one in fields(self)))

    def take(self, rows: IntArray) -> ReplayResult:
        """Return these questions."""
        return self.apply(lambda column: column[rows])

    def columns(self, settings: IntArray) -> ReplayResult:
        """Return these settings."""
        return self.apply(lambda column: column[:, settings])

    def mix(self, first: int, share: float) -> ReplayResult:
        """Return the mixture of the setting ``first`` and, with probability ``share``, the next.

        A question gets one of the two, so their difference adds to the variance.
        """
        if not share:
            return self.apply(lambda column: column[:, first])
        mixed = self.apply(
            lambda column: column[:, first] * (1 - share) + column[:, first + 1] * share
        )
        steps = (column[:, first + 1] - column[:, first] for column in (self.cost, self.accuracy))
        return mixed.add_variance(*(share * (1 - share) * step**2 for step in steps))

    def add_variance(self, cost: FloatArray, accuracy: FloatArray) -> ReplayResult:
        """Return results that vary more."""
        return replace(
            self,
            cost_variance=self.cost_variance + cost,
            accuracy_variance=self.accuracy_variance + accuracy,
        )

    def at_prices(self, prices: Sequence[float], schedule: PriceSchedule) -> ReplayResult:
        """Return the results at other prices, from those at the settings of a schedule."""
        if tuple(prices) == schedule.prices:
            return self
        mixed = [self.mix(*schedule.position(price)) for price in prices]
        return ReplayResult.side_by_side(mixed)

    def find_efficient(self, rows: IntArray) -> tuple[IntArray, PriceSchedule]:
        """Return the settings that are efficient on some questions, and their prices."""
        cost, accuracy = (column[rows].mean(axis=0) for column in (self.cost, self.accuracy))
        return fit_price_schedule(cost, accuracy)

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
        n_questions = len(np.unique(every))
        if n_questions == len(every):
            return joined
        split = joined.apply(lambda column: column.reshape(n_questions, -1, *column.shape[1:]))
        mean = split.apply(lambda column: column.mean(axis=1))
        return mean.add_variance(split.cost.var(axis=1), split.accuracy.var(axis=1))


@dataclass(frozen=True, eq=False)
class Replay:
    """Random orders of the samples of a pool, each ``length`` samples long."""

    pool: Pool
    n_permutations: int
    length: int
    seed: int = 0
    max_rounds: int = UNLIMITED_ROUNDS
    _blocks: dict[int, Replay] = field(default_factory=dict, init=False, repr=False)

    def blocks(self) -> Iterator[tuple[IntArray, Replay]]:
        """Yield blocks of questions: their rows, and their own replay."""
        for start in range(0, len(self.pool), BLOCK_SIZE):
            rows = np.arange(start, min(start + BLOCK_SIZE, len(self.pool)))
            block = self._blocks.get(start) or replace(self, pool=self.pool.take(rows))
            if len(self.pool) <= MAX_CACHED_BLOCKS * BLOCK_SIZE:
                self._blocks[start] = block
            yield rows, block

    def run(
        self, policy: Policy, prices: Sequence[float], features: Float32Array, sample_cost: float
    ) -> ReplayResult:
        """Run a policy at falling prices on the questions of a block, (N, prices).

        ``features`` are those that the policy has prepared, and ``sample_cost`` is the cost of a
        sample that it decides by.
        """
        free_rounds = self.max_rounds >= self.length and not self.pool.round_costs.any()
        if policy.is_index_rule and free_rounds:
            index_rule = cast("IndexRule", policy)
            return self._run_index(index_rule, np.asarray(prices), features, sample_cost)
        return ReplayResult.side_by_side(
            [self._run_episode(policy, price, features, sample_cost) for price in prices]
        )

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

        cost, accuracy = (table[:, 1 : last + 1] for table in (self._cost, self.accuracy))
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
        return SampleMatrix(self.pool.answers.answer[self._order])

    @cached_property
    def accuracy(self) -> FloatArray:
        """Probability that the vote is correct after 0, 1, … samples of each order."""
        answers, order = self.pool.answers, self._order
        accuracy = running_accuracy(answers.answer[order], answers.class_accuracy[order])
        return np.pad(accuracy, ((0, 0), (1, 0)))

    @cached_property
    def _cost(self) -> FloatArray:
        """Cost of the first 0, 1, … samples of each order."""
        cost = np.cumsum(self.pool.sample_cost[self._order], axis=1)
        return np.pad(cost, ((0, 0), (1, 0)))

    def _run_episode(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> ReplayResult:
        """Run a policy at one price, decision by decision, (N,)."""
        return self.summarise(*self.count_samples(policy, price, features, sample_cost))

    def count_samples(
        self, policy: Policy, price: float, features: Float32Array, sample_cost: float
    ) -> tuple[IntArray, IntArray]:
        """Return the samples and the rounds that a policy takes in each order of a block."""
        first = self._start(policy, price, features, sample_cost)
        if policy.decides_once:
            n_samples = np.repeat(first.target, self.n_permutations)
            return n_samples, np.minimum(n_samples, 1)
        ended = run_episode(first.repeat(self.n_permutations))
        return ended.state.observed.n_samples, self.max_rounds - ended.state.rounds_left

    def summarise(self, n_samples: IntArray, n_rounds: IntArray) -> ReplayResult:
        """Return the results of so many samples and rounds in each order, (N,)."""
        rows = np.arange(len(n_samples))
        round_cost = np.repeat(self.pool.round_costs, self.n_permutations)
        cost, accuracy = self._cost[rows, n_samples], self.accuracy[rows, n_samples]
        cost = cost + round_cost * n_rounds
        return ReplayResult.of_orders(len(self.pool), cost, accuracy, n_samples, n_rounds)

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
        cost = np.array([sample_cost * level.n_samples for level in policy.levels])
        start = Episode.start(
            policy,
            price,
            start_state(
                key=self.pool.key,
                features=features,
                cost=np.tile(cost, (len(self.pool), 1)),
                samples=self.samples,
                max_rounds=self.max_rounds,
            ),
        )
        return start.decide()
