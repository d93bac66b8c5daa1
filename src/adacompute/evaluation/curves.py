"""Curves: what a policy costs and gets right on questions it was not fitted to.

Each fold's policy is followed along its prices; the mean cost on training questions says which
price, or which two mixed, spend what is aimed at; the held-out questions are scored at that. The
curve that all folds make together is then read at a budget by interpolating in the cost that the
held-out questions really had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacompute.core.types import FloatArray, IntArray
from adacompute.evaluation.factories import Experiment, FittedPolicy, PolicyFactory
from adacompute.evaluation.replay import ReplayResult

AIMS = 96
"""Mean costs that training aims at, from the cheapest level to the dearest, besides the levels'."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Cost, accuracy and rounds of each question, while it was held out, along the aims, (N, aims).

    ``samples`` holds, for each budget traced, how many samples each question was given on average,
    and ``price`` the price at which. A stepped curve cannot be interpolated.
    """

    cost: FloatArray
    accuracy: FloatArray
    rounds: FloatArray
    samples: dict[float, FloatArray]
    price: dict[float, FloatArray]
    stepped: bool = False


Split = tuple[IntArray, IntArray]
"""Training questions and those held out."""


def split_folds(fold: IntArray) -> list[Split]:
    """Hold out each fold once."""
    return [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in np.unique(fold)]


def cross_validate(
    experiment: Experiment,
    factory: PolicyFactory,
    splits: Sequence[Split],
    *,
    trace: tuple[float, ...] = (),
) -> Curve:
    """Fit a factory on the training questions of each split and score it on those held out.

    A question that is held out several times is scored by the mean; what is traced, by the last.
    """
    every = np.arange(len(experiment.pool))
    levels = experiment.sample_cost(every) * np.asarray(experiment.levels) + experiment.round_cost(
        every
    )
    dearest = levels[-1] if experiment.pool.resort is None else experiment.dearest(every)
    aims = np.union1d(levels, np.geomspace(levels[0], dearest, AIMS))
    shape = (len(experiment.pool), len(aims))
    found = {column: np.zeros(shape) for column in ("cost", "accuracy", "rounds")}
    times = np.zeros((shape[0], 1))
    samples = {budget: np.empty(shape[0]) for budget in trace}
    price = {budget: np.empty(shape[0]) for budget in trace}
    stepped = False
    for train, held in splits:
        times[held] += 1
        fitted = factory(experiment, train)
        stepped = fitted.stepped
        told = experiment.sample_cost(train)
        runs = [run_fitted(experiment, fitted, price, told) for price in fitted.prices]
        spent = np.array([run.cost[train].mean() for run in runs])
        spent = np.maximum.accumulate(spent)  # a price that buys less for more is never turned to
        first, share = _place(aims, spent, stepped=stepped)
        for column, target in found.items():
            values = np.stack([getattr(run, column)[held] for run in runs], axis=1)
            after = np.minimum(first + 1, len(runs) - 1)
            target[held] += values[:, first] * (1 - share) + values[:, after] * share
        for budget in trace:
            price[budget][held] = at = price_for(budget, spent, fitted)
            run = run_fitted(experiment, fitted, at, told)
            samples[budget][held] = run.samples[held]
    times = np.maximum(times, 1)  # what was never held out is left at zero
    means = {column: target / times for column, target in found.items()}
    return Curve(**means, samples=samples, price=price, stepped=stepped)


def run_fitted(
    experiment: Experiment, fitted: FittedPolicy, price: float, sample_cost: float
) -> ReplayResult:
    """Run a fitted policy at a price on all questions of its experiment."""
    return experiment.replay.run(
        fitted.policy, price, sample_cost=sample_cost, features=fitted.digested
    )


def _place(aims: FloatArray, spent: FloatArray, *, stepped: bool) -> tuple[IntArray, FloatArray]:
    """Setting that spends what is aimed at, and the share of the next one."""
    place = np.interp(aims, spent, np.arange(len(spent)))
    if stepped:
        fits = np.searchsorted(spent, aims * (1 + 1e-9), side="right") - 1
        return np.maximum(fits, 0), np.zeros(len(aims))
    first = np.minimum(place.astype(np.int64), len(spent) - 1)
    return first, place - first


def price_for(budget: float, spent: FloatArray, fitted: FittedPolicy) -> float:
    """Price at which the training questions cost a budget."""
    if fitted.stepped:
        fits = int(np.searchsorted(spent, budget * (1 + 1e-9), side="right")) - 1
        return fitted.prices[max(0, fits)]
    return float(np.exp(np.interp(budget, spent, np.log(fitted.prices))))


@dataclass(frozen=True, eq=False)
class Reading:
    """A curve read at a budget: its means, and the accuracy under each resampling."""

    cost: float
    accuracy: float
    rounds: float
    resampled: FloatArray


def read_curve(curve: Curve, budget: float, weights: FloatArray) -> Reading:
    """Read a curve at a budget, by interpolating linearly in realised cost.

    ``weights`` (resamplings, N) are how often each question counts; the first row counts each once.
    Where the curve does not reach the budget, it is read at its end.
    """
    total = weights.sum(axis=1, keepdims=True)
    cost, accuracy = weights @ curve.cost / total, weights @ curve.accuracy / total
    cost, rounds = np.maximum.accumulate(cost, axis=1), weights[0] @ curve.rounds / total[0]
    if curve.stepped:
        fits = np.searchsorted(cost[0], budget * (1 + 1e-9), side="right") - 1
        at = max(0, int(fits))
        found = float(cost[0, at]), float(accuracy[0, at]), float(rounds[at])
        return Reading(*found, accuracy[1:, at])
    read = np.array([np.interp(budget, c, a) for c, a in zip(cost, accuracy, strict=True)])
    spent = float(np.clip(budget, cost[0, 0], cost[0, -1]))
    return Reading(spent, float(read[0]), float(np.interp(budget, cost[0], rounds)), read[1:])
