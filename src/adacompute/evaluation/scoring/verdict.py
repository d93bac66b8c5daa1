"""Verdict: whether a policy gains over the baseline, and what to do if not.

``judge`` turns the interval of a gain into one of four words. ``calibrate`` finds the price for a
budget, or the one at which a policy is as accurate as what is run today, and judges the policy
there. All scores are of questions that were held out.

It reads and writes no files.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import make_sequential_pooled
from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.scoring.baseline import describe_baseline
from adacompute.evaluation.scoring.correctness import rank_answers
from adacompute.evaluation.scoring.frontier import (
    MARGIN,
    CalibrationSettings,
    PriceFrontier,
    list_frontier,
)
from adacompute.evaluation.scoring.held_out import CurvePoint, score_held_out
from adacompute.evaluation.scoring.policy_score import (
    PolicyScore,
    measure_retry_gain,
    measure_vote_gain,
)
from adacompute.evaluation.scoring.precision import find_precision
from adacompute.evaluation.scoring.savings import INCONCLUSIVE, state_saving
from adacompute.evaluation.scoring.today import Today, TodayScore
from adacompute.policies.bundles.bundle import FrontierPoint

MIN_QUESTIONS = 40
"""With fewer questions, an interval is wider than any possible gain."""

UNUSED_SHARE = 0.01
"""A budget may be this much above what a policy can spend without a warning."""

MAX_UNPARSED = 0.5
"""With a larger share, the scores measure how answers are extracted, not the model."""

GAIN, LOSS, NO_GAIN = "gain", "loss", "no gain"


def check_questions(n_groups: int) -> None:
    """Raise DataError if there are too few independent questions to judge."""
    if n_groups < MIN_QUESTIONS:
        raise DataError(
            f"{n_groups} independent questions are too few to calibrate on: "
            f"at least {MIN_QUESTIONS} are needed"
        )


def check_pool(experiment: Experiment) -> None:
    """Raise DataError if there are too few questions or too many unparsed samples to judge."""
    check_questions(experiment.pool.n_groups)
    unparsed = float((experiment.pool.answers.answer == UNPARSED).mean())
    if unparsed > MAX_UNPARSED:
        raise DataError(
            f"{unparsed:.0%} of the samples could not be parsed, more than {MAX_UNPARSED:.0%}: "
            "the scores would measure how answers are extracted; check the grader first"
        )


def judge(gain: Interval, n_groups: int) -> tuple[str, int]:
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
    if gain.low >= -MARGIN and gain.high <= MARGIN:
        return NO_GAIN, 0
    half_width = (gain.high - gain.low) / 2
    distance = max(abs(gain.value), MARGIN - abs(gain.value))
    return INCONCLUSIVE, math.floor(n_groups * (half_width / distance) ** 2) + 1


def calibrate(
    score: PolicyScore,
    final: FittedPolicy,
    *,
    budget: float | None = None,
    today: Today | None = None,
    settings: CalibrationSettings | None = None,
) -> dict[str, Any]:
    """Find the price for a budget and judge the policy at that price.

    ``final`` is the policy that will be used, fitted to all questions. With ``today`` the result
    says what is saved; without a budget the price is then that of the setting to deliver. Besides
    numbers, the result has the ``frontier`` and the ``correctness`` of the bundle.
    """
    settings, experiment = settings or CalibrationSettings(), score.experiment
    check_pool(experiment)
    frontier = PriceFrontier(score, final, settings)
    delivered, about = None, None
    if today is not None:
        delivered, about = state_saving(frontier, TodayScore(experiment, today))
    if budget is None:
        if delivered is None:
            raise ConfigError("nothing says what to calibrate for: give a budget, or today")
        budget = round_up(delivered.cost)
    experiment.pool.check_budget(budget)
    point = frontier.find(budget)
    found = frontier.describe(point)
    return {
        "budget": budget,
        **_judge_point(score, point, settings, budget),
        **found,
        **frontier.describe_latency(found["price"]),
        "arm_shares": frontier.share_by_arm(found["price"]),
        "confidence": settings.confidence,
        "margin": MARGIN,
        "questions": len(experiment.pool),
        "independent_questions": score.n_groups,
        "fold_assignments": experiment.n_assignments,
        "max_rounds": experiment.round_limit,
        "retry_gain": measure_retry_gain(experiment, point.cost).value,
        "max_budget": frontier.points[-1].cost,
        "today": about,
        **_judge_answers(frontier, point),
        "frontier": list_frontier(frontier, point, price=found["price"]),
    }


def _judge_point(
    score: PolicyScore, point: CurvePoint, settings: CalibrationSettings, budget: float
) -> dict[str, Any]:
    """Return the gain over the baseline at a point, its parts, and the verdict."""
    gain = score.gain(point, settings.confidence)
    by_votes = measure_vote_gain(score.experiment, point.cost)
    verdict, needed = judge(gain, score.n_groups)
    advice = "use this policy"
    if verdict != GAIN:
        advice = describe_baseline(score.experiment, budget)
    return {
        "verdict": verdict,
        "advice": advice,
        **gain.named("gain"),
        "gain_by_allocation": gain.value,
        **by_votes.named("gain_by_votes"),
        "gain_total": gain.value + by_votes.value,
        "questions_needed": needed,
    }


def _judge_answers(frontier: PriceFrontier, point: CurvePoint) -> dict[str, Any]:
    """Return how well right and wrong answers are separated, what is guaranteed, and the model."""
    settings, ranked = frontier.settings, rank_answers(frontier, point)
    if ranked is None:
        return dict.fromkeys(("p_correct", "precision", "correctness"))
    precision, threshold = None, None
    if settings.min_precision is not None:
        precision = find_precision(ranked, settings.min_precision, confidence=settings.confidence)
        threshold = precision.threshold
    return {
        "p_correct": ranked.describe(),
        "precision": precision and precision.to_dict(),
        "correctness": ranked.fit(threshold),
    }


def round_up(value: float) -> float:
    """Return the next number with four digits, to be typed as a budget.

    >>> round_up(1.80689), round_up(0.0001234), round_up(2.0)
    (1.807, 0.0001234, 2.0)
    """
    rounded = float(f"{value:.4g}")
    if rounded >= value:
        return rounded
    return float(f"{rounded + 10.0 ** (math.floor(math.log10(value)) - 3):.4g}")


def calibrate_pooled(
    score: PolicyScore, final: FittedPolicy, *, settings: CalibrationSettings | None = None
) -> tuple[FrontierPoint, ...]:
    """Return the frontier of the policy for questions whose text is not known, if there is one.

    ``score`` and ``final`` are those of the policy for questions with a text: fits of the other are
    taken to vary as much as its do. One assignment of questions to folds is enough for prices.
    """
    policy, experiment = final.policy, score.experiment
    if policy.pooled is None:
        return ()
    curve = score_held_out(experiment, make_sequential_pooled, n_assignments=1)
    own = replace(score, curve=curve)
    pooled = replace(final, policy=policy.pooled, known=None)
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
