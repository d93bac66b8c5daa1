"""Refits: how much the cost and the gain of a policy depend on which questions it was fitted to.

A policy that is fitted again, on other questions like these, has another cost and another gain. Its
held-out results do not show that, because the fits of the folds share most of their questions. So
the questions are split into three parts, several times. Two policies that were fitted to two of the
parts are compared on the third: they share no training question, and they are scored on the same
questions. Half of the mean squared difference is the variance of a fit to that many questions. It
falls in proportion to their number.

A policy that is fitted to fewer questions also gains less. What is lost is taken as proportional to
the reciprocal of their number, so the gain of fits to thirds, and that of the fits to four fifths
in the folds, say how much more the policy gains that is fitted to all of them.

This module does not know intervals.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.types import hash_keys
from adacompute.evaluation.factories import sees_evidence
from adacompute.evaluation.intervals import Mean
from adacompute.evaluation.pool import N_FOLDS, assign_folds
from adacompute.evaluation.scoring.held_out import (
    FoldResult,
    HeldOutCurve,
    recall_splits,
    split_folds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import FloatArray, IntArray, KeyArray
    from adacompute.evaluation.experiment import Experiment, PolicyFactory
    from adacompute.evaluation.replay import ReplayResult
    from adacompute.evaluation.scoring.held_out import CurvePoint

N_PARTS = 3
N_SPLITS = 3
"""Random splits into three parts; each gives three fits and three comparisons."""

N_SPLITS_WITH_PLANS = 1
"""The same where rounds, arms or confidence matter: fits and plans are then slow."""

MAX_QUESTIONS = 6000
"""Questions that are split at most; the variance is scaled to the number of all."""


class RefitVariance(NamedTuple):
    """Variance of the mean cost and gain between fits to as many questions as there are.

    ``cost`` leaves out what comes from the training questions being easy or hard by chance, because
    the standard error of a mean over the same questions already covers it. ``growth`` is how much
    more such a fit gains than those of the folds.
    """

    cost: float
    gain: float
    growth: float = 0.0


@dataclass(frozen=True, eq=False)
class Refits:
    """Fits to thirds of the questions, each scored on the other two thirds.

    ``part`` (splits, N) is the part of each question in each split, and ``folds`` holds the fit of
    each split and part. ``n_groups`` is the number of independent questions of the whole pool.
    """

    part: IntArray
    folds: tuple[tuple[FoldResult, ...], ...]
    group: KeyArray
    n_groups: int

    def variance(self, point: CurvePoint, baseline: HeldOutCurve) -> RefitVariance:
        """Return the variances at the setting of a point.

        The gain is the accuracy minus that of the baseline at the same cost.
        """
        setting, cost = point.setting, point.cost
        slope, base = baseline.slope(cost), baseline.read(cost)
        gain = point.accuracy - base.accuracy - slope * (cost - base.cost)
        total_cost, training = [], []
        for rows, one, other in self._pairs(setting):
            total_cost.append(_squared_mean(one.cost - other.cost, self.group[rows]))
            error = Mean.of(one.cost, self.group[rows]).standard_error
            training.append(error**2)  # of a mean over as many questions as a fit has
        of_cost = float(np.mean(total_cost)) / 2 - float(np.mean(training))
        return RefitVariance(
            cost=self._scale * max(0.0, of_cost),
            gain=self.accuracy_variance(np.array([setting]), np.array([slope])),
            growth=self._measure_growth(setting, base, slope, gain),
        )

    def _measure_growth(self, setting: float, base: CurvePoint, slope: float, gain: float) -> float:
        """Return how much more a fit to all questions gains than those of the folds do."""
        if self.part.shape[1] != len(base.result.cost):
            return 0.0  # so many questions that it makes no difference
        results = [(fold.held_out, fold.at(setting)) for fold in itertools.chain(*self.folds)]
        by_fit = [
            (one.accuracy - base.result.accuracy[rows]).mean()
            - slope * (one.cost - base.result.cost[rows]).mean()
            for rows, one in results
        ]
        of_folds = N_FOLDS / (N_FOLDS - 1)
        lost = (gain - float(np.mean(by_fit))) / (N_PARTS - of_folds)
        return lost * (of_folds - 1)

    def accuracy_variance(self, settings: FloatArray, slope: FloatArray) -> float:
        """Return the variance of the accuracy between fits, one number for all settings.

        It is the mean over settings: single ones jump, and a search would pick the small ones.
        Accuracy is at equal cost where the ``slope`` of accuracy in cost is given, (settings,).
        """
        found = [
            _squared_mean(
                one.accuracy - other.accuracy - rise * (one.cost - other.cost), self.group[rows]
            )
            for setting, rise in zip(settings.tolist(), slope.tolist(), strict=True)
            for rows, one, other in self._pairs(setting)
        ]
        return self._scale * max(0.0, float(np.mean(found)) / 2)

    def _pairs(self, setting: float) -> Iterator[tuple[IntArray, ReplayResult, ReplayResult]]:
        """Yield the rows of each third, and the results on it of the fits to the other two."""
        for part, folds in zip(self.part, self.folds, strict=True):
            for third in range(N_PARTS):
                rows = np.flatnonzero(part == third)
                fits = [folds[p] for p in range(N_PARTS) if p != third]
                one, other = (
                    fit.at(setting).take(np.searchsorted(fit.held_out, rows)) for fit in fits
                )
                yield rows, one, other

    @property
    def _scale(self) -> float:
        """Variance of a fit to all questions as a share of that of a fit to a third."""
        return len(np.unique(self.group)) / N_PARTS / self.n_groups


def _squared_mean(difference: FloatArray, group: KeyArray) -> float:
    """Return the square of a mean over questions, without what the questions' noise adds to it."""
    mean = Mean.of(difference, group)
    return mean.value**2 - mean.standard_error**2


def score_refits(
    experiment: Experiment, factory: PolicyFactory, n_splits: int | None = None
) -> Refits:
    """Fit a policy to thirds of the questions and replay it on the others.

    ``n_splits`` is three by default, and one where fits or plans are slow.
    """
    whole = experiment
    if len(experiment.pool) > MAX_QUESTIONS:
        order = np.argsort(hash_keys(experiment.pool.group), kind="stable")
        rows = np.sort(order[:MAX_QUESTIONS])
        experiment = replace(experiment, pool=experiment.pool.take(rows))
    group = experiment.pool.group
    has_rounds = bool(experiment.pool.round_costs.any()) or experiment.round_limit is not None
    has_plans = has_rounds or (experiment.weighs_votes and sees_evidence(factory))
    n_splits = n_splits or (N_SPLITS_WITH_PLANS if has_plans else N_SPLITS)
    part = np.stack(
        [assign_folds(group, N_PARTS, seed=experiment.seed + 1 + i) for i in range(n_splits)]
    )
    # A policy is fitted to the one part that a fold holds out, and scored on the others.
    splits = [(own, others) for one in part for others, own in split_folds(one)]
    found = recall_splits(whole, experiment, factory, splits, f"{n_splits} refits")
    results = [replace(one, fitted=None) for one in found]  # many fits take much memory
    folds = tuple(tuple(results[i : i + N_PARTS]) for i in range(0, len(results), N_PARTS))
    return Refits(part, folds, group, whole.pool.n_groups)
