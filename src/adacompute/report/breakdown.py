"""Breakdown: which questions the budget goes to, by level, difficulty and type, with examples.

The type of a question comes from its utility curve, from one sample to the largest level, or, with
several arms, from the cheapest efficient level to the most expensive one. It is estimated from the
same samples that are scored, so a few questions get the wrong type. Nothing is formatted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.evaluation.intervals import CONFIDENCE, Mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray
    from adacompute.report.study import OperatingPoint, Study

MIN_EASY, MAX_HOPELESS, MIN_RESPONSE = 0.9, 0.1, 0.1
QUESTION_TYPES = {
    "easy": "correct at least 90 % of the time with one sample",
    "responsive": "more samples add at least 10 points",
    "diminishing": "sometimes correct, and more samples add little or make it worse",
    "hopeless": "correct at most 10 % of the time, even with the most samples",
}
ARM_QUESTION_TYPES = {
    "easy": "correct at least 90 % of the time with the cheapest level",
    "responsive": "more expensive levels add at least 10 points",
    "diminishing": "sometimes correct, and more expensive levels add little or make it worse",
    "hopeless": "correct at most 10 % of the time, even with the most expensive level",
}
"""Meanings of the types where levels are those of several arms."""

N_EXAMPLES = 6
MAX_DIFFICULTIES = 12
"""With more distinct values, the column does not hold difficulties but numbers or names."""


def classify_questions(study: Study) -> IntArray:
    """Return the type of each question, as an index into QUESTION_TYPES."""
    utility = study.response_curves[1]
    first, last = utility[:, 0], utility[:, -1]
    kind = np.full(len(utility), 2)
    kind[last - first >= MIN_RESPONSE] = 1
    kind[last <= MAX_HOPELESS] = 3
    kind[first >= MIN_EASY] = 0
    return kind


def nearest_level(n_samples: FloatArray, levels: Sequence[int]) -> IntArray:
    """Return the index of the level that is nearest to each mean number of samples, by ratio.

    >>> nearest_level(np.array([1.0, 1.3, 1.5, 7.0]), (1, 2, 4, 8)).tolist()
    [0, 0, 1, 3]
    """
    sizes = np.asarray(levels, dtype=np.float64)
    return np.searchsorted(np.sqrt(sizes[:-1] * sizes[1:]), n_samples, side="right")


def share_by_level(point: OperatingPoint, levels: Sequence[int]) -> list[dict[str, float]]:
    """Return the share of the questions near each level, and their share of the budget."""
    nearest = nearest_level(point.n_samples, levels)
    return [
        {"level": float(level), **_shares(nearest == k, point)} for k, level in enumerate(levels)
    ]


def _shares(rows: BoolArray, point: OperatingPoint) -> dict[str, float]:
    """Return what some of the questions take: shares, and the mean number of samples."""
    return {
        "questions": int(rows.sum()),
        "share": float(rows.mean()),
        "budget_share": float(point.cost[rows].sum() / point.cost.sum()),
        "samples": float(point.n_samples[rows].mean()) if rows.any() else 0.0,
    }


def describe_groups(
    study: Study, point: OperatingPoint, groups: dict[str, BoolArray]
) -> list[dict[str, Any]]:
    """Return the shares, the accuracy and the gain over the mixture of groups of questions."""
    uniform = study.uniform_accuracy(point)
    found = []
    for name, rows in groups.items():
        if not rows.any():
            continue
        group = study.experiment.pool.group[rows]
        accuracy, gain = point.accuracy[rows], (point.accuracy - uniform)[rows]
        found.append(
            {
                "name": name,
                **_shares(rows, point),
                **_interval("accuracy", accuracy, group, lowest=0.0),
                **_interval("gain", gain, group, lowest=-1.0),
            }
        )
    return found


def _interval(
    name: str, values: FloatArray, group: KeyArray, *, lowest: float
) -> dict[str, float | None]:
    """Return a mean and its interval, which is None for a single question."""
    mean = Mean.of(values, group)
    found: dict[str, float | None] = {name: mean.value, f"{name}_low": None, f"{name}_high": None}
    if mean.n_groups > 1:
        interval = mean.interval(CONFIDENCE).clip(lowest, 1.0)
        found |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    return found


def by_type(study: Study, point: OperatingPoint) -> list[dict[str, Any]]:
    """Break down by question type, with the mean utility of each level."""
    kind, utility = classify_questions(study), study.response_curves[1]
    rows = {name: kind == k for k, name in enumerate(QUESTION_TYPES)}
    groups = describe_groups(study, point, rows)
    return [
        {**group, "curve": utility[rows[group["name"]]].mean(axis=0).tolist()} for group in groups
    ]


def by_difficulty(
    study: Study, point: OperatingPoint, difficulty: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Break down by difficulty, if there are at least two and not too many."""
    names = sorted({name for name in difficulty if name is not None}, key=_sort_key)
    if not 1 < len(names) <= MAX_DIFFICULTIES:
        return []
    column = np.array(["" if name is None else name for name in difficulty], dtype=object)
    rows = {name: np.asarray(column == name, dtype=np.bool_) for name in names}
    return describe_groups(study, point, rows)


def _sort_key(name: str) -> tuple[float, str]:
    """Sort names that are numbers by their value, before the others."""
    try:
        return float(name), name
    except ValueError:
        return np.inf, name


def pick_examples(study: Study, point: OperatingPoint) -> dict[str, list[dict[str, Any]]]:
    """Return the questions with the largest gain and loss, and the most expensive hopeless ones."""
    gain = point.accuracy - study.uniform_accuracy(point)
    utility, kind = study.response_curves[1], classify_questions(study)
    hopeless = np.flatnonzero(kind == list(QUESTION_TYPES).index("hopeless"))
    order = np.argsort(-gain, kind="stable")
    rows: dict[str, list[int] | IntArray] = {
        "gain": [int(q) for q in order[:N_EXAMPLES] if gain[q] > 0],
        "loss": [int(q) for q in order[::-1][:N_EXAMPLES] if gain[q] < 0],
        "hopeless": hopeless[np.argsort(-point.cost[hopeless], kind="stable")][:N_EXAMPLES],
    }
    return {
        name: [
            {
                "question": int(q),
                "samples": float(point.n_samples[q]),
                "gain": float(gain[q]),
                "first_accuracy": float(utility[q, 0]),
                "last_accuracy": float(utility[q, -1]),
            }
            for q in questions
        ]
        for name, questions in rows.items()
    }


def describe_unsolved(study: Study, point: OperatingPoint) -> dict[str, float]:
    """Return the questions that no recorded sample answers correctly, and their share of cost."""
    answers = study.experiment.pool.answers
    n_correct = np.bincount(answers.question, answers.correct, minlength=len(answers))
    return _shares(n_correct == 0, point)


def count_unparsed(study: Study) -> dict[str, float]:
    """Return how many samples could not be parsed, and how many questions have such samples."""
    answers = study.experiment.pool.answers
    is_unparsed = answers.answer == UNPARSED
    unparsed = np.bincount(answers.question[is_unparsed], minlength=len(answers))
    return {
        "samples": int(unparsed.sum()),
        "share": float(is_unparsed.mean()),
        "questions": int((unparsed > 0).sum()),
        "majority_questions": int((2 * unparsed > answers.n_samples).sum()),
    }
