"""Evidence: policies that see arms and confidence, fitted and replayed on recorded samples.

The samples of every arm are put into random orders once. Static levels (numbers of samples of one
arm) and policies over positions are then replayed on all of them. Votes are weighted as they were
learned on the training questions, for the mixture and for the policy alike, so a gain over the
mixture is due to allocation alone.

This module does not judge policies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from adacompute.evaluation.kept_results import Memory
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.running_votes import OrderedVotes, label_orders, weighted_accuracies
from adacompute.policies.policy import mixing_uniform
from adacompute.policies.sequential.arm_samples import ArmSamples, Grid, OrderedSamples
from adacompute.policies.sequential.description import vote_accuracy, width
from adacompute.policies.sequential.vote_weights import fit_votes

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray, KeyArray
    from adacompute.evaluation.pool import Pool
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.policy import Policy
    from adacompute.policies.price_schedule import PriceSchedule
    from adacompute.policies.sequential.policy import Ends

T = TypeVar("T")


def rows_of_orders(questions: IntArray, n_orders: int) -> IntArray:
    """Return the rows of all orders of questions, whose orders follow each other.

    >>> rows_of_orders(np.array([0, 2]), 3)
    array([0, 1, 2, 6, 7, 8])
    """
    return (questions[:, None] * n_orders + np.arange(n_orders)).ravel()


def arm_samples(pool: Pool) -> ArmSamples:
    """Return the samples of a pool with their arms and signals."""
    size = len(pool.answers.answer)
    arm = np.zeros(size, dtype=np.int64) if pool.arm is None else pool.arm
    values = np.empty((size, 0)) if pool.signals is None else pool.signals
    return ArmSamples(
        answers=pool.answers,
        key=pool.key,
        arm=arm,
        n_arms=max(1, len(pool.arms)),
        cost=pool.sample_cost,
        signals=pool.signal_names,
        values=values,
        latency_s=pool.latency_s,
    )


@dataclass(frozen=True, eq=False)
class ArmUse:
    """Share of the questions that each arm is sampled for, and its mean cost, (arms, settings)."""

    questions: FloatArray
    cost: FloatArray
    schedule: PriceSchedule

    def at(self, price: float) -> tuple[FloatArray, FloatArray]:
        """Return both at a price; between two settings they are mixed."""
        first, share = self.schedule.position(price)
        after = min(first + 1, self.cost.shape[1] - 1)
        questions, cost = (
            column[:, first] * (1 - share) + column[:, after] * share
            for column in (self.questions, self.cost)
        )
        return questions, cost


@dataclass(frozen=True, eq=False)
class Evidence:
    """Samples of a pool in random orders, and what was learned of votes on training questions.

    ``max_samples`` is the largest number of samples of each arm. Without ``use_confidence`` every
    sample counts once. ``round_cost`` (N,) is what a level costs besides its samples; policies over
    arms ignore it.
    """

    samples: ArmSamples
    max_samples: tuple[int, ...]
    n_permutations: int
    seed: int
    use_confidence: bool
    round_cost: FloatArray
    _memory: Memory = field(default_factory=Memory, init=False, repr=False)

    @cached_property
    def order(self) -> list[IntArray]:
        """Indices of the samples of each arm in each order, (N · permutations, cap)."""
        return self.samples.order(self.max_samples, self.n_permutations, self.seed)

    def confidence(self, train: IntArray, *, joint: bool) -> Confidence:
        """Return the confidence learned on training questions; it is computed once.

        With several arms it differs whether they vote together (``joint``) or each alone.
        """
        joint = joint or self.samples.n_arms == 1
        known: dict[str, Any] = {"use": self.use_confidence, "joint": joint, "seed": self.seed}
        return self._memory.remember(
            ("confidence", train.tobytes(), joint),
            lambda: fit_votes(self.samples, train, self.max_samples, **known),
        )

    def counts_votes_alike(self, train: IntArray) -> bool:
        """Whether there is one arm, and training questions show no use of confidence in its votes.

        A policy that sees the votes alone is then as good as one that sees the confidence as well.
        """
        return self.samples.n_arms == 1 and not self.confidence(train, joint=True).signals

    def select(self, arms: tuple[int, ...], max_samples: tuple[int, ...] | None = None) -> Evidence:
        """Return the evidence of up to so many samples of some arms, numbered in this order."""
        caps = max_samples or tuple(self.max_samples[arm] for arm in arms)
        if arms == tuple(range(self.samples.n_arms)) and caps == self.max_samples:
            return self
        return self._memory.remember(
            ("arms", arms, caps),
            lambda: replace(self, samples=self.samples.select(arms), max_samples=caps),
        )

    def remember(self, key: Hashable, compute: Callable[[Evidence], T]) -> T:
        """Return a table that does not depend on training questions; it is computed once."""
        return self._memory.remember(("table", key), lambda: compute(self))

    def ordered(self, confidence: Confidence) -> OrderedSamples:
        """Return the orders of all arms together, with the confidence of their samples."""
        samples, index = self.samples, np.concatenate(self.order, axis=1)
        votes = self.remember("labels", lambda one: label_orders(one.samples.answers, index))
        values = samples.column(confidence.signals)
        return OrderedSamples(
            label=votes.label,
            accuracy=votes.accuracy.T,
            log_odds=confidence.log_odds(samples.arm, values)[index],
            weight=confidence.weight(samples.arm, values)[index],
            cost=samples.cost[index],
            max_samples=self.max_samples,
        )

    @property
    def levels(self) -> list[tuple[int, int]]:
        """Arm and number of samples of every level: those of the first arm, 1, 2, …, and so on."""
        return [(arm, n) for arm, cap in enumerate(self.max_samples) for n in range(1, cap + 1)]

    def run_levels(self, confidence: Confidence | None) -> ReplayResult:
        """Return the results of every level, (N, levels).

        Without ``confidence`` every sample counts once.
        """
        arms = range(len(self.max_samples))
        return ReplayResult.side_by_side([self.run_arm(arm, confidence) for arm in arms])

    def run_arm(self, arm: int, confidence: Confidence | None) -> ReplayResult:
        """Return the results of every number of samples of one arm, (N, levels)."""
        if confidence is None:
            return self.remember(("levels", arm), lambda _: self._run_arm(arm, None))
        return self._run_arm(arm, confidence)

    def _run_arm(self, arm: int, confidence: Confidence | None) -> ReplayResult:
        order, weight = self.order[arm], None
        if confidence is not None:
            values = self.samples.column(confidence.signals)
            weight = confidence.weight(self.samples.arm, values)[order]
        correct = weighted_accuracies(self.labels(arm), weight)
        per_round = np.repeat(self.round_cost, self.n_permutations)[:, None]
        cost = np.cumsum(self.samples.cost[order], axis=1) + per_round
        n_samples = np.broadcast_to(np.arange(1.0, order.shape[1] + 1), cost.shape)
        return self.summarise(cost, correct, n_samples, n_samples * 0 + 1)

    def labels(self, arm: int) -> OrderedVotes:
        """Return the numbered answers of the orders of one arm; they are numbered once."""
        return self.remember(
            ("labels", arm), lambda one: label_orders(one.samples.answers, one.order[arm])
        )

    def run(self, policy: Policy, features: Float32Array) -> ReplayResult:
        """Return the results of a policy over these arms at its settings, (N, settings)."""
        if not policy.max_by_arm:
            levels = enumerate(policy.levels)
            uniform = [(policy.arm_of_level(i), level.n_samples) for i, level in levels]
            chosen = np.array([self.levels.index(one) for one in uniform])
            return self.run_levels(policy.confidence).columns(chosen)
        samples, ends = self._find_ends(policy, features)
        grid, end = Grid(self.max_samples), ends.position
        cost, correct = np.zeros(end.shape), np.zeros(end.shape)
        for position in np.unique(end).tolist():
            counts, here = grid.counts[position], end == position
            rows = np.flatnonzero(here.any(axis=1))
            own, leads = here[rows], samples.describe(counts.tolist(), rows).leads
            paid = samples.cost[np.ix_(rows, samples.columns(counts.tolist()))].sum(axis=1)
            correct[rows] += own * vote_accuracy(leads, samples.accuracy[rows])[:, None]
            cost[rows] += own * paid[:, None]
        n_samples = grid.counts.sum(axis=1).astype(np.float64)[end]
        cost += np.repeat(self.round_cost, self.n_permutations)[:, None] * ends.n_rounds
        return self.summarise(cost, correct, n_samples, ends.n_rounds.astype(np.float64))

    def measure_arms(self, policy: Policy, features: Float32Array) -> ArmUse:
        """Return how a policy with positions uses each arm."""
        if policy.schedule is None:
            raise AssertionError
        samples, ends = self._find_ends(policy, features)
        grid, end = Grid(self.max_samples), ends.position
        questions, cost = np.zeros((2, len(self.max_samples), end.shape[1]))
        for position in np.unique(end).tolist():
            counts, here = grid.counts[position], end == position
            for arm in np.flatnonzero(counts).tolist():
                only = np.where(np.arange(len(counts)) == arm, counts, 0)
                paid = samples.cost[:, samples.columns(only.tolist())].sum(axis=1)
                questions[arm] += here.sum(axis=0)
                cost[arm] += paid @ here
        return ArmUse(questions / len(end), cost / len(end), policy.schedule)

    def count_ends(
        self, policy: Policy, features: Float32Array, key: KeyArray, prices: Sequence[float]
    ) -> list[IntArray]:
        """Return the samples of each arm that each order takes at each price, (orders, arms)."""
        if policy.schedule is None:
            raise AssertionError
        uniform = mixing_uniform(np.repeat(key, self.n_permutations))
        settings = [policy.schedule.select(price, uniform) for price in prices]
        if policy.max_by_arm:
            position = self._find_ends(policy, features)[1].position
            counts, rows = Grid(self.max_samples).counts, np.arange(len(uniform))
            return [counts[position[rows, setting]] for setting in settings]
        by_level = np.zeros((len(policy.levels), len(policy.arms)), dtype=np.int64)
        for i, level in enumerate(policy.levels):
            by_level[i, policy.arm_of_level(i)] = level.n_samples
        return [by_level[setting] for setting in settings]

    def describe_ends(
        self, confidence: Confidence, counts: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Describe every order after so many samples of each arm, (orders, arms).

        The second value is how likely its vote is correct, (orders,).
        """
        samples, correct = self.ordered(confidence), np.zeros(len(counts))
        vector = np.zeros((len(counts), width(counts.shape[1])))
        kinds, kind = np.unique(counts, axis=0, return_inverse=True)
        for i, own in enumerate(kinds.tolist()):
            rows = np.flatnonzero(kind.reshape(-1) == i)
            vector[rows], leads = samples.describe(own, rows)
            correct[rows] = vote_accuracy(leads, samples.accuracy[rows])
        return vector, correct

    def average_signal(self, name: str, counts: IntArray) -> FloatArray | None:
        """Return the mean of a signal over those samples, (orders,); None if it is not recorded.

        It is NaN where no sample has it.
        """
        if name not in self.samples.signals:
            return None
        value = self.samples.column([name])[:, 0]
        total, known = np.zeros((2, len(counts)))
        for index, count in zip(self.order, counts.T, strict=True):
            own = np.where(np.arange(index.shape[1]) < count[:, None], value[index], np.nan)
            total += np.nansum(own, axis=1)
            known += (~np.isnan(own)).sum(axis=1)
        return np.where(known > 0, total / np.maximum(known, 1), np.nan)

    def measure_latency(
        self, policy: Policy, price: float, features: Float32Array
    ) -> FloatArray | None:
        """Return how long each order takes, in seconds: the samples of a round come together.

        None if it was not recorded, or if the policy has no positions.
        """
        if self.samples.latency_s is None or policy.schedule is None or not policy.max_by_arm:
            return None
        latency_s = self.samples.latency_s[np.concatenate(self.order, axis=1)]
        _, ends = self._find_ends(policy, features, latency_s)
        setting, _ = policy.schedule.position(price)
        return None if ends.latency_s is None else ends.latency_s[:, setting]

    def _find_ends(
        self, policy: Policy, features: Float32Array, latency_s: FloatArray | None = None
    ) -> tuple[OrderedSamples, Ends]:
        """Return the orders, and where a policy with positions ends each of them at each price."""
        if policy.confidence is None:
            raise AssertionError
        cell = policy.prepare_features(features)[:, 0].astype(np.int64)
        samples = self.ordered(policy.confidence)
        return samples, policy.find_ends(samples, np.repeat(cell, self.n_permutations), latency_s)

    def summarise(
        self, cost: FloatArray, correct: FloatArray, n_samples: FloatArray, n_rounds: FloatArray
    ) -> ReplayResult:
        """Return means and variances over the orders of each question."""
        n_questions = len(self.samples.answers)
        return ReplayResult.of_orders(n_questions, cost, correct, n_samples, n_rounds)
