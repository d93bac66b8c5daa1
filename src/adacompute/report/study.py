"""Study: one policy at every budget, and other policies for comparison, on held-out questions.

The policy is fitted for each fold and scored along prices on the held-out questions, as in
calibration. An operating point is what a budget buys: the lowest price whose mean cost stays within
the budget with confidence, interpolated between two neighbouring prices. Intervals come from a
bootstrap over questions, with copies of a text kept together. It reads no files and formats
nothing.

R resamplings, N questions, T target costs of a curve, G operating points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError
from adacompute.evaluation.curves import Curve, cross_validate, split_folds
from adacompute.evaluation.factories import Experiment, find_factory
from adacompute.evaluation.intervals import (
    CONFIDENCE,
    N_RESAMPLES,
    Interval,
    Mean,
    bootstrap_weights,
    refit_interval,
    resample_questions,
)
from adacompute.evaluation.oracles import cross_fitted_oracle
from adacompute.evaluation.price_search import PriceSweep, mean_cost, sweep_prices
from adacompute.evaluation.verdict import MIN_QUESTIONS

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

N_PRICES = 48
QUESTION_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of questions for which the interval of the gain is shown, relative to the real number."""


@dataclass(frozen=True, eq=False)
class ResampledCurve:
    """A curve under every resampling of the questions, (R, T); row 0 is the original."""

    cost: FloatArray
    accuracy: FloatArray

    @staticmethod
    def of(cost: FloatArray, accuracy: FloatArray, weights: FloatArray) -> ResampledCurve:
        """Average the cost and accuracy of each question, (N, T), with weights, (R, N)."""
        total = weights.sum(axis=1, keepdims=True)
        mean = np.maximum.accumulate(weights @ cost / total, axis=1)
        return ResampledCurve(mean, weights @ accuracy / total)

    def at(self, cost: FloatArray) -> FloatArray:
        """Return the accuracy at costs, (R, G), by interpolating in the realised cost."""
        return np.stack(
            [np.interp(*row) for row in zip(cost, self.cost, self.accuracy, strict=True)]
        )


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """What a budget buys: its price, and the cost, accuracy and samples of each question, (N,)."""

    budget: float
    price: float
    cost: FloatArray
    accuracy: FloatArray
    n_samples: FloatArray


@dataclass(frozen=True, eq=False)
class Study:
    """A policy along its prices, the best uniform mixture, and the bootstrap weights."""

    experiment: Experiment
    name: str
    sweep: PriceSweep
    uniform: Curve
    weights: FloatArray

    @cached_property
    def mixture(self) -> ResampledCurve:
        """The best mixture of uniform levels, under every resampling."""
        return ResampledCurve.of(self.uniform.cost, self.uniform.accuracy, self.weights)

    @cached_property
    def policy(self) -> ResampledCurve:
        """The policy along its prices, under every resampling."""
        cost, accuracy, _ = self._columns
        return ResampledCurve.of(cost, accuracy, self.weights)

    @cached_property
    def retry(self) -> ResampledCurve | None:
        """The policy that only resamples unparsed answers; None if all samples were parsed."""
        if not (self.experiment.pool.answers.answer == UNPARSED).any():
            return None
        splits = split_folds(self.sweep.fold)
        curve = cross_validate(self.experiment, find_factory("retry"), splits)
        return ResampledCurve.of(curve.cost, curve.accuracy, self.weights)

    @cached_property
    def cost_high(self) -> FloatArray:
        """Upper bound of the mean cost at each price, which a budget is compared with."""
        means = [mean_cost(self.sweep, result) for result in self.sweep.results]
        high = np.array([mean.value + mean.margin(CONFIDENCE) for mean in means])
        return np.asarray(np.maximum.accumulate(high), dtype=np.float64)

    @property
    def has_enough_questions(self) -> bool:
        """Whether there are enough different questions for a verdict."""
        return self.n_groups >= MIN_QUESTIONS

    @cached_property
    def n_groups(self) -> int:
        """Number of different questions."""
        return len(np.unique(self.experiment.pool.group))

    @cached_property
    def _columns(self) -> list[FloatArray]:
        """Cost, accuracy and number of samples along the prices, (N, prices) each."""
        names, results = ("cost", "accuracy", "n_samples"), self.sweep.results
        return [np.stack([getattr(one, name) for one in results], axis=1) for name in names]

    def operating_point(self, budget: float) -> OperatingPoint:
        """Return what a budget buys."""
        high = self.cost_high
        if budget < high[0] * (1 - 1e-9):
            raise ConfigError(
                f"a budget of {budget:g} cannot be held with {CONFIDENCE:.0%} confidence: "
                f"{self.name} costs at least {high[0]:.6g}; use a larger budget"
            )
        position = float(np.interp(budget, high, np.arange(len(high))))
        first = min(int(position), len(high) - 2)
        share = position - first
        mixed = [
            column[:, first] * (1 - share) + column[:, first + 1] * share
            for column in self._columns
        ]
        prices = np.log(self.sweep.prices)
        price = float(np.exp(prices[first] * (1 - share) + prices[first + 1] * share))
        return OperatingPoint(budget, price, *mixed)

    def gains(
        self,
        points: Sequence[OperatingPoint],
        weights: FloatArray | None = None,
        *,
        of: ResampledCurve | None = None,
    ) -> FloatArray:
        """Return the gain over the mixture at the cost of each operating point, (R, G).

        The gain is that of the curve ``of`` if it is given.
        """
        mixture = self.mixture
        if weights is None:
            weights = self.weights
        else:
            mixture = ResampledCurve.of(self.uniform.cost, self.uniform.accuracy, weights)
        total = weights.sum(axis=1, keepdims=True)
        cost = weights @ np.stack([point.cost for point in points], axis=1) / total
        if of is not None:
            return of.at(cost) - mixture.at(cost)
        accuracy = weights @ np.stack([point.accuracy for point in points], axis=1) / total
        return np.asarray(accuracy - mixture.at(cost))

    def gain_interval(self, gains: FloatArray) -> Interval:
        """Return the gain in row 0 with its interval, computed as in calibration."""
        return refit_interval(float(gains[0]), gains[1:], self.n_groups)

    def accuracy_interval(self, point: OperatingPoint) -> Interval:
        """Return the mean accuracy at an operating point with its interval."""
        mean = Mean.of(point.accuracy, 0.0, self.experiment.pool.group)
        return mean.interval(CONFIDENCE).clip(0.0, 1.0)

    def gain_by_question_count(self, point: OperatingPoint) -> list[tuple[int, Interval]]:
        """Return the gain with the intervals that other numbers of questions would give it."""
        group, seed = self.experiment.pool.group, self.experiment.seed
        gain = float(self.gains([point])[0, 0])
        rows = []
        for count in sorted({max(2, round(self.n_groups * part)) for part in QUESTION_FACTORS}):
            weights = resample_questions(group, N_RESAMPLES // 2, seed=seed, n_groups=count)
            resampled = self.gains([point], weights)[:, 0]
            rows.append((count, refit_interval(gain, resampled, count)))
        return rows


def study_policy(experiment: Experiment, name: str) -> Study:
    """Score a policy along its prices on held-out questions, and the mixture beside it."""
    sweep = sweep_prices(experiment, find_factory(name), N_PRICES)
    uniform = cross_validate(experiment, find_factory("mixture"), split_folds(sweep.fold))
    weights = bootstrap_weights(experiment.pool.group, N_RESAMPLES, seed=experiment.seed)
    return Study(experiment, name, sweep, uniform, weights)


@dataclass(frozen=True, eq=False)
class PolicyCurve:
    """The accuracy of a policy at costs (G,), and its difference to the mixture, (R, G) each."""

    name: str
    cost: FloatArray
    accuracy: FloatArray
    difference: FloatArray


def score_curves(
    study: Study,
    names: Sequence[str],
    budgets: Sequence[float],
    progress: Callable[[str], None],
) -> list[PolicyCurve]:
    """Return the curves of the mixture and the studied policy, then those of other policies."""
    splits = split_folds(study.sweep.fold)
    curves = [_read_curve("mixture", study.mixture, study, budgets)]
    curves.append(_read_curve(study.name, study.policy, study, budgets))
    for name in names:
        progress(name)
        if name == "oracle":
            curves.append(_read_oracle(study, budgets))
            continue
        if name == "retry":
            if study.retry is not None:
                curves.append(_read_curve(name, study.retry, study, budgets))
            continue
        curve = cross_validate(study.experiment, find_factory(name), splits)
        resampled = ResampledCurve.of(curve.cost, curve.accuracy, study.weights)
        costs = np.unique(np.round(resampled.cost[0], 12)) if curve.is_stepped else budgets
        curves.append(_read_curve(name, resampled, study, list(costs)))
    return curves


def _read_curve(
    name: str, curve: ResampledCurve, study: Study, budgets: Sequence[float]
) -> PolicyCurve:
    """Read a curve at the budgets within its range, and at both ends."""
    lowest, highest = curve.cost[0, 0], curve.cost[0, -1]
    inside = [budget for budget in budgets if lowest < budget < highest]
    cost = np.unique([lowest, *inside, highest])
    costs = np.tile(cost, (len(curve.cost), 1))
    accuracy = curve.at(costs)
    return PolicyCurve(name, cost, accuracy, accuracy - study.mixture.at(costs))


def _read_oracle(study: Study, budgets: Sequence[float]) -> PolicyCurve:
    """Return the cross-fitted oracle, which knows the curve of each question, at budgets."""
    experiment, weights = study.experiment, study.weights
    scores = cross_fitted_oracle(
        experiment.pool, experiment.levels, tuple(budgets), seed=experiment.seed
    )
    total = weights.sum(axis=1)
    accuracy = np.stack([weights @ utility / total for _, utility in scores.values()], axis=1)
    # Beyond the cost of the largest levels a larger budget buys nothing: keep each cost once.
    cost, first = np.unique([cost for cost, _ in scores.values()], return_index=True)
    accuracy = accuracy[:, first]
    mixture = study.mixture.at(np.tile(cost, (len(weights), 1)))
    return PolicyCurve("oracle", cost, accuracy, accuracy - mixture)
