"""Policy score: a policy on held-out questions, compared with the best mixture of uniform levels.

Everything that is said about a policy at a budget comes from here: its cost, its accuracy, its gain
over the mixture, and their intervals. An interval covers the choice of questions and of the samples
recorded for them, and the fit: another set of training questions gives another policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.evaluation.experiment import Experiment, PolicyFactory
from adacompute.evaluation.factories import find_factory, sees_evidence
from adacompute.evaluation.held_out import (
    CurvePoint,
    HeldOutCurve,
    measure_difference,
    score_held_out,
)
from adacompute.evaluation.intervals import CONFIDENCE, Interval, Mean, student_quantile
from adacompute.evaluation.refits import Refits, RefitVariance, score_refits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, KeyArray

ROUNDING = 1e-9
"""Gains up to this size come from the order of a sum."""


@dataclass(frozen=True, eq=False)
class PolicyScore:
    """A policy and the mixture on the same held-out questions.

    ``refit_splits`` is how often the questions are split to measure the variance of a fit.
    """

    experiment: Experiment
    factory: PolicyFactory
    curve: HeldOutCurve
    mixture: HeldOutCurve
    refit_splits: int | None = None
    _refit_variances: dict[tuple[float, float], RefitVariance] = field(
        default_factory=dict, repr=False
    )

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
        """Fits to other questions; None if the policy is the mixture itself."""
        if self.curve is self.mixture:
            return None
        return score_refits(self.experiment, self.factory, self.refit_splits)

    def refit_variance(self, point: CurvePoint) -> RefitVariance:
        """Return the variances of the cost, gain and accuracy of a point between fits."""
        if self.refits is None:
            return RefitVariance(0.0, 0.0, 0.0)
        place = point.setting, point.cost
        if place not in self._refit_variances:
            found = self.refits.variance(point.setting, self.mixture, point.cost)
            self._refit_variances[place] = found
        return self._refit_variances[place]

    def mean_cost(self, point: CurvePoint) -> Mean:
        """Return the mean cost of a point; its standard error covers the fit."""
        mean = Mean.of(point.result.cost, point.result.cost_variance, self.group)
        return mean.widen(self.refit_variance(point).cost)

    def gain(self, point: CurvePoint, confidence: float = CONFIDENCE) -> Interval:
        """Return the accuracy minus that of the mixture at the same cost, with its interval."""
        value, influence = measure_difference(self.mixture, point)
        return self.interval(value, influence, self.refit_variance(point).gain, confidence)

    def accuracy(self, point: CurvePoint, confidence: float = CONFIDENCE) -> Interval:
        """Return the mean accuracy of a point, with its interval over questions.

        Where samples are imputed, it covers how they are, which differs between fits.
        """
        mean = Mean.of(point.result.accuracy, 0.0, self.group)
        if self.experiment.pool.n_imputed:
            mean = mean.widen(self.refit_variance(point).accuracy)
        return mean.interval(confidence).clip(0.0, 1.0)

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
        error = Mean.of(influence, 0.0, self.group).standard_error
        quantile = student_quantile(0.5 + confidence / 2, self.n_groups)
        margin = quantile * math.sqrt(error**2 + refit_variance)
        return Interval(value, value - margin, value + margin)


def score_policy(
    experiment: Experiment,
    policy: str | PolicyFactory,
    mixture: HeldOutCurve | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> PolicyScore:
    """Score a policy on held-out questions; the mixture is scored too, unless it is given.

    Policy and mixture vote alike: by learned weights if the policy sees the confidence of samples,
    else by counting each sample once. ``progress`` is called with the name of each step.
    """
    factory = find_factory(policy)
    if not sees_evidence(policy):
        experiment = experiment.votes_only
    if mixture is None and factory in experiment.scores:
        found: PolicyScore = experiment.scores[factory]
        return found
    is_own = mixture is None
    if mixture is None:
        progress("mixture")
        mixture = score_held_out(experiment, find_factory("mixture"))
    curve = mixture
    if policy != "mixture":
        progress("folds")
        curve = score_held_out(experiment, factory)
    score = PolicyScore(experiment, factory, curve, mixture)
    if is_own:
        experiment.scores[factory] = score
    return score
