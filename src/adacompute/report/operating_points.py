"""Operating points: everything that the page says at one budget.

The slider of the page moves from one operating point to another, and everything that depends on the
budget comes from its point: the verdict, what is saved, what questions take, and examples. What
does not depend on it is in the summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.evaluation.scoring.baseline import describe_baseline
from adacompute.evaluation.scoring.frontier import name_latencies
from adacompute.evaluation.scoring.policy_score import measure_retry_gain
from adacompute.evaluation.scoring.verdict import GAIN, MAX_UNPARSED, MIN_QUESTIONS, judge
from adacompute.policies.bundles.bundle import NOT_JUDGED
from adacompute.report.breakdown import (
    by_difficulty,
    by_type,
    describe_unsolved,
    pick_examples,
    share_by_level,
)
from adacompute.report.wording import clean_text, format_percent

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.report.study import OperatingPoint, Study

BILLED_QUESTIONS = 1000
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


def at_budget(document: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a document as it is at another operating point."""
    return {**document, **document["operating_points"][index], "selected": index}


def describe_points(
    study: Study,
    data: QuestionData,
    points: Sequence[OperatingPoint],
    *,
    selected: int,
    unparsed: dict[str, float],
) -> list[dict[str, Any]]:
    """Describe operating points; latency, which is slow to measure, only at the selected one."""
    found = [
        {
            **_describe_point(study, data, point),
            **_judge(study, point, unparsed["share"]),
            **name_latencies("latency", None),
            "unparsed": unparsed | _retry_gain(study, point),
        }
        for point in points
    ]
    for one, saving in zip(found, _describe_savings(study, points, selected), strict=True):
        one["today"] = None if one["verdict"] == NOT_JUDGED else saving
    found[selected] |= study.frontier.describe_latency(points[selected].price)
    return found


def _describe_point(study: Study, data: QuestionData, point: OperatingPoint) -> dict[str, Any]:
    """Return the costs, the accuracy and the gain of a point, and its questions."""
    gain, accuracy = study.score.gain(point.point), study.score.accuracy(point.point)
    means = {name: float((point.n_samples * rate).mean()) for name, rate in data.rates.items()}
    if study.experiment.pool.has_arms:
        means[data.run["unit"]] = point.point.cost
    sensitivity = study.gain_by_question_count(point)
    return {
        "budget": point.budget,
        "price": point.price,
        "cost": point.point.cost,
        "rounds": float(point.point.result.n_rounds.mean()),
        **accuracy.named("accuracy"),
        **gain.named("gain"),
        "level_shares": share_by_level(point, study.experiment.levels),
        "arm_shares": study.frontier.share_by_arm(point.price),
        "bill": {name: BILLED_QUESTIONS * mean for name, mean in means.items()},
        "question_types": by_type(study, point),
        "difficulties": _clean_names(by_difficulty(study, point, data.difficulty)),
        "examples": _add_texts(pick_examples(study, point), data),
        "unsolved": describe_unsolved(study, point),
        "sensitivity": [{"questions": count, **one.named("gain")} for count, one in sensitivity],
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
    study: Study, points: Sequence[OperatingPoint], selected: int
) -> list[dict[str, Any] | None]:
    """Return what is saved at each point, compared with today; None without today.

    At the selected one it is what `calibrate` says, if that is the point that saves.
    """
    if study.saving is None:
        return [None] * len(points)
    found = study.restate_saving([one.point for one in points])
    if study.delivers(points[selected]):
        found[selected] = study.saving[1]
    arm = study.saving[1]["arm"]
    return [one | {"arm": arm and clean_text(arm, MAX_NAME)} for one in found]


def _retry_gain(study: Study, point: OperatingPoint) -> dict[str, float]:
    """Return what resampling unparsed answers alone gains at the cost of an operating point."""
    return measure_retry_gain(study.experiment, point.point.cost).named("gain")


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


def describe_equal_cost(row: dict[str, Any]) -> dict[str, Any]:
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
