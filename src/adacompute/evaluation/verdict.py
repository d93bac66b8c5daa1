"""Verdict: whether a policy gains over the best mixture of uniform levels, and what to do if not.

``calibrate`` finds the price for a budget and compares the policy with the mixture at the cost that
it really had. ``calibrate_share`` finds the highest price that keeps a share of the accuracy of a
uniform level. Both score questions that were held out, and can find that there is no gain.

It reads and writes no files.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import estimate
from adacompute.evaluation.curves import Curve, cross_validate, read_curve, split_folds
from adacompute.evaluation.factories import Experiment, PolicyFactory, find_factory
from adacompute.evaluation.intervals import (
    N_RESAMPLES,
    Interval,
    Mean,
    betting_test,
    bootstrap_weights,
    refit_interval,
)
from adacompute.evaluation.price_search import (
    N_PRICES,
    PriceSweep,
    find_price,
    list_frontier,
    mean_cost,
    sweep_prices,
)
from adacompute.policies.price_schedule import fit_price_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.evaluation.replay import ReplayResult

MIN_QUESTIONS = 40
"""With fewer questions, an interval is wider than any possible gain."""

MAX_UNPARSED = 0.5
"""With a larger share, the scores measure how answers are extracted, not the model."""


def check_pool(experiment: Experiment) -> None:
    """Raise DataError if there are too few questions or too many unparsed samples to judge."""
    n_groups = len(np.unique(experiment.pool.group))
    if n_groups < MIN_QUESTIONS:
        raise DataError(
            f"{n_groups} different questions are too few to calibrate on: "
            f"at least {MIN_QUESTIONS} are needed"
        )
    unparsed = float((experiment.pool.answers.answer == UNPARSED).mean())
    if unparsed > MAX_UNPARSED:
        raise DataError(
            f"{unparsed:.0%} of the samples could not be parsed, more than {MAX_UNPARSED:.0%}: "
            "the scores would measure how answers are extracted; check the grader first"
        )


def measure_gain(
    sweep: PriceSweep, result: ReplayResult, mixture: Curve, *, confidence: float
) -> Interval:
    """Return the gain over the mixture at the same realised cost, with its interval.

    Each resampling compares at its own cost.
    """
    group = sweep.experiment.pool.group
    weights = bootstrap_weights(group, N_RESAMPLES, seed=sweep.experiment.seed)
    total = weights.sum(axis=1)
    cost, accuracy = weights @ result.cost / total, weights @ result.accuracy / total
    gains = np.array(
        [
            accuracy[i] - read_curve(mixture, cost[i], weights[[i]]).accuracy
            for i in range(len(weights))
        ]
    )
    value = round(float(gains[0]), 12)  # sums over the same samples can differ by rounding
    return refit_interval(value, gains[1:], len(np.unique(group)), confidence=confidence)


def count_questions_needed(gain: Interval, n_groups: int) -> int | None:
    """Return how many more questions would separate the interval from zero, at this gain.

    None if the gain is zero, because then no number of questions would.
    """
    if abs(gain.value) < 1e-9:  # noqa: PLR2004
        return None
    margin = (gain.high - gain.low) / 2
    return max(0, math.ceil(n_groups * ((margin / abs(gain.value)) ** 2 - 1.0)))


def judge(experiment: Experiment, gain: Interval, budget: float) -> dict[str, Any]:
    """Return the verdict on a gain, and advice for the case that there is none."""
    has_gain = gain.low > 0
    n_groups = len(np.unique(experiment.pool.group))
    return {
        "verdict": "gain" if has_gain else "no gain",
        "advice": "use this policy" if has_gain else _advise_mixture(experiment, budget),
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "questions_needed": 0 if has_gain else count_questions_needed(gain, n_groups),
    }


def _advise_mixture(experiment: Experiment, budget: float) -> str:
    """Describe the best mixture of uniform numbers of samples at a budget."""
    table = experiment.dense_table
    cost = table.costs.mean(axis=0)
    kept, _ = fit_price_schedule(cost, table.utility.mean(axis=0))
    levels = [experiment.dense_levels[k].n_samples for k in kept]
    position = float(np.interp(budget, cost[kept], np.arange(len(kept))))
    first, share = divmod(round(100 * position), 100)
    if not share:
        return f"use n = {levels[first]}"
    return f"use n = {levels[first]}, and n = {levels[first + 1]} for {share} % of the questions"


def calibrate(
    experiment: Experiment,
    policy: str | PolicyFactory,
    *,
    budget: float,
    confidence: float = 0.95,
    horizon: int | None = None,
    n_prices: int = N_PRICES,
    sweep: PriceSweep | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Find the price for a budget and judge the policy at that price.

    The budget is held over the next ``horizon`` questions, or in the long run if it is None.
    ``sweep`` is a sweep of this policy, if there is one already.
    """
    check_pool(experiment)
    experiment.pool.check_budget(budget)
    sweep = sweep or sweep_prices(experiment, find_factory(policy), n_prices, progress=progress)
    progress("price")
    price, result = find_price(sweep, budget, confidence=confidence, horizon=horizon)
    progress("mixture")
    mixture = cross_validate(experiment, find_factory("mixture"), split_folds(sweep.fold))
    gain = measure_gain(sweep, result, mixture, confidence=confidence)
    cost, frontier = mean_cost(sweep, result), list_frontier(sweep, confidence, horizon)
    return {
        **judge(experiment, gain, budget),
        "price": price,
        "cost": cost.value,
        "cost_high": cost.value + cost.margin(confidence, horizon),
        "accuracy": float(result.accuracy.mean()),
        "confidence": confidence,
        "questions": len(experiment.pool),
        "horizon": horizon,
        "retry_gain": _measure_retry_gain(sweep, mixture, cost.value),
        "max_budget": max(point["cost_high"] for point in frontier),
        "frontier": frontier,
    }


def describe_excess(budget: float, max_budget: float) -> str | None:
    """Say that a budget is above what a policy can spend, if it is."""
    if budget <= max_budget * (1 + 1e-6):
        return None
    return (
        f"a budget of {budget:g} is above {max_budget:.4g}, the most that this policy spends: a "
        f"larger budget changes nothing"
    )


def _measure_retry_gain(sweep: PriceSweep, mixture: Curve, cost: float) -> float:
    """Return what resampling unparsed answers alone gains over the mixture at this cost."""
    experiment = sweep.experiment
    if not (experiment.pool.answers.answer == UNPARSED).any():
        return 0.0
    once = np.ones((1, len(experiment.pool)))
    retry = cross_validate(experiment, find_factory("retry"), split_folds(sweep.fold))
    return read_curve(retry, cost, once).accuracy - read_curve(mixture, cost, once).accuracy


def calibrate_share(
    experiment: Experiment,
    policy: str | PolicyFactory,
    *,
    accuracy_of: int,
    share: float,
    confidence: float = 0.95,
    horizon: int | None = None,
    n_prices: int = N_PRICES,
    sweep: PriceSweep | None = None,
) -> dict[str, Any]:
    """Find the highest price that keeps a share of the accuracy of ``accuracy_of`` samples.

    Prices are tested from the lowest up until one fails, so testing many prices does not lower the
    confidence. A price passes if both the betting test and the bound for the next ``horizon``
    questions show that the share is kept.
    """
    check_pool(experiment)
    if accuracy_of not in experiment.levels:
        raise ConfigError(f"{accuracy_of} samples are not a level of this policy")
    sweep = sweep or sweep_prices(experiment, find_factory(policy), n_prices)
    target = estimate(experiment.pool.answers, (accuracy_of,), standard_errors=False).utility[:, 0]
    group, passed = experiment.pool.group, None
    for price, result in zip(sweep.prices[::-1].tolist(), sweep.results[::-1], strict=True):
        excess = result.accuracy - share * target
        variance = result.accuracy_variance + share**2 * target * (1 - target)
        mean = Mean.of(excess, variance, group)
        low = mean.value - mean.margin(confidence, horizon)
        if low < 0 or not betting_test(excess, group, lowest=-share, confidence=confidence):
            break
        passed = (price, result, low)
    if passed is None:
        raise DataError(
            f"{len(experiment.pool)} questions cannot show {share:.0%} of the accuracy of "
            f"{accuracy_of} samples at any price: collect more questions, or use a smaller share"
        )
    price, result, low = passed
    rows = np.arange(len(experiment.pool))
    return {
        "price": price,
        "cost": float(result.cost.mean()),
        "full_cost": accuracy_of * experiment.sample_cost(rows) + experiment.round_cost(rows),
        "accuracy": float(result.accuracy.mean()),
        "full_accuracy": float(target.mean()),
        "share": share,
        "share_low": share + low / float(target.mean()),
        "confidence": confidence,
        "questions": len(experiment.pool),
        "frontier": list_frontier(sweep, confidence, horizon),
    }
