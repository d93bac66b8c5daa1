"""Breakdown: where a budget goes, by level, difficulty and kind of question, and examples.

Kinds are by the utility curve of a question, from one sample to the largest level: they are read
from the same samples that are scored, so a few questions stand in the wrong one. It knows nothing
of how anything is shown.
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

EASY, HOPELESS, RESPONDS = 0.9, 0.1, 0.1
KINDS = {
    "easy": "right at least 90 % of the time with one sample",
    "responsive": "more samples add at least 10 points",
    "diminishing": "right at times, and more samples add little or take away",
    "hopeless": "right at most 10 % of the time with the most samples",
}
EXAMPLES = 6
MOST_DIFFICULTIES = 12
"""Difficulties shown one by one: more of them are numbers or names, not difficulties."""


def sort_kinds(study: Study) -> IntArray:
    """Kind of each question, as a number into KINDS."""
    worth = study.experiment.table.utility
    first, last = worth[:, 0], worth[:, -1]
    kind = np.full(len(worth), 2)
    kind[last - first >= RESPONDS] = 1
    kind[last <= HOPELESS] = 3
    kind[first >= EASY] = 0
    return kind


def nearest_level(samples: FloatArray, levels: Sequence[int]) -> IntArray:
    """Level that each mean number of samples is nearest to, by ratio.

    >>> nearest_level(np.array([1.0, 1.3, 1.5, 7.0]), (1, 2, 4, 8)).tolist()
    [0, 0, 1, 3]
    """
    steps = np.asarray(levels, dtype=np.float64)
    return np.searchsorted(np.sqrt(steps[:-1] * steps[1:]), samples, side="right")


def share_levels(stop: OperatingPoint, levels: Sequence[int]) -> list[dict[str, float]]:
    """Share of the questions near each level, and of the budget that they take."""
    at = nearest_level(stop.samples, levels)
    return [_part(at == k, stop, level=float(level)) for k, level in enumerate(levels)]


def _part(rows: BoolArray, stop: OperatingPoint, **about: float) -> dict[str, float]:
    """Share of questions and of the budget, and mean samples, of some of the questions."""
    return {
        **about,
        "questions": int(rows.sum()),
        "share": float(rows.mean()),
        "budget_share": float(stop.cost[rows].sum() / stop.cost.sum()),
        "samples": float(stop.samples[rows].mean()) if rows.any() else 0.0,
    }


def describe_groups(
    study: Study, stop: OperatingPoint, rows: dict[str, BoolArray]
) -> list[dict[str, Any]]:
    """What some kinds of questions get: shares, accuracy, and gain over the mixture."""
    uniform = _uniform(study, stop)
    found = []
    for name, members in rows.items():
        if not members.any():
            continue
        group = study.experiment.pool.group[members]
        right, gain = stop.accuracy[members], (stop.accuracy - uniform)[members]
        found.append(
            {
                "name": name,
                **_part(members, stop),
                **_interval("accuracy", right, group, least=0.0),
                **_interval("gain", gain, group),
            }
        )
    return found


def _interval(
    name: str, values: FloatArray, group: KeyArray, *, least: float = -1.0
) -> dict[str, float | None]:
    """Mean with its interval, as far as it can be; without one where there is one question."""
    mean = Mean.of(values, 0.0, group)
    half = mean.margin(0.5 + CONFIDENCE / 2) if mean.n_groups > 1 else None
    return {
        name: mean.value,
        f"{name}_low": None if half is None else max(least, mean.value - half),
        f"{name}_high": None if half is None else min(1.0, mean.value + half),
    }


def _uniform(study: Study, stop: OperatingPoint) -> FloatArray:
    """Accuracy of each question under the mixture at the mean cost of a stop, (N,)."""
    spent = study.mixture.cost[0]
    place = float(np.interp(stop.cost.mean(), spent, np.arange(len(spent))))
    first = min(int(place), len(spent) - 2)
    share = place - first
    accuracy = study.base.accuracy
    return np.asarray(accuracy[:, first] * (1 - share) + accuracy[:, first + 1] * share)


def by_kind(study: Study, stop: OperatingPoint) -> list[dict[str, Any]]:
    """Break down by kind, with the mean utility of each level."""
    kind, worth = sort_kinds(study), study.experiment.table.utility
    rows = {name: kind == k for k, name in enumerate(KINDS)}
    found = describe_groups(study, stop, rows)
    for told in found:
        told["curve"] = worth[rows[told["name"]]].mean(axis=0).tolist()
    return found


def by_difficulty(
    study: Study, stop: OperatingPoint, difficulty: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Break down by difficulty, where it is known and there are a few of them."""
    names = sorted({name for name in difficulty if name is not None}, key=_by_number)
    if not 1 < len(names) <= MOST_DIFFICULTIES:
        return []
    every = np.array(["" if name is None else name for name in difficulty], dtype=object)
    rows = {name: np.asarray(every == name, dtype=np.bool_) for name in names}
    return describe_groups(study, stop, rows)


def _by_number(name: str) -> tuple[float, str]:
    """Sort names that are numbers by their value."""
    try:
        return float(name), name
    except ValueError:
        return np.inf, name


def pick_examples(study: Study, stop: OperatingPoint) -> dict[str, list[dict[str, Any]]]:
    """Questions that gain most, lose most, and are hopeless though most is spent on them."""
    gain = stop.accuracy - _uniform(study, stop)
    worth, kind = study.experiment.table.utility, sort_kinds(study)
    hopeless = np.flatnonzero(kind == list(KINDS).index("hopeless"))
    order = np.argsort(-gain, kind="stable")
    picks: dict[str, list[int] | IntArray] = {
        "gain": [int(q) for q in order[:EXAMPLES] if gain[q] > 0],
        "lose": [int(q) for q in order[::-1][:EXAMPLES] if gain[q] < 0],
        "hopeless": hopeless[np.argsort(-stop.cost[hopeless], kind="stable")][:EXAMPLES],
    }
    return {
        name: [
            {
                "question": int(q),
                "samples": float(stop.samples[q]),
                "gain": float(gain[q]),
                "first": float(worth[q, 0]),
                "last": float(worth[q, -1]),
            }
            for q in rows
        ]
        for name, rows in picks.items()
    }


def count_unparsed(study: Study) -> dict[str, float]:
    """How many samples could not be read, and on how many questions."""
    answers = study.experiment.pool.answers
    unread = np.bincount(answers.question[answers.answer == UNPARSED], minlength=len(answers))
    return {
        "samples": int(unread.sum()),
        "share": float((answers.answer == UNPARSED).mean()),
        "questions": int((unread > 0).sum()),
        "most": int((2 * unread > answers.n_samples).sum()),
    }
