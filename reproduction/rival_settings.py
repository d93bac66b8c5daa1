"""Rival settings: fit a method of the literature that is scored but never served.

A rival has many settings: thresholds, numbers of samples, models. Their results on recorded samples
are tables, one column per setting. Those that are efficient on the training questions are kept with
their prices, as for every other policy, and the rest is the common protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.errors import ConfigError
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.policies.policy import Policy
from adacompute.policies.price_schedule import fit_price_schedule

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, Level
    from adacompute.evaluation.evidence import Evidence
    from adacompute.evaluation.replay import ReplayResult
    from adacompute.policies.policy import State
    from adacompute.policies.price_schedule import PriceSchedule

CAPS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Numbers of samples that settings are made of."""


@dataclass(frozen=True, eq=False)
class ScoredSettings(Policy):
    """Efficient settings of a rival, by rising cost, with their prices. It cannot decide."""

    name: str = field()
    settings: tuple[Any, ...]
    schedule: PriceSchedule = field()
    levels: tuple[Level, ...]

    def decide(self, state: State, price: float) -> IntArray:
        """Refuse: a rival is looked up in tables of recorded samples."""
        raise ConfigError(
            f"{self.name} is only scored on recorded samples, so it cannot decide about "
            f"{len(state)} questions at the price {price:g}: use another policy"
        )


def fit_settings(
    name: str,
    experiment: Experiment,
    train: IntArray,
    settings: Sequence[Any],
    result: ReplayResult,
) -> FittedPolicy:
    """Keep the settings that are efficient on the training questions.

    ``result`` are the results of all settings on all questions, (N, settings).
    """
    cost, accuracy = result.cost[train].mean(axis=0), result.accuracy[train].mean(axis=0)
    kept, schedule = fit_price_schedule(cost, accuracy)
    chosen = tuple(settings[i] for i in kept.tolist())
    policy = ScoredSettings(name, chosen, schedule, experiment.dense_levels)
    features = experiment.pool.features
    return FittedPolicy(policy, schedule.prices, features, known=result.columns(kept))


def fit_stopping(
    name: str,
    experiment: Experiment,
    train: IntArray,
    thresholds: Sequence[float],
    table: tuple[FloatArray, FloatArray],
) -> FittedPolicy:
    """Keep the efficient thresholds and caps of a rule that stops when a score is high enough.

    ``table`` holds the score and the accuracy of the vote after 1, 2, … samples, both (M, n).
    """
    evidence, (score, correct) = experiment.evidence, table
    settings, stops = _find_stops(score, thresholds)
    cost = np.cumsum(evidence.samples.cost[evidence.order[0]], axis=1)
    rows = orders_of(evidence, train)
    means = [(cost[rows, stop[rows]].mean(), correct[rows, stop[rows]].mean()) for stop in stops]
    kept, _ = fit_price_schedule(*np.array(means).T)
    last = np.stack([stops[i] for i in kept.tolist()], axis=1).astype(np.int64)
    n_samples = (last + 1).astype(np.float64)
    cost, correct = (np.take_along_axis(one, last, axis=1) for one in (cost, correct))
    result = evidence.summarise(cost, correct, n_samples, n_samples)
    return fit_settings(name, experiment, train, [settings[i] for i in kept.tolist()], result)


def _find_stops(
    score: FloatArray, thresholds: Sequence[float]
) -> tuple[list[tuple[float, int]], list[np.ndarray]]:
    """Return the settings, and the last sample of each order in each of them, from 0."""
    cap = score.shape[1]
    settings, stops = [(0.0, 1)], [np.zeros(len(score), dtype=np.int8)]
    for threshold in thresholds:
        reached = score >= threshold
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), cap - 1).astype(np.int8)
        for end in sorted({*(n for n in CAPS if 1 < n < cap), cap}):
            settings.append((threshold, end))
            stops.append(np.minimum(first, np.int8(end - 1)))
    return settings, stops


def orders_of(evidence: Evidence, rows: IntArray) -> IntArray:
    """Return the rows of the orders of some questions."""
    count = evidence.n_permutations
    return np.asarray((rows[:, None] * count + np.arange(count)).ravel())
