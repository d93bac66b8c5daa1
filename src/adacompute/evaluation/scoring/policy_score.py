"""Policy score: a policy on held-out questions, compared with the baseline.

Everything that is said about a policy at a budget comes from here: its cost, its accuracy, its gain
over the baseline, and their intervals. An interval covers the choice of questions and of the
samples recorded for them, and the fit: another set of training questions gives another policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.evaluation.experiment import Experiment, PolicyFactory
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.intervals import CONFIDENCE, Interval, Mean, student_quantile
from adacompute.evaluation.kept_results import Memory
from adacompute.evaluation.scoring.baseline import BASELINE, EQUAL_VOTES, score_baseline
from adacompute.evaluation.scoring.held_out import (
    CurvePoint,
    HeldOutCurve,
    measure_difference,
    score_held_out,
)
from adacompute.evaluation.scoring.refits import Refits, RefitVariance, score_refits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, KeyArray

ROUNDING = 1e-9
"""Gains up to this size come from the order of a sum."""


@dataclass(frozen=True, eq=False)
class PolicyScore:
    """A policy and the baseline on the same held-out questions.

    ``refit_splits`` is how often the questions are split to measure the variance of a fit.
    """

    experiment: Experiment
    factory: PolicyFactory
    curve: HeldOutCurve
    baseline: HeldOutCurve
    refit_splits: int | None = None
    _variances: Memory = field(default_factory=Memory, init=False, repr=False)

    @property
    def group(self) -> KeyArray:
        """Group of each question; copies of a question share one."""
        return self.experiment.pool.group

    @cached_property
    def n_groups(self) -> int:
        """Number of independent questions."""
        return len(np.unique(self.group))

    @cached_property
    def refits(self) -> Refits | None:
        """Fits to other questions; None if the policy is the baseline itself."""
        if self.curve is self.baseline:
            return None
        known = self.factory, self.refit_splits
        return self.experiment.memory.remember(
            ("refits", *known), lambda: score_refits(self.experiment, *known)
        )

    def refit_variance(self, point: CurvePoint) -> RefitVariance:
        """Return the variances of the cost and gain of a point between fits."""
        if self.refits is None:
            return RefitVariance(0.0, 0.0)
        refits, place = self.refits, (point.setting, point.cost)
        return self._variances.remember(place, lambda: refits.variance(point, self.baseline))

    def mean_cost(self, point: CurvePoint) -> Mean:
        """Return the mean cost of a point; its standard error covers the fit."""
        mean = Mean.of(point.result.cost, self.group)
        return mean.widen(self.refit_variance(point).cost)

    def gain(self, point: CurvePoint, confidence: float = CONFIDENCE) -> Interval:
        """Return the accuracy minus that of the baseline at the same cost, with its interval.

        The fits of the folds lack a fifth of the questions. How much more the fit to all of them is
        expected to gain extends the upper end.
        """
        value, influence = measure_difference(self.baseline, point)
        variance = self.refit_variance(point)
        found = self.interval(value, influence, variance.gain, confidence)
        if found.low == found.high:
            return found  # the baseline under another name
        return replace(found, high=found.high + max(0.0, variance.growth))

    def accuracy(self, point: CurvePoint, confidence: float = CONFIDENCE) -> Interval:
        """Return the mean accuracy of a point, with its interval over questions."""
        mean = Mean.of(point.result.accuracy, self.group)
        return mean.interval(confidence).clip(0.0, 1.0)

    def accuracy_variance(
        self, points: Sequence[CurvePoint], slope: FloatArray | None = None
    ) -> float:
        """Return the variance of the accuracy between fits, one number for all points.

        Where the ``slope`` of accuracy in cost is given, it is that of the accuracy at equal cost.
        """
        if self.refits is None:
            return 0.0
        settings = np.array([point.setting for point in points])
        return self.refits.accuracy_variance(
            settings, np.zeros(len(points)) if slope is None else slope
        )

    def difference(self, other: PolicyScore, budgets: Sequence[float]) -> Interval:
        """Return the accuracy minus that of another policy at equal cost, averaged over budgets.

        The fits of two policies to the same questions are taken as independent, which is cautious.
        """
        points = [self.curve.read(budget) for budget in budgets]
        found = [measure_difference(other.curve, point) for point in points]
        variances = [
            self.refit_variance(point).gain
            + other.refit_variance(other.curve.read(point.cost)).gain
            for point in points
        ]
        influence = np.mean([own for _, own in found], axis=0)
        value = float(np.mean([one for one, _ in found]))
        # The fit is the same at all budgets, so its errors do not average out.
        return self.interval(value, influence, float(np.mean(np.sqrt(variances))) ** 2)

    def interval(
        self,
        value: float,
        influence: FloatArray,
        refit_variance: float = 0.0,
        confidence: float = CONFIDENCE,
    ) -> Interval:
        """Return a value with its interval, from the influence of each question on it."""
        if abs(value) < ROUNDING and not np.abs(influence).max(initial=0.0) > ROUNDING:
            return Interval(0.0, 0.0, 0.0)
        error = Mean.of(influence, self.group).standard_error
        quantile = student_quantile(0.5 + confidence / 2, self.n_groups)
        margin = quantile * math.sqrt(error**2 + refit_variance)
        return Interval(value, value - margin, value + margin)


def score_policy(
    experiment: Experiment,
    policy: str | PolicyFactory,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> PolicyScore:
    """Score a policy and the baseline on held-out questions; both are scored once.

    ``progress`` is called with the name of each step.
    """
    factory = find_factory(policy)

    def score() -> PolicyScore:
        progress("mixture")
        baseline = curve = score_baseline(experiment)
        if factory is not find_factory(BASELINE):
            progress("folds")
            curve = score_held_out(experiment, factory)
        return PolicyScore(experiment, factory, curve, baseline)

    return experiment.memory.remember(("score", factory), score)


def measure_vote_gain(experiment: Experiment, cost: float) -> Interval:
    """Return what weighted votes gain over equal ones in the mixture at a cost; 0 without weights.

    It is the same for every policy of an experiment, and comes on top of the gain of a policy.
    """
    weighted, equal = (score_baseline(experiment, name) for name in (BASELINE, EQUAL_VOTES))
    score = PolicyScore(experiment, find_factory(BASELINE), weighted, equal)
    return score.gain(weighted.read(cost))


def measure_retry_gain(experiment: Experiment, cost: float) -> Interval:
    """Return what resampling unparsed answers alone gains over the baseline at a cost.

    It is 0 if all samples were parsed, or if there are several arms.
    """
    if not has_retries(experiment):
        return Interval(0.0, 0.0, 0.0)
    retry = score_policy(experiment, "retry")
    return retry.gain(retry.curve.read(cost))


def has_retries(experiment: Experiment) -> bool:
    """Whether samples can be drawn again because they could not be parsed."""
    pool = experiment.pool
    return not pool.has_arms and bool((pool.answers.answer == UNPARSED).any())
