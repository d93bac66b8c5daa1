"""Curves: the cost and the accuracy of a policy on questions that it was not fitted to.

In each split the policy is replayed at all of its prices. The mean cost on the training questions
tells which price, or which mixture of two, reaches each target cost, and the held-out questions are
scored there. The curve of all splits together is then read at a budget by interpolating in the cost
that the held-out questions really had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacompute.core.types import FloatArray, IntArray
from adacompute.evaluation.factories import Experiment, FittedPolicy, PolicyFactory
from adacompute.evaluation.replay import ReplayResult

N_TARGETS = 96
"""Target costs from the cheapest level to the most expensive one, besides those of the levels."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Cost, accuracy and rounds of each held-out question at each target cost, (N, targets).

    For each traced budget, ``n_samples`` holds the mean number of samples of each question, and
    ``price`` the price at which it was replayed. A stepped curve cannot be interpolated.
    """

    cost: FloatArray
    accuracy: FloatArray
    n_rounds: FloatArray
    n_samples: dict[float, FloatArray]
    price: dict[float, FloatArray]
    is_stepped: bool = False


Split = tuple[IntArray, IntArray]
"""Rows of the training questions and of the held-out questions."""


def split_folds(fold: IntArray) -> list[Split]:
    """Return one split per fold, in which that fold is held out."""
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in np.unique(fold)]


def cross_validate(
    experiment: Experiment,
    factory: PolicyFactory,
    splits: Sequence[Split],
    *,
    trace: tuple[float, ...] = (),
) -> Curve:
    """Fit a policy on the training questions of each split and score it on the held-out ones.

    A question that is held out several times gets the mean of its scores; what is traced at the
    budgets ``trace`` comes from the last split.
    """
    targets = _target_costs(experiment)
    n_questions = len(experiment.pool)
    totals = {
        column: np.zeros((n_questions, len(targets))) for column in ("cost", "accuracy", "n_rounds")
    }
    times = np.zeros((n_questions, 1))
    n_samples = {budget: np.empty(n_questions) for budget in trace}
    prices = {budget: np.empty(n_questions) for budget in trace}
    is_stepped = False
    for train, held_out in splits:
        times[held_out] += 1
        fitted = factory(experiment, train)
        is_stepped = fitted.is_stepped
        sample_cost = experiment.sample_cost(train)
        results = [replay_fitted(experiment, fitted, p, sample_cost) for p in fitted.prices]
        # Accumulated, so that a price that costs more than a lower one is never used.
        cost = np.maximum.accumulate([result.cost[train].mean() for result in results])
        first, share = _locate(targets, cost, is_stepped=is_stepped)
        after = np.minimum(first + 1, len(results) - 1)
        for column, total in totals.items():
            values = np.stack([getattr(result, column)[held_out] for result in results], axis=1)
            total[held_out] += values[:, first] * (1 - share) + values[:, after] * share
        for budget in trace:
            price = training_price(budget, cost, fitted)
            result = replay_fitted(experiment, fitted, price, sample_cost)
            prices[budget][held_out] = price
            n_samples[budget][held_out] = result.n_samples[held_out]
    times = np.maximum(times, 1)  # questions that were never held out stay at zero
    means = {column: total / times for column, total in totals.items()}
    return Curve(**means, n_samples=n_samples, price=prices, is_stepped=is_stepped)


def _target_costs(experiment: Experiment) -> FloatArray:
    """Return the costs of the levels, and a grid between the lowest and the highest."""
    rows, levels = np.arange(len(experiment.pool)), np.asarray(experiment.levels)
    costs = experiment.sample_cost(rows) * levels + experiment.round_cost(rows)
    highest = costs[-1] if experiment.pool.resort is None else experiment.max_cost(rows)
    return np.union1d(costs, np.geomspace(costs[0], highest, N_TARGETS))


def replay_fitted(
    experiment: Experiment, fitted: FittedPolicy, price: float, sample_cost: float
) -> ReplayResult:
    """Replay a fitted policy at a price on all questions of its experiment."""
    return experiment.replay.run(
        fitted.policy, price, sample_cost=sample_cost, features=fitted.prepared_features
    )


def _locate(
    targets: FloatArray, cost: FloatArray, *, is_stepped: bool
) -> tuple[IntArray, FloatArray]:
    """Return the setting that reaches each target cost, and the share of the next setting."""
    position = np.interp(targets, cost, np.arange(len(cost)))
    if is_stepped:
        fits = np.searchsorted(cost, targets * (1 + 1e-9), side="right") - 1
        return np.maximum(fits, 0), np.zeros(len(targets))
    first = np.minimum(position.astype(np.int64), len(cost) - 1)
    return first, position - first


def training_price(budget: float, cost: FloatArray, fitted: FittedPolicy) -> float:
    """Return the price at which the training questions cost the budget on average."""
    if fitted.is_stepped:
        fits = int(np.searchsorted(cost, budget * (1 + 1e-9), side="right")) - 1
        return fitted.prices[max(0, fits)]
    return float(np.exp(np.interp(budget, cost, np.log(fitted.prices))))


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """The means of a curve at a budget, and its accuracy under each resampling."""

    cost: float
    accuracy: float
    n_rounds: float
    resampled: FloatArray


def read_curve(curve: Curve, budget: float, weights: FloatArray) -> CurvePoint:
    """Read a curve at a budget, by linear interpolation in the realised cost.

    ``weights`` (R, N) say how often each question counts in each resampling; the first row counts
    each question once. A budget beyond the curve is read at its end.
    """
    total = weights.sum(axis=1, keepdims=True)
    cost, accuracy = weights @ curve.cost / total, weights @ curve.accuracy / total
    cost, n_rounds = np.maximum.accumulate(cost, axis=1), weights[0] @ curve.n_rounds / total[0]
    if curve.is_stepped:
        fits = np.searchsorted(cost[0], budget * (1 + 1e-9), side="right") - 1
        at = max(0, int(fits))
        means = float(cost[0, at]), float(accuracy[0, at]), float(n_rounds[at])
        return CurvePoint(*means, accuracy[1:, at])
    values = np.array([np.interp(budget, c, a) for c, a in zip(cost, accuracy, strict=True)])
    return CurvePoint(
        cost=float(np.clip(budget, cost[0, 0], cost[0, -1])),
        accuracy=float(values[0]),
        n_rounds=float(np.interp(budget, cost[0], n_rounds)),
        resampled=values[1:],
    )
