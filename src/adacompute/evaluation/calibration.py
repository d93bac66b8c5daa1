"""Calibration: the price that holds a budget, and whether the policy is worth having at all.

The policy is fitted anew on the training questions of each fold and followed along one set of
prices on the questions held out, so that every question is scored by a policy that has not seen
it, at the price the bundle will be run at. From that: what each price really costs, with intervals;
the gain over the best mixture of uniform levels at equal cost; and a verdict that may be "no gain".

Statements about the next questions are predictions: they allow for the noise of the questions seen
here, of those to come, and of the draws. Copies of a question count as one. It knows nothing of
files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import estimate
from adacompute.evaluation.curves import Curve, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import Experiment, FittedPolicy, PolicyFactory, find_factory
from adacompute.evaluation.pool import assign_folds
from adacompute.evaluation.replay import Replay, ReplayResult
from adacompute.evaluation.scores import resample
from adacompute.policies.price_schedule import fit_price_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import FloatArray, IntArray, KeyArray

FOLDS = 5
PRICES = 64
RESAMPLINGS = 1000
MIN_QUESTIONS = 40
"""With fewer, an interval is wider than any gain that is to be had."""

MAX_UNPARSED = 0.5
"""With more, what is measured is the extraction, not the model."""

REFIT_FACTOR = math.sqrt(1.0 + FOLDS / (FOLDS - 1.0))
"""How much wider an interval of the gain is because other training questions would have given
another policy: each fold's policies share most of theirs, so that their spread over questions
alone is too small (Nadeau and Bengio's correction of cross-validation)."""

TRIES = 8
"""Halvings of the step between two prices of the grid."""


@dataclass(frozen=True, eq=False)
class PriceSweep:
    """A factory along falling prices, each question scored while it was held out."""

    experiment: Experiment
    fold: IntArray
    fitted: tuple[FittedPolicy, ...]
    parts: tuple[Replay, ...]
    prices: FloatArray
    runs: tuple[ReplayResult, ...]

    def run(self, price: float) -> ReplayResult:
        """Score every question at one more price."""
        return _run(self.experiment, self.fold, self.fitted, self.parts, price)


def sweep_prices(
    experiment: Experiment,
    factory: PolicyFactory,
    prices: Sequence[float] | int,
    *,
    folds: int = FOLDS,
) -> PriceSweep:
    """Fit a factory on each fold's training questions and follow it on those held out.

    A number of prices is that many between the dearest and the cheapest that any fold looks at.
    """
    fold = assign_folds(experiment.pool.group, folds, seed=experiment.seed)
    fitted, parts = [], []
    for f in range(folds):
        fitted.append(factory(experiment, np.flatnonzero(fold != f)))
        parts.append(experiment.replay.take(np.flatnonzero(fold == f)))
    every = tuple(fitted), tuple(parts)
    along = _span(fitted, prices) if isinstance(prices, int) else np.asarray(prices)
    runs = tuple(_run(experiment, fold, *every, price) for price in along.tolist())
    return PriceSweep(experiment, fold, *every, along, runs)


def _span(fitted: Sequence[FittedPolicy], count: int) -> FloatArray:
    """Falling prices over all that any of these policies can do; of a stepped one its steps."""
    every = np.unique(np.concatenate([known.prices for known in fitted]))[::-1]
    if fitted[0].stepped:
        return np.asarray(every, dtype=np.float64)
    return np.geomspace(every[0], every[-1], count)


def _run(
    experiment: Experiment,
    fold: IntArray,
    fitted: tuple[FittedPolicy, ...],
    parts: tuple[Replay, ...],
    price: float,
) -> ReplayResult:
    told = experiment.sample_cost(np.arange(len(experiment.pool)))
    columns = {name: np.empty(len(fold)) for name in ReplayResult.__dataclass_fields__}
    for f, (policy, part) in enumerate(zip(fitted, parts, strict=True)):
        rows = np.flatnonzero(fold == f)
        result = part.run(policy.policy, price, sample_cost=told, features=policy.digested[rows])
        for name, column in columns.items():
            column[rows] = getattr(result, name)
    return ReplayResult(**columns)


@dataclass(frozen=True)
class Mean:
    """A mean over questions with what is needed for intervals: of itself and of the next mean."""

    value: float
    error: float
    spread: float
    groups: int

    @staticmethod
    def of(value: FloatArray, within: FloatArray | float, group: KeyArray) -> Mean:
        """Average over questions; ``within`` is the variance over the draws of one question."""
        mean = float(value.mean())
        _, inverse = np.unique(group, return_inverse=True)
        away = np.bincount(inverse, value - mean)
        groups = len(away)
        error = math.sqrt(float((away**2).sum()) * groups / max(1, groups - 1)) / len(value)
        spread = math.sqrt(float(value.var()) + float(np.mean(within)))
        return Mean(mean, error, spread, groups)

    def bound(self, confidence: float, horizon: int | None = None) -> float:
        """How far the mean, or that of so many questions to come, may lie on one side."""
        following_variance = self.spread**2 / horizon if horizon else 0.0
        return quantile(confidence, self.groups) * math.sqrt(self.error**2 + following_variance)


def quantile(confidence: float, groups: int) -> float:
    """Quantile of Student's t for the mean of so many independent questions.

    The normal quantile, stretched by the expansion in 1/degrees; 0.1 % off at 30.
    """
    from statistics import NormalDist  # noqa: PLC0415 - slow to import, and used here alone

    z, degrees = NormalDist().inv_cdf(confidence), max(1, groups - 1)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def check_pool(experiment: Experiment) -> None:
    """Refuse what no number of intervals makes meaningful."""
    groups = len(np.unique(experiment.pool.group))
    if groups < MIN_QUESTIONS:
        raise DataError(
            f"{groups} different questions are too few to calibrate on: "
            f"at least {MIN_QUESTIONS} are needed"
        )
    unread = float((experiment.pool.answers.answer == UNPARSED).mean())
    if unread > MAX_UNPARSED:
        raise DataError(
            f"{unread:.0%} of the samples could not be read, more than {MAX_UNPARSED:.0%}: "
            "the numbers would say how well answers are extracted; look at the grader first"
        )


def price_budget(
    sweep: PriceSweep, budget: float, *, confidence: float, horizon: int | None
) -> tuple[float, ReplayResult]:
    """Lowest price whose cost stays within the budget with this confidence, and its scores.

    Costs are a staircase in the price: halving finds the step where interpolating may creep.
    """

    def most(result: ReplayResult) -> float:
        cost = Mean.of(result.cost, result.cost_spread, sweep.experiment.pool.group)
        return cost.value + cost.bound(confidence, horizon)

    limit = budget * (1 + 1e-9)
    over = next((i for i, result in enumerate(sweep.runs) if most(result) > limit), len(sweep.runs))
    if over == 0:
        least = float(sweep.runs[0].cost.mean())
        raise ConfigError(
            f"a budget of {budget:g} cannot be held with {confidence:.0%} confidence: the least "
            f"that this policy costs is {least:.6g} ± {most(sweep.runs[0]) - least:.2g}; allow more"
        )
    price, found = float(sweep.prices[over - 1]), sweep.runs[over - 1]
    low = float(sweep.prices[min(over, len(sweep.runs) - 1)])
    for _ in range(TRIES if low < price else 0):
        middle = math.sqrt(low * price)
        result = sweep.run(middle)
        if most(result) <= limit:
            price, found = middle, result
        else:
            low = middle
    return price, found


@dataclass(frozen=True)
class Gain:
    """Accuracy over the best mixture of uniform levels at equal cost, with its interval."""

    value: float
    low: float
    high: float
    groups: int

    @property
    def more(self) -> int | None:
        """How many more questions would part an interval of this width from zero, if so many do."""
        half = (self.high - self.low) / 2
        if abs(self.value) < 1e-9:  # noqa: PLR2004
            return None
        return max(0, math.ceil(self.groups * ((half / abs(self.value)) ** 2 - 1.0)))


def measure_gain(
    sweep: PriceSweep, result: ReplayResult, base: Curve, *, confidence: float
) -> Gain:
    """Compare with the mixture at the cost that was realised, and so in every resampling."""
    group = sweep.experiment.pool.group
    weights = resample(group, RESAMPLINGS, seed=sweep.experiment.seed)
    total = weights.sum(axis=1)
    cost, accuracy = weights @ result.cost / total, weights @ result.accuracy / total
    gains = np.array(
        [
            reached - read_curve(base, spent, weights[[i]]).accuracy
            for i, (spent, reached) in enumerate(zip(cost, accuracy, strict=True))
        ]
    )
    groups = len(np.unique(group))
    error = REFIT_FACTOR * float(gains[1:].std(ddof=1))
    half = quantile(0.5 + confidence / 2, groups) * error
    value = round(float(gains[0]), 12)  # sums of the same draws differ by their rounding
    return Gain(value, value - half, value + half, groups)


def calibrate(
    experiment: Experiment,
    policy: str | PolicyFactory,
    *,
    budget: float,
    confidence: float = 0.95,
    horizon: int | None = None,
    prices: int = PRICES,
    sweep: PriceSweep | None = None,
) -> dict[str, Any]:
    """Set the price for a budget and judge the policy there.

    ``horizon`` questions are those that the budget must hold for; without it, the long run.
    ``sweep`` is the factory along its prices, where it was followed before.
    """
    check_pool(experiment)
    sweep = sweep or sweep_prices(experiment, find_factory(policy), prices)
    price, result = price_budget(sweep, budget, confidence=confidence, horizon=horizon)
    base = cross_validate(experiment, find_factory("mixture"), split_folds(sweep.fold))
    gain = measure_gain(sweep, result, base, confidence=confidence)
    cost = Mean.of(result.cost, result.cost_spread, experiment.pool.group)
    return {
        **judge(experiment, gain, budget),
        "price": price,
        "cost": cost.value,
        "cost_high": cost.value + cost.bound(confidence, horizon),
        "accuracy": float(result.accuracy.mean()),
        "confidence": confidence,
        "questions": len(experiment.pool),
        "horizon": horizon,
        "retry_gain": _redrawing(experiment, sweep, base, cost.value),
        "frontier": frontier(sweep, confidence, horizon),
    }


def judge(experiment: Experiment, gain: Gain, budget: float) -> dict[str, Any]:
    """Say whether there is a gain, and what to do when there is none."""
    sure = gain.low > 0
    return {
        "verdict": "gain" if sure else "no gain",
        "advice": "use this policy" if sure else _spend_evenly(experiment, budget),
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "questions_needed": 0 if sure else gain.more,
    }


def _spend_evenly(experiment: Experiment, budget: float) -> str:
    """Say which numbers of samples make the best mixture at a budget, chosen without looking."""
    table = experiment.dense_table
    cost = table.costs.mean(axis=0)
    kept, _ = fit_price_schedule(cost, table.utility.mean(axis=0))
    samples = [experiment.dense_levels[k].n_samples for k in kept]
    place = float(np.interp(budget, cost[kept], np.arange(len(kept))))
    first, share = divmod(round(100 * place), 100)
    if not share:
        return f"use n = {samples[first]}"
    return f"use n = {samples[first]}, and n = {samples[first + 1]} for {share} % of the questions"


def _redrawing(experiment: Experiment, sweep: PriceSweep, base: Curve, cost: float) -> float:
    """What only redrawing unreadable samples gains over the mixture at this cost."""
    if not (experiment.pool.answers.answer == UNPARSED).any():
        return 0.0
    once = np.ones((1, len(experiment.pool)))
    retry = cross_validate(experiment, find_factory("retry"), split_folds(sweep.fold))
    return read_curve(retry, cost, once).accuracy - read_curve(base, cost, once).accuracy


def frontier(
    sweep: PriceSweep, confidence: float, horizon: int | None = None
) -> list[dict[str, float]]:
    """What each price costs and gets right, by rising cost; each end holds with the confidence."""
    group = sweep.experiment.pool.group
    points = []
    for price, result in zip(sweep.prices.tolist(), sweep.runs, strict=True):
        cost = Mean.of(result.cost, result.cost_spread, group)
        right = Mean.of(result.accuracy, 0.0, group)
        points.append(
            {
                "price": price,
                "cost": cost.value,
                "cost_low": cost.value - cost.bound(confidence),
                "cost_high": cost.value + cost.bound(confidence, horizon),
                "accuracy": right.value,
                "accuracy_low": max(0.0, right.value - right.bound(confidence)),
                "accuracy_high": min(1.0, right.value + right.bound(confidence)),
            }
        )
    return points


def calibrate_share(
    experiment: Experiment,
    policy: str | PolicyFactory,
    *,
    accuracy_of: int,
    share: float,
    confidence: float = 0.95,
    horizon: int | None = None,
    prices: int = PRICES,
    sweep: PriceSweep | None = None,
) -> dict[str, Any]:
    """Find the highest price that keeps a share of the accuracy of so many samples.

    Prices are tried from the lowest up until one fails, so that trying many costs no confidence.
    Each must pass a bet that no sequence of bounded outcomes wins too often, whatever their
    distribution, and the prediction for the questions that follow.
    """
    check_pool(experiment)
    if accuracy_of not in experiment.levels:
        raise ConfigError(f"{accuracy_of} samples are not a level of this policy")
    sweep = sweep or sweep_prices(experiment, find_factory(policy), prices)
    goal = estimate(experiment.pool.answers, (accuracy_of,), standard_errors=False).utility[:, 0]
    group, passed = experiment.pool.group, None
    for price, result in zip(sweep.prices[::-1].tolist(), sweep.runs[::-1], strict=True):
        above = result.accuracy - share * goal
        within = result.accuracy_spread + share**2 * goal * (1 - goal)
        mean = Mean.of(above, within, group)
        low = mean.value - mean.bound(confidence, horizon)
        if low < 0 or not betting_test(above, group, lowest=-share, confidence=confidence):
            break
        passed = (price, result, low)
    if passed is None:
        raise DataError(
            f"{len(experiment.pool)} questions cannot show {share:.0%} of the accuracy of "
            f"{accuracy_of} samples at any price: collect more questions, or ask for less"
        )
    price, result, low = passed
    every = np.arange(len(experiment.pool))
    return {
        "price": price,
        "cost": float(result.cost.mean()),
        "full_cost": accuracy_of * experiment.sample_cost(every) + experiment.round_cost(every),
        "accuracy": float(result.accuracy.mean()),
        "full_accuracy": float(goal.mean()),
        "share": share,
        "share_low": share + low / float(goal.mean()),
        "confidence": confidence,
        "questions": len(experiment.pool),
        "frontier": frontier(sweep, confidence, horizon),
    }


def betting_test(value: FloatArray, group: KeyArray, *, lowest: float, confidence: float) -> bool:
    """Whether a gambler who bets on a mean above zero multiplies the stake by 1/(1 − confidence).

    With a mean of zero or less the stake cannot grow on average, so this happens with at most that
    chance (Ville), for any number of independent questions of any distribution above ``lowest``.
    """
    _, inverse = np.unique(group, return_inverse=True)
    each = np.bincount(inverse, value) / np.bincount(inverse)
    count = np.arange(1, len(each) + 1)
    # Each bet knows only what came before, and half of what is possible is never risked.
    mean = np.cumsum(each) / (count + 1)
    variance = (0.25 + np.cumsum((each - mean) ** 2)) / (count + 1)
    stake = np.clip(mean / (variance + mean**2), 0.0, 0.5 / -lowest)
    growth = np.log1p(np.concatenate([[0.0], stake[:-1]]) * each)
    return bool(growth.sum() >= -math.log(1 - confidence))
