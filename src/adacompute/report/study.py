"""Study: one policy at every budget, beside other policies, on questions it has not seen.

The policy is fitted anew for each fold and followed along prices on the questions held out, as
calibration does. A stop is what a budget buys: the lowest price whose mean cost stays within it
with confidence, mixed of the two prices next to it; cost, accuracy and gain are what the held-out
questions had there. Intervals are by bootstrap over questions, copies of a text together. It knows
nothing of files, nor of how anything is shown.

R resamplings, N questions, A aims of a curve, G budgets.
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

PRICES = 48
PARTS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of questions that the gain's interval is shown for, as parts of those there are."""


@dataclass(frozen=True, eq=False)
class ResampledCurve:
    """A curve under every resampling of the questions, row 0 as they are: (R, A)."""

    cost: FloatArray
    accuracy: FloatArray

    @staticmethod
    def of(cost: FloatArray, accuracy: FloatArray, weights: FloatArray) -> ResampledCurve:
        """Average each question's cost and accuracy, (N, A), by weights, (R, N)."""
        total = weights.sum(axis=1, keepdims=True)
        spent = np.maximum.accumulate(weights @ cost / total, axis=1)
        return ResampledCurve(spent, weights @ accuracy / total)

    def at(self, cost: FloatArray) -> FloatArray:
        """Accuracy at costs, (R, G), by interpolating in realised cost."""
        return np.stack(
            [np.interp(*row) for row in zip(cost, self.cost, self.accuracy, strict=True)]
        )


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """What a budget buys: its price, and cost, accuracy and samples of each question, (N,)."""

    budget: float
    price: float
    cost: FloatArray
    accuracy: FloatArray
    samples: FloatArray


@dataclass(frozen=True, eq=False)
class Study:
    """A policy followed along prices, the best uniform mixture, and the resamplings of both."""

    experiment: Experiment
    name: str
    sweep: PriceSweep
    base: Curve
    weights: FloatArray

    @cached_property
    def mixture(self) -> ResampledCurve:
        """The best mixture of uniform levels, under every resampling."""
        return ResampledCurve.of(self.base.cost, self.base.accuracy, self.weights)

    @cached_property
    def own(self) -> ResampledCurve:
        """The policy along its prices, under every resampling."""
        cost, accuracy, _ = self._every
        return ResampledCurve.of(cost, accuracy, self.weights)

    @cached_property
    def retry(self) -> ResampledCurve | None:
        """What only redraws unreadable samples; None where all could be read."""
        if not (self.experiment.pool.answers.answer == UNPARSED).any():
            return None
        curve = cross_validate(self.experiment, find_factory("retry"), split_folds(self.sweep.fold))
        return ResampledCurve.of(curve.cost, curve.accuracy, self.weights)

    @cached_property
    def cost_high(self) -> FloatArray:
        """Upper bound of the mean cost at each price: what a budget is held against."""
        means = [mean_cost(self.sweep, result) for result in self.sweep.results]
        high = np.array([mean.value + mean.margin(CONFIDENCE) for mean in means])
        return np.asarray(np.maximum.accumulate(high), dtype=np.float64)

    @property
    def enough(self) -> bool:
        """Whether there are questions enough for a verdict."""
        return self.groups >= MIN_QUESTIONS

    @cached_property
    def groups(self) -> int:
        """How many different questions there are."""
        return len(np.unique(self.experiment.pool.group))

    @cached_property
    def _every(self) -> list[FloatArray]:
        """Cost, accuracy and samples along the prices, (N, prices) each."""
        names, runs = ("cost", "accuracy", "n_samples"), self.sweep.results
        return [np.stack([getattr(result, name) for result in runs], axis=1) for name in names]

    def stop(self, budget: float) -> OperatingPoint:
        """Return what a budget buys."""
        high = self.cost_high
        if budget < high[0] * (1 - 1e-9):
            raise ConfigError(
                f"a budget of {budget:g} cannot be held with {CONFIDENCE:.0%} confidence: the "
                f"least that {self.name} costs is {high[0]:.6g}; allow more"
            )
        place = float(np.interp(budget, high, np.arange(len(high))))
        first = min(int(place), len(high) - 2)
        share = place - first
        mixed = [
            column[:, first] * (1 - share) + column[:, first + 1] * share for column in self._every
        ]
        prices = np.log(self.sweep.prices)
        price = float(np.exp(prices[first] * (1 - share) + prices[first + 1] * share))
        return OperatingPoint(budget, price, *mixed)

    def gains(
        self,
        stops: Sequence[OperatingPoint],
        weights: FloatArray | None = None,
        *,
        of: ResampledCurve | None = None,
    ) -> FloatArray:
        """Gain over the mixture at the cost of each stop, (R, G); of another curve if given."""
        own = weights is None
        weights = self.weights if weights is None else weights
        total = weights.sum(axis=1, keepdims=True)
        spent = weights @ np.stack([stop.cost for stop in stops], axis=1) / total
        base = (
            self.mixture if own else ResampledCurve.of(self.base.cost, self.base.accuracy, weights)
        )
        if of is not None:
            return of.at(spent) - base.at(spent)
        right = weights @ np.stack([stop.accuracy for stop in stops], axis=1) / total
        return np.asarray(right - base.at(spent))

    def interval(self, values: FloatArray) -> Interval:
        """Interval of a value, row 0, by its spread over the other rows, as calibration's."""
        return refit_interval(float(values[0]), values[1:], self.groups)

    def accuracy(self, stop: OperatingPoint) -> Interval:
        """Mean accuracy at a stop, with its interval."""
        mean = Mean.of(stop.accuracy, 0.0, self.experiment.pool.group)
        return mean.interval(CONFIDENCE).clip(0.0, 1.0)

    def by_number(self, stop: OperatingPoint) -> list[tuple[int, Interval]]:
        """Gain with the interval that so many questions of this kind would give it."""
        group, seed = self.experiment.pool.group, self.experiment.seed
        known = float(self.gains([stop])[0, 0])
        found = []
        for number in sorted({max(2, round(self.groups * part)) for part in PARTS}):
            weights = resample_questions(group, N_RESAMPLES // 2, seed=seed, n_groups=number)
            found.append((number, refit_interval(known, self.gains([stop], weights)[:, 0], number)))
        return found


def study_policy(experiment: Experiment, name: str) -> Study:
    """Follow a policy along its prices on held-out questions, beside the mixture."""
    sweep = sweep_prices(experiment, find_factory(name), PRICES)
    base = cross_validate(experiment, find_factory("mixture"), split_folds(sweep.fold))
    weights = bootstrap_weights(experiment.pool.group, N_RESAMPLES, seed=experiment.seed)
    return Study(experiment, name, sweep, base, weights)


@dataclass(frozen=True, eq=False)
class Line:
    """A policy's accuracy along costs, with its difference to the mixture, (R, G) each."""

    name: str
    cost: FloatArray
    accuracy: FloatArray
    difference: FloatArray


def draw_lines(
    study: Study,
    names: Sequence[str],
    budgets: Sequence[float],
    progress: Callable[[str], None],
) -> list[Line]:
    """Score other policies at budgets, and the two of the study before them."""
    splits = split_folds(study.sweep.fold)
    lines = [_line("mixture", study.mixture, study, budgets)]
    lines.append(_line(study.name, study.own, study, budgets))
    for name in names:
        progress(name)
        if name == "oracle":
            lines.append(_oracle(study, budgets))
            continue
        if name == "retry":
            if study.retry is not None:
                lines.append(_line(name, study.retry, study, budgets))
            continue
        curve = cross_validate(study.experiment, find_factory(name), splits)
        bent = ResampledCurve.of(curve.cost, curve.accuracy, study.weights)
        steps = np.unique(np.round(bent.cost[0], 12)) if curve.is_stepped else budgets
        lines.append(_line(name, bent, study, list(steps)))
    return lines


def _line(name: str, bent: ResampledCurve, study: Study, budgets: Sequence[float]) -> Line:
    """Read a curve where it reaches, and at both of its ends."""
    least, most = bent.cost[0, 0], bent.cost[0, -1]
    inside = [budget for budget in budgets if least < budget < most]
    cost = np.unique([least, *inside, most])
    every = np.tile(cost, (len(bent.cost), 1))
    accuracy = bent.at(every)
    return Line(name, cost, accuracy, accuracy - study.mixture.at(every))


def _oracle(study: Study, budgets: Sequence[float]) -> Line:
    """The cross-fitted oracle at budgets: it knows each question's curve."""
    experiment, weights = study.experiment, study.weights
    found = cross_fitted_oracle(
        experiment.pool, experiment.levels, tuple(budgets), seed=experiment.seed
    )
    total = weights.sum(axis=1)
    accuracy = np.stack([weights @ value / total for _, value in found.values()], axis=1)
    cost, first = np.unique([spent for spent, _ in found.values()], return_index=True)
    accuracy = accuracy[:, first]  # once all is bought, a larger budget buys no more
    base = study.mixture.at(np.tile(cost, (len(weights), 1)))
    return Line("oracle", cost, accuracy, accuracy - base)
