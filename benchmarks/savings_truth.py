"""Savings truth: synthetic questions, what a fitted policy does on many more of them, the optimum.

A *mix* is a population of questions: shares of five types, Beta-distributed probabilities of the
correct answer, a number of answer classes, a rate of unparsed samples, and how much the features
say. All of it follows from one seed. ``measure_policy`` runs a fitted policy on fresh questions
beside a vote of a fixed number of samples, on the same samples. ``cheapest_cost`` is the smallest
mean cost at which any stopping rule has a given accuracy, if all questions have one known
distribution of answers.

It does not know how a saving is estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.states import StateMeasure, states
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import Replay
from adacompute.policies.sequential.induction import continuation_value
from adacompute.policies.uniform import FixedRule
from test_support.populations import Population

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import FloatArray
    from adacompute.evaluation.experiment import FittedPolicy

SAMPLE_COUNTS = (8, 16)
"""Recorded samples per question."""

CLASS_COUNTS = (2, 3, 4, 4, 5, 5, 10, 50)
MAX_UNPARSED = 0.1

TYPES = {
    "easy": ((0.8, 0.98), (0.0, 1.0)),
    "responsive": ((0.3, 0.6), (0.0, 0.3)),
    "diminishing": ((0.4, 0.6), (0.7, 1.0)),
    "hopeless": ((0.02, 0.25), (0.3, 1.0)),
    "guessed": ((0.15, 0.4), (0.0, 0.2)),
}
"""Ranges of the mean probability of the correct answer, and of the share of the wrong answers that
the most frequent of them has."""

EVENNESS = (0.3, 1.0, 3.0)
"""Parameters of the Dirichlet distribution of the shares of the types; the smaller, the more the
questions of a mix are of one type."""

N_GRID, N_REFINEMENTS = 65, 6
"""Prices at a time, and refinements, when the optimum is searched."""


@dataclass(frozen=True, eq=False)
class Mix:
    """A population of questions; arrays have one entry per type.

    ``top_share`` is the share of the wrong answers that the most frequent of them has. A feature is
    ``signal`` parts difficulty and the rest noise.
    """

    share: FloatArray
    accuracy: FloatArray
    concentration: FloatArray
    top_share: FloatArray
    n_classes: int
    unparsed_rate: float
    signal: float
    n_samples: int

    def draw(self, n_questions: int, *, seed: int) -> Population:
        """Draw questions; other seeds give other questions of the same population."""
        rng = np.random.default_rng([seed, n_questions])
        kind = rng.choice(len(self.share), n_questions, p=self.share)
        mean, concentration = self.accuracy[kind], self.concentration[kind]
        right = rng.beta(mean * concentration, (1 - mean) * concentration)
        wrong = np.ones((n_questions, self.n_classes - 1))
        if self.n_classes > 2:
            equal = 1 / (self.n_classes - 1)
            top = np.maximum(self.top_share[kind], equal)
            rest = rng.dirichlet(np.full(self.n_classes - 2, 5.0), n_questions)
            wrong = np.column_stack([top, (1 - top)[:, None] * rest])
        probability = np.column_stack([right, (1 - right)[:, None] * wrong])
        noise = rng.normal(size=(n_questions, 3))
        noise[:, 1] = self._blend((right - 0.5) / 0.3, noise[:, 1])
        noise[:, 2] = self._blend((probability[:, 1] - 0.3) / 0.2, noise[:, 2])
        noise[:, 0] = np.rint(200.0 * np.exp(0.5 * noise[:, 0]))  # a length
        return Population(probability, noise.astype(np.float32), self.unparsed_rate)

    def _blend(self, value: FloatArray, noise: FloatArray) -> FloatArray:
        return self.signal * value + math.sqrt(1 - self.signal**2) * noise


def vary_mix(seed: int) -> Mix:
    """Make a mix; four successive seeds have 8 and 16 samples, with and without a text signal."""
    rng = np.random.default_rng([seed, 1])
    ranges = np.array(list(TYPES.values()))
    accuracy, top_share = rng.uniform(ranges[..., 0], ranges[..., 1]).T
    return Mix(
        share=rng.dirichlet(np.full(len(TYPES), rng.choice(EVENNESS))),
        accuracy=accuracy,
        concentration=np.exp(rng.uniform(0.0, math.log(60), len(TYPES))),
        top_share=top_share,
        n_classes=int(rng.choice(CLASS_COUNTS)),
        unparsed_rate=draw_unparsed_rate(rng),
        signal=float(rng.uniform(0.5, 0.95)) if seed // 2 % 2 else 0.0,
        n_samples=SAMPLE_COUNTS[seed % 2],
    )


def draw_alike(n_questions: int, *, seed: int) -> Population:
    """Draw questions that all have the same distribution of answers; the features are noise."""
    rng = np.random.default_rng([seed, 2])
    n_classes, right = int(rng.integers(2, 6)), rng.uniform(0.3, 0.95)
    probability = np.append(right, (1 - right) * rng.dirichlet(np.ones(n_classes - 1)))
    features = rng.normal(size=(n_questions, 3)).astype(np.float32)
    return Population(np.tile(probability, (n_questions, 1)), features, draw_unparsed_rate(rng))


def draw_unparsed_rate(rng: np.random.Generator) -> float:
    """Draw a rate of unparsed samples: none in half of the populations."""
    return float(rng.choice([0.0, rng.uniform(0, MAX_UNPARSED)]))


@dataclass(frozen=True, eq=False)
class Measured:
    """A policy at falling prices beside a vote of equal weights, on the same samples.

    ``difference`` is the policy's accuracy minus that of the vote, ``error`` its standard error,
    both (prices,). ``today_accuracy`` is that of the vote.
    """

    prices: FloatArray
    cost: FloatArray
    difference: FloatArray
    error: FloatArray
    today_accuracy: float

    def at(self, price: float) -> int:
        """Return the place of one of the prices."""
        return int(np.flatnonzero(self.prices == price)[0])

    def same_accuracy_cost(self, n_errors: float = 0.0) -> float | None:
        """Return the smallest cost at which the policy is as accurate as the vote, if there is one.

        Between two prices, accuracy is linear in cost. ``n_errors`` standard errors are added to
        the differences first.
        """
        return first_crossing(self.cost, self.difference + n_errors * self.error)


def first_crossing(cost: FloatArray, difference: FloatArray) -> float | None:
    """Return the smallest of the rising costs at which the difference is 0 or more, if any is.

    >>> first_crossing(np.array([1.0, 2.0, 3.0]), np.array([-0.3, -0.1, 0.1]))
    2.5
    """
    reached = np.flatnonzero(difference >= 0)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0:
        return float(cost[0])
    ends = slice(after - 1, after + 1)
    return float(np.interp(0.0, difference[ends], cost[ends]))


def is_inside(value: float | None, low: float | None, high: float | None) -> bool:
    """Whether an interval of a saving contains it.

    A value of None is that nothing is as accurate as today, which is below every saving. A low end
    of None includes it; a high end of None says that nothing else is possible.
    """
    if value is None:
        return low is None
    return high is not None and (low is None or low <= value) and value <= high


def measure_policy(
    fitted: FittedPolicy,
    pools: Sequence[Pool],
    prices: Sequence[float],
    *,
    today: int,
    n_permutations: int = 1,
    seed: int = 0,
) -> Measured:
    """Run a policy at some prices on pools of the same questions with other samples."""
    falling = np.unique(np.asarray(prices))[::-1]
    size = len(pools[0])
    cost, difference, votes = np.zeros(len(falling)), np.zeros((size, len(falling))), 0.0
    for pool in pools:
        features = pool.features if pool.sequential_features is None else pool.sequential_features
        prepared = fitted.policy.prepare_features(features)
        length = min(pool.n_samples, len(fitted.policy.levels))
        replay = Replay(pool, n_permutations, max(length, today), seed)
        for rows, block in replay.blocks():
            run = block.run(fitted.policy, falling.tolist(), prepared[rows], 1.0)
            vote = block.summarise(*block.play_rule(FixedRule(today))).accuracy
            cost += run.cost.sum(axis=0)
            difference[rows] += run.accuracy - vote[:, None]
            votes += float(vote.sum())
    difference /= len(pools)
    return Measured(
        prices=falling,
        cost=np.maximum.accumulate(cost / (size * len(pools))),
        difference=difference.mean(axis=0),
        error=difference.std(axis=0) / math.sqrt(size),
        today_accuracy=votes / (size * len(pools)),
    )


def measure_distribution(
    probability: FloatArray, unparsed_rate: float, max_samples: int
) -> StateMeasure:
    """Return the exact probability of every vote state of one question, (states, 1).

    Class 0 is correct. All vectors of counts are listed, each with its multinomial probability.
    """
    chance = np.append(probability * (1 - unparsed_rate), unparsed_rate)
    count = np.zeros((1, 0), dtype=np.int64)
    for _ in chance:
        left = max_samples - count.sum(axis=1)
        more = np.concatenate([np.arange(n + 1) for n in left])
        count = np.column_stack([np.repeat(count, left + 1, axis=0), more])
    factorial = np.array([math.factorial(n) for n in range(max_samples + 1)], dtype=np.float64)
    mass = factorial[count.sum(axis=1)] * (chance**count / factorial[count]).prod(axis=1)
    votes = count[:, :-1]
    leads = votes == np.maximum(votes.max(axis=1, keepdims=True), 1)
    correct = mass * leads[:, 0] / np.maximum(leads.sum(axis=1), 1)
    sorted_counts = np.column_stack([-np.sort(-votes, axis=1), count[:, -1]])
    rows, row_of = np.unique(sorted_counts, axis=0, return_inverse=True)
    table = states()
    number = {
        (votes, int(n)): i
        for i, (votes, n) in enumerate(zip(table.votes, table.n_unparsed, strict=True))
    }
    place = np.array([number[tuple(v for v in row[:-1] if v), row[-1]] for row in rows.tolist()])
    totals = np.zeros((2, int(table.first[max_samples + 1]), 1))
    for total, value in zip(totals, (mass, correct), strict=True):
        total[place, 0] = np.bincount(row_of.ravel(), value)
    return StateMeasure(*totals)


def cheapest_cost(measure: StateMeasure, accuracy: float) -> float:
    """Return the smallest mean number of samples at which a stopping rule has this accuracy.

    A rule sees the vote state after each sample, answers with the majority and draws at least one
    sample. Mixtures of rules are rules, so the smallest cost is the largest value, over all prices,
    of (accuracy − value of the best rule at the price) / price. The value of a rule is its accuracy
    minus its cost at that price; the best rule is found by backward induction.
    """
    reciprocal = np.concatenate([[0.0], np.geomspace(1e-2, 1e7, N_GRID)])
    for _ in range(N_REFINEMENTS):
        bound = accuracy * reciprocal - _best_values(measure, reciprocal)
        best = int(bound.argmax())
        ends = reciprocal[max(best - 1, 0)], reciprocal[min(best + 1, len(reciprocal) - 1)]
        reciprocal = np.linspace(*ends, N_GRID)
    return float(bound.max())


def _best_values(measure: StateMeasure, reciprocal: FloatArray) -> FloatArray:
    """Return the largest accuracy × reciprocal price − number of samples of any stopping rule."""
    table = states()
    last = int(table.n_samples[len(measure.mass) - 1])
    stopping = measure.correct_mass * reciprocal
    value = stopping[table.layer(last)]
    for n in range(last - 1, -1, -1):
        continuing = continuation_value(value, n) - measure.mass[table.layer(n)]
        value = np.maximum(stopping[table.layer(n)], continuing) if n else continuing
    return np.asarray(value[0])
