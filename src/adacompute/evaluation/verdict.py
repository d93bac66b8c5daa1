"""Verdict: whether a policy gains over the best mixture of uniform levels, and what to do if not.

``judge`` turns the interval of a gain into one of four words. ``calibrate`` finds the price for a
budget and judges the policy there. ``calibrate_share`` finds the highest price that keeps a share
of the accuracy of a uniform level. All scores are of questions that were held out.

It reads and writes no files.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.utility import estimate
from adacompute.evaluation.evidence_factories import list_levels, replay_evidence
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_factory, make_sequential_pooled
from adacompute.evaluation.frontier import MARGIN, CalibrationSettings, PriceFrontier, list_frontier
from adacompute.evaluation.held_out import CurvePoint, measure_difference, score_held_out
from adacompute.evaluation.intervals import Interval, Mean, betting_test
from adacompute.evaluation.policy_score import PolicyScore, score_policy
from adacompute.policies.bundle import FrontierPoint
from adacompute.policies.coloured import ColouredPolicy
from adacompute.policies.price_schedule import fit_price_schedule
from adacompute.policies.sequential import SequentialPolicy

MIN_QUESTIONS = 40
"""With fewer questions, an interval is wider than any possible gain."""

MIN_GAIN = 1e-4
"""Gains below this are not worth deciding; without a margin there may be no gain at all."""

UNUSED_SHARE = 0.01
"""A budget may be this much above what a policy can spend without a warning."""

MAX_UNPARSED = 0.5
"""With a larger share, the scores measure how answers are extracted, not the model."""

GAIN, LOSS, NO_GAIN = "gain", "loss", "no gain"
INCONCLUSIVE = "inconclusive"


def check_pool(experiment: Experiment) -> None:
    """Raise DataError if there are too few questions or too many unparsed samples to judge."""
    n_groups = len(np.unique(experiment.pool.group))
    if n_groups < MIN_QUESTIONS:
        raise DataError(
            f"{n_groups} independent questions are too few to calibrate on: "
            f"at least {MIN_QUESTIONS} are needed"
        )
    unparsed = float((experiment.pool.answers.answer == UNPARSED).mean())
    if unparsed > MAX_UNPARSED:
        raise DataError(
            f"{unparsed:.0%} of the samples could not be parsed, more than {MAX_UNPARSED:.0%}: "
            "the scores would measure how answers are extracted; check the grader first"
        )


def judge(gain: Interval, n_groups: int, *, margin: float = MARGIN) -> tuple[str, int]:
    """Return the verdict on a gain, and how many questions in total would decide it.

    The number is 0 if the verdict is decided. It assumes that the gain stays as it is and that the
    interval shrinks with the square root of the number of questions.

    >>> judge(Interval(0.02, 0.01, 0.03), 500)
    ('gain', 0)
    >>> judge(Interval(0.01, -0.01, 0.03), 500)
    ('inconclusive', 2001)
    """
    if gain.low > 0:
        return GAIN, 0
    if gain.high < 0:
        return LOSS, 0
    if -margin <= gain.low and gain.high <= margin:
        return NO_GAIN, 0
    half_width = (gain.high - gain.low) / 2
    distance = max(abs(gain.value), margin - abs(gain.value), MIN_GAIN)
    return INCONCLUSIVE, math.floor(n_groups * (half_width / distance) ** 2) + 1


def advise_mixture(experiment: Experiment, budget: float) -> str:
    """Describe the best mixture of numbers of samples, or of levels of arms, at a budget."""
    if experiment.pool.has_arms:
        return _advise_arm_mixture(experiment, budget)
    table = experiment.dense_table
    cost = table.costs.mean(axis=0)
    kept, _ = fit_price_schedule(cost, table.utility.mean(axis=0))
    levels = [experiment.dense_levels[k].n_samples for k in kept]
    position = float(np.interp(budget, cost[kept], np.arange(len(kept))))
    first, share = divmod(round(100 * position), 100)
    if not share:
        return f"use {_format_samples(levels[first])} per question"
    return (
        f"use {_format_samples(levels[first])} per question, and {levels[first + 1]} for {share} % "
        "of the questions"
    )


def _advise_arm_mixture(experiment: Experiment, budget: float) -> str:
    """Describe the best mixture of levels of single arms at a budget."""
    evidence, levels = experiment.evidence, list_levels(experiment)
    result = evidence.run_levels(evidence.votes(np.arange(len(experiment.pool)), joint=False))
    cost = result.cost.mean(axis=0)
    kept, _ = fit_price_schedule(cost, result.accuracy.mean(axis=0))
    choices = [levels[k] for k in kept.tolist()]
    names = [f"{_format_samples(n)} of {experiment.arm_names[arm]}" for arm, n in choices]
    position = float(np.interp(budget, cost[kept], np.arange(len(names))))
    first, share = divmod(round(100 * position), 100)
    if not share:
        return f"use {names[first]} per question"
    return f"use {names[first]} per question, and {names[first + 1]} for {share} % of the questions"


def _format_samples(count: int) -> str:
    return "one sample" if count == 1 else f"{count} samples"


def calibrate(
    score: PolicyScore,
    final: FittedPolicy,
    *,
    budget: float,
    settings: CalibrationSettings | None = None,
) -> dict[str, Any]:
    """Find the price for a budget and judge the policy at that price.

    ``final`` is the policy that will be used, fitted to all questions.
    """
    settings = settings or CalibrationSettings()
    check_pool(score.experiment)
    score.experiment.pool.check_budget(budget)
    frontier = PriceFrontier(score, final, settings)
    point = frontier.find(budget)
    found = frontier.describe(point)
    gain = score.gain(point, settings.confidence)
    verdict, needed = judge(gain, score.n_groups, margin=settings.margin)
    advice = "use this policy" if verdict == GAIN else advise_mixture(score.experiment, budget)
    return {
        "verdict": verdict,
        "advice": advice,
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "questions_needed": needed,
        **found,
        **measure_vote_gain(score, point),
        **frontier.describe_latency(found["price"]),
        "confidence": settings.confidence,
        "cost_confidence": settings.cost_confidence,
        "margin": settings.margin,
        "questions": len(score.experiment.pool),
        "independent_questions": score.n_groups,
        "horizon": settings.horizon,
        "max_rounds": score.experiment.round_limit,
        "retry_gain": measure_retry_gain(score, point),
        "max_budget": frontier.budget_of(frontier.points[-1]),
        "frontier": list_frontier(frontier, point, price=found["price"]),
    }


def calibrate_pooled(
    score: PolicyScore, final: FittedPolicy, *, settings: CalibrationSettings | None = None
) -> tuple[FrontierPoint, ...]:
    """Return the frontier of the policy for questions whose text is not known, if there is one.

    ``score`` and ``final`` are those of the policy for questions with a text.
    """
    policy, experiment = final.policy, score.experiment
    if not isinstance(policy, (ColouredPolicy, SequentialPolicy)) or policy.pooled is None:
        return ()
    known = None
    if isinstance(policy.pooled, ColouredPolicy):
        known = replay_evidence(experiment, policy.pooled, final.features)
    own = score_policy(experiment, make_sequential_pooled, score.mixture)
    pooled = replace(final, policy=policy.pooled, known=known)
    frontier = PriceFrontier(own, pooled, settings or CalibrationSettings())
    return tuple(FrontierPoint(**point) for point in list_frontier(frontier))


def describe_excess(budget: float, max_budget: float) -> str | None:
    """Say that a budget is above what a policy can spend, if it is."""
    if budget <= max_budget * (1 + UNUSED_SHARE):
        return None
    return (
        f"a budget of {budget:g} is above {max_budget:.4g}, the most that this policy spends: a "
        "larger budget changes nothing"
    )


def measure_vote_gain(score: PolicyScore, point: CurvePoint) -> dict[str, float]:
    """Return what weighted votes gain over plain ones in the mixture at this cost, if learned.

    The gain of a policy is over the mixture with the same votes, so the two add up.
    """
    experiment = score.experiment
    if not experiment.uses_evidence:
        return {}
    plain = score_held_out(experiment, find_factory("mixture-votes"))
    weighted = PolicyScore(experiment, find_factory("mixture"), score.mixture, plain)
    gain = weighted.gain(score.mixture.read(point.cost))
    return {"vote_gain": gain.value, "vote_gain_low": gain.low, "vote_gain_high": gain.high}


def measure_retry_gain(score: PolicyScore, point: CurvePoint) -> float:
    """Return what resampling unparsed answers alone gains over the mixture at this cost."""
    experiment = score.experiment
    if experiment.pool.has_arms or not (experiment.pool.answers.answer == UNPARSED).any():
        return 0.0
    retry = score_held_out(experiment.votes_only, find_factory("retry"))
    plain = score.mixture
    if experiment.uses_evidence:  # a retried sample counts once, so it is compared with plain votes
        plain = score_held_out(experiment, find_factory("mixture-votes"))
    return measure_difference(plain, retry.read(point.cost))[0]


def calibrate_share(
    score: PolicyScore,
    final: FittedPolicy,
    *,
    accuracy_of: int,
    share: float,
    settings: CalibrationSettings | None = None,
) -> dict[str, Any]:
    """Find the cheapest setting that keeps a share of the accuracy of ``accuracy_of`` samples.

    Settings are tested from the most expensive down until one fails, so testing many does not lower
    the confidence. One passes if both the betting test and the bound for the next ``horizon``
    questions show that the share is kept.
    """
    settings, experiment = settings or CalibrationSettings(), score.experiment
    check_pool(experiment)
    if accuracy_of not in experiment.levels:
        raise ConfigError(f"{accuracy_of} samples are not a level of this policy")
    frontier, confidence = PriceFrontier(score, final, settings), settings.confidence
    answers = experiment.pool.answers
    target = estimate(answers, (accuracy_of,), standard_errors=False).utility[:, 0]
    passed: tuple[CurvePoint, float] | None = None
    for point in frontier.points[::-1]:
        excess = point.result.accuracy - share * target
        variance = point.result.accuracy_variance + share**2 * target * (1 - target)
        mean = Mean.of(excess, variance, score.group).widen(score.refit_variance(point).accuracy)
        low = mean.value - mean.margin(confidence, settings.horizon)
        if low < 0 or not betting_test(excess, score.group, lowest=-share, confidence=confidence):
            break
        passed = point, low
    if passed is None:
        raise DataError(
            f"{len(experiment.pool)} questions cannot show {share:.0%} of the accuracy of "
            f"{accuracy_of} samples at any price: collect more questions, or use a smaller share"
        )
    point, low = passed
    found = frontier.describe(point)
    rows = np.arange(len(experiment.pool))
    return {
        **found,
        "full_cost": accuracy_of * experiment.sample_cost(rows) + experiment.round_cost(rows),
        "full_accuracy": float(target.mean()),
        "share": share,
        "share_low": share + low / float(target.mean()),
        "confidence": confidence,
        "questions": len(experiment.pool),
        "max_rounds": experiment.round_limit,
        "frontier": list_frontier(frontier, point, price=found["price"]),
    }
