"""Summary: everything that the page shows, as one document of numbers and shortened texts.

The document is stored in the run, and the page is made from it alone: nothing is computed after
this module, and the samples are not needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.evaluation.intervals import CONFIDENCE
from adacompute.evaluation.scoring.baseline import describe_baseline
from adacompute.evaluation.scoring.frontier import list_frontier
from adacompute.evaluation.scoring.policy_score import measure_retry_gain
from adacompute.evaluation.scoring.verdict import (
    GAIN,
    MAX_UNPARSED,
    MIN_QUESTIONS,
    judge,
)
from adacompute.policies.bundles.bundle import NOT_JUDGED
from adacompute.report.breakdown import (
    by_difficulty,
    by_type,
    count_unparsed,
    pick_examples,
    share_by_level,
)
from adacompute.report.study import (
    OperatingPoint,
    PolicyCurve,
    Study,
    compare_savings,
    score_curves,
)
from adacompute.report.wording import clean_text, format_percent

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

BILLED_QUESTIONS = 1000

SLIDER_STEPS = ((2.0, 0.1), (4.0, 0.2), (8.0, 0.5), (16.0, 1.0), (np.inf, 4.0))
"""Distance between budgets of the slider up to each number of samples per question."""

N_COMPARED = 12
"""Approximate number of budgets at which the other policies are scored."""

N_ARM_BUDGETS = 25
"""Approximate number of budgets of the slider where there are several arms."""

MAX_NAME = 80


@dataclass(frozen=True, eq=False)
class QuestionData:
    """What the report knows about the questions besides their samples, in their order.

    ``rates`` are the mean amounts per sample of each question: samples, tokens, money and so on.
    With several arms only samples have a rate, because those of different arms cost differently.
    ``run`` describes the run, and becomes part of the document.
    """

    id: Sequence[str]
    text: Sequence[str | None]
    difficulty: Sequence[str | None]
    rates: dict[str, FloatArray]
    run: dict[str, Any]


def slider_budgets(study: Study, budget: float) -> list[float]:
    """Return the budgets of the slider, in small steps where they are small, and the given one."""
    experiment = study.experiment
    if experiment.pool.has_arms:
        return _arm_budgets(study, budget)
    sample_cost = experiment.sample_cost(np.arange(len(experiment.pool)))
    largest, size, found = experiment.levels[-1], float(experiment.levels[0]), []
    while size < largest:
        found.append(size * sample_cost)
        size = round(size + next(step for end, step in SLIDER_STEPS if size < end), 6)
    lowest, tolerance = study.lowest_cost, 1e-6 * sample_cost
    kept = [
        b for b in [*found, largest * sample_cost] if b > lowest and abs(b - budget) > tolerance
    ]
    return sorted([*kept, budget])


def _arm_budgets(study: Study, budget: float) -> list[float]:
    """Return budgets by equal factors from the lowest to the highest cost, and the given one."""
    lowest, highest = study.lowest_cost, float(study.score.curve.cost[-1])
    steps = {float(f"{step:.3g}") for step in np.geomspace(lowest, highest, N_ARM_BUDGETS)}
    return sorted({step for step in steps if step > lowest} | {budget})


def summarise(
    study: Study,
    data: QuestionData,
    *,
    budget: float,
    policies: Sequence[str],
    evaluation: dict[str, Any] | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Return the document of a study at a budget.

    ``evaluation`` is the stored evaluation of the run, if it fits; its policies replace
    ``policies``.
    """
    budgets = slider_budgets(study, budget)
    points = [study.operating_point(b, exact=b == budget) for b in budgets]
    selected = budgets.index(budget)
    point = points[selected]
    unparsed = count_unparsed(study) | _retry_gain(study, point)
    compared = budgets[:: max(1, len(budgets) // N_COMPARED)]
    curves = score_curves(study, () if evaluation else policies, compared, progress)
    judged = _judge(study, point, unparsed["share"])
    return {
        **data.run,
        "policy": study.name,
        "levels": list(study.experiment.levels),
        **_describe_data(study),
        "permutations": study.experiment.n_permutations,
        "confidence": CONFIDENCE,
        "budget": budget,
        "selected": selected,
        **study.frontier.describe_latency(point.price),
        **judged,
        **_describe_savings(study, policies, evaluation, judged["verdict"]),
        "operating_points": [_describe_point(study, data, one) for one in points],
        "curves": [_describe_curve(curve) for curve in curves]
        + _evaluation_curves(evaluation, study.name),
        "has_evaluation": evaluation is not None,
        "question_types": by_type(study, point),
        "difficulties": _clean_names(by_difficulty(study, point, data.difficulty)),
        "examples": _add_texts(pick_examples(study, point), data),
        "unparsed": unparsed,
        "frontier": list_frontier(study.frontier, point.point, price=point.price),
        "sensitivity": [
            {"questions": count, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            for count, gain in study.gain_by_question_count(point)
        ],
    }


def _describe_data(study: Study) -> dict[str, Any]:
    """Return the counts of questions and samples, and the names of arms if there are several."""
    pool = study.experiment.pool
    arms = pool.arms if pool.has_arms else ()
    return {
        "arms": [clean_text(name, MAX_NAME) for name in arms],
        "response_levels": [clean_text(name, MAX_NAME) for name in study.response_curves[0]],
        "questions": len(pool),
        "independent_questions": study.score.n_groups,
        "fold_assignments": study.experiment.n_assignments,
        "excluded": pool.n_excluded,
        "samples": pool.n_samples,
        "recorded_samples": len(pool.answers.answer),
    }


def _describe_point(study: Study, data: QuestionData, point: OperatingPoint) -> dict[str, Any]:
    gain, accuracy = study.score.gain(point.point), study.score.accuracy(point.point)
    means = {name: float((point.n_samples * rate).mean()) for name, rate in data.rates.items()}
    if study.experiment.pool.has_arms:
        means[data.run["unit"]] = point.point.cost
    return {
        "budget": point.budget,
        "price": point.price,
        "cost": point.point.cost,
        "rounds": float(point.point.result.n_rounds.mean()),
        "accuracy": accuracy.value,
        "accuracy_low": accuracy.low,
        "accuracy_high": accuracy.high,
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "level_shares": share_by_level(point, study.experiment.levels),
        "bill": {name: BILLED_QUESTIONS * mean for name, mean in means.items()},
    }


def _judge(study: Study, point: OperatingPoint, unparsed: float) -> dict[str, Any]:
    """Return the verdict of calibration, or the reason why there is none."""
    n_groups = study.score.n_groups
    verdict, needed = judge(study.score.gain(point.point), n_groups)
    advice = "use this policy"
    if verdict != GAIN:
        advice = clean_text(describe_baseline(study.experiment, point.budget))
    found = {"verdict": verdict, "advice": advice, "questions_needed": needed, "reason": None}
    if not study.has_enough_questions:
        reason = (
            f"{n_groups} independent questions are too few, at least {MIN_QUESTIONS} are needed"
        )
        return found | {
            "verdict": NOT_JUDGED,
            "reason": reason,
            "questions_needed": MIN_QUESTIONS,
        }
    if unparsed > MAX_UNPARSED:
        reason = (
            f"{format_percent(unparsed, 0)} of the samples could not be parsed, so check the "
            "grader first"
        )
        return found | {"verdict": NOT_JUDGED, "reason": reason, "questions_needed": None}
    return found


def _describe_savings(
    study: Study, policies: Sequence[str], evaluation: dict[str, Any] | None, verdict: str
) -> dict[str, Any]:
    """Return what the policy saves, and what each policy costs at the accuracy of today.

    The rows of a stored evaluation replace those of other policies, if they are about the same.
    """
    if study.saving is None or verdict == NOT_JUDGED:
        return {"today": None, "savings": []}
    saving = study.saving[1]
    stored = evaluation["today"] if evaluation else []
    is_stored = any(all(row[key] == saving[key] for key in SAME_TODAY) for row in stored)
    rows = compare_savings(study, () if is_stored else policies)
    known = [row["policy"] for row in rows]
    rows += [row for row in stored if is_stored and row["policy"] not in known]
    about = saving | {"arm": saving["arm"] and clean_text(saving["arm"], MAX_NAME)}
    return {"today": about, "savings": [_describe_equal_cost(row) for row in rows]}


SAME_TODAY = ("wanted_samples", "arm", "votes", "calls", "tolerance")
"""What two comparisons with today must have in common to be shown together."""


def _describe_equal_cost(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cost of a policy at the accuracy of today; None where it is not reached."""
    low, high = row["saving_low"], row["saving_high"]
    return {
        "policy": row["policy"],
        "cost": row["same_accuracy_cost"],
        "cost_low": None if high is None else (1 - high) * row["cost"],
        "cost_high": None if low is None else (1 - low) * row["cost"],
        "saving": row["saving"],
        "saving_low": low,
        "saving_high": high,
        "verdict": row["verdict"],
    }


def _retry_gain(study: Study, point: OperatingPoint) -> dict[str, float]:
    """Return what resampling unparsed answers alone gains at the cost of an operating point."""
    gain = measure_retry_gain(study.experiment, point.point.cost)
    return {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}


def _describe_curve(curve: PolicyCurve) -> dict[str, Any]:
    """Return the points of a curve with their intervals."""
    rows = zip(curve.cost, curve.accuracy, curve.difference, strict=True)
    points = [
        {
            "cost": cost,
            "accuracy": accuracy.value,
            "accuracy_low": accuracy.low,
            "accuracy_high": accuracy.high,
            "difference": difference.value,
            "difference_low": difference.low,
            "difference_high": difference.high,
        }
        for cost, accuracy, difference in rows
    ]
    return {"policy": curve.name, "points": points}


def _evaluation_curves(evaluation: dict[str, Any] | None, studied: str) -> list[dict[str, Any]]:
    """Return the curves of a stored evaluation, except those of the study."""
    rows = evaluation["rows"] if evaluation else []
    names = dict.fromkeys(row["policy"] for row in rows)
    kept = ["cost"] + [f"{n}{end}" for n in ("accuracy", "difference") for end in ENDS]
    return [
        {
            "policy": name,
            "points": [{key: row[key] for key in kept} for row in rows if row["policy"] == name],
        }
        for name in names
        if name not in ("mixture", studied)
    ]


ENDS = ("", "_low", "_high")
"""Endings of a value's key and of the keys of its interval."""


def _clean_names(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**group, "name": clean_text(group["name"], MAX_NAME)} for group in groups]


def _add_texts(
    examples: dict[str, list[dict[str, Any]]], data: QuestionData
) -> dict[str, list[dict[str, Any]]]:
    """Return the examples with the shortened ids and texts of their questions."""
    return {
        name: [
            {
                **example,
                "id": clean_text(data.id[example["question"]], MAX_NAME),
                "text": clean_text(data.text[example["question"]] or ""),
            }
            for example in group
        ]
        for name, group in examples.items()
    }
