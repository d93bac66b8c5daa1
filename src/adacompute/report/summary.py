"""Summary: all that the page says, as one document of plain numbers and cut texts.

It puts a study into the form that is kept in the run and drawn by the page. Nothing is computed
after it, and nothing of it needs the samples again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.evaluation.intervals import CONFIDENCE
from adacompute.evaluation.price_search import list_frontier
from adacompute.evaluation.verdict import MAX_UNPARSED, MIN_QUESTIONS, judge
from adacompute.report.breakdown import (
    by_difficulty,
    by_kind,
    count_unparsed,
    pick_examples,
    share_levels,
)
from adacompute.report.study import Line, OperatingPoint, Study, draw_lines
from adacompute.report.wording import clean, percent

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

BILLED = 1000
"""Questions that a bill is for."""

DENSE = ((2.0, 0.1), (4.0, 0.2), (8.0, 0.5), (16.0, 1.0), (np.inf, 4.0))
"""How far the slider's stops lie apart up to so many draws."""

DRAWN = 12
"""Budgets at which other policies are read."""

NAME = 80


@dataclass(frozen=True, eq=False)
class Material:
    """What is known of the questions beside their samples, in their order.

    ``rates`` are mean amounts a sample of each question, by what is counted: tokens, money.
    """

    id: Sequence[str]
    text: Sequence[str | None]
    difficulty: Sequence[str | None]
    rates: dict[str, FloatArray]
    about: dict[str, Any]


def place_stops(study: Study, budget: float) -> list[float]:
    """Budgets that the slider stops at: dense where they are small, and the one asked for."""
    experiment = study.experiment
    draw = experiment.sample_cost(np.arange(len(experiment.pool)))
    most, level, found = experiment.levels[-1], float(experiment.levels[0]), []
    while level < most:
        found.append(level * draw)
        level = round(level + next(step for end, step in DENSE if level < end), 6)
    least = float(study.cost_high[0])
    close = 1e-6 * draw
    kept = [b for b in [*found, most * draw] if b > least and abs(b - budget) > close]
    return sorted([*kept, budget])


def summarise(
    study: Study,
    material: Material,
    *,
    budget: float,
    policies: Sequence[str],
    evaluation: dict[str, Any] | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Say all of a study at a budget; ``sweep`` is an evaluation that the run has already."""
    budgets = place_stops(study, budget)
    stops = [study.stop(b) for b in budgets]
    at = budgets.index(budget)
    here, gains = stops[at], study.gains(stops)
    told = [_stop(study, material, stop, gains[:, i]) for i, stop in enumerate(stops)]
    thin = budgets[:: max(1, len(budgets) // DRAWN)]
    unread = count_unparsed(study) | _redrawing(study, here)
    lines = draw_lines(study, () if evaluation else policies, thin, progress)
    return {
        **material.about,
        "policy": study.name,
        "levels": list(study.experiment.levels),
        "orders": study.experiment.n_permutations,
        "confidence": CONFIDENCE,
        "questions": len(study.experiment.pool),
        "groups": study.groups,
        "excluded": study.experiment.pool.n_excluded,
        "samples": int(study.experiment.pool.answers.n_samples[0]),
        "budget": budget,
        "at": at,
        **_judge(study, here, gains[:, at], unread["share"]),
        "stops": told,
        "lines": [_describe(line) for line in lines] + _evaluation_lines(evaluation, study.name),
        "evaluation": evaluation is not None,
        "kinds": by_kind(study, here),
        "difficulties": _names(by_difficulty(study, here, material.difficulty)),
        "examples": _examples(study, here, material),
        "unparsed": unread,
        "frontier": list_frontier(study.sweep, CONFIDENCE),
        "sensitivity": [
            {"questions": number, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            for number, gain in study.by_number(here)
        ],
    }


def _stop(
    study: Study, material: Material, stop: OperatingPoint, gains: FloatArray
) -> dict[str, Any]:
    """Describe one stop of the slider."""
    gain, right = study.interval(gains), study.accuracy(stop)
    bill = {name: float((stop.samples * rate).mean()) for name, rate in material.rates.items()}
    return {
        "budget": stop.budget,
        "price": stop.price,
        "cost": float(stop.cost.mean()),
        "accuracy": right.value,
        "accuracy_low": right.low,
        "accuracy_high": right.high,
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "level_shares": share_levels(stop, study.experiment.levels),
        "bill": {name: BILLED * amount for name, amount in bill.items()},
    }


def _judge(study: Study, stop: OperatingPoint, gains: FloatArray, unread: float) -> dict[str, Any]:
    """Judge as calibration does, and refuse to where it would."""
    gain = study.interval(gains)
    known = judge(study.experiment, gain, stop.budget)
    told = {name: known[name] for name in ("verdict", "advice", "questions_needed")}
    if not study.enough:
        why = f"{study.groups} different questions are too few, at least {MIN_QUESTIONS} are needed"
        more = MIN_QUESTIONS - study.groups
        return told | {"verdict": "no verdict", "why": why, "questions_needed": more}
    if unread > MAX_UNPARSED:
        share = percent(unread, 0)
        why = f"{share} of the samples could not be read, so look at the grader first"
        return told | {"verdict": "no verdict", "why": why, "questions_needed": None}
    return told | {"why": None}


def _redrawing(study: Study, stop: OperatingPoint) -> dict[str, float]:
    """What only redrawing unreadable samples gains at the cost of a stop."""
    if study.retry is None:
        return {"gain": 0.0, "gain_low": 0.0, "gain_high": 0.0}
    gain = study.interval(study.gains([stop], of=study.retry)[:, 0])
    return {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}


def _describe(line: Line) -> dict[str, Any]:
    """Points of a line with their intervals."""
    tails = [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2]
    low, high = np.quantile(line.accuracy[1:], tails, axis=0)
    less, more = np.quantile(line.difference[1:], tails, axis=0)
    columns = {
        "cost": line.cost,
        "accuracy": line.accuracy[0],
        "accuracy_low": low,
        "accuracy_high": high,
        "difference": line.difference[0],
        "difference_low": less,
        "difference_high": more,
    }
    lists = [column.tolist() for column in columns.values()]
    points = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    return {"policy": line.name, "points": points}


def _evaluation_lines(evaluation: dict[str, Any] | None, own: str) -> list[dict[str, Any]]:
    """Lines of an evaluation that the run holds, besides those of the study."""
    rows = evaluation["rows"] if evaluation else []
    names = dict.fromkeys(row["policy"] for row in rows)
    kept = (
        "cost",
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "difference",
        "difference_low",
        "difference_high",
    )
    return [
        {
            "policy": name,
            "points": [{key: row[key] for key in kept} for row in rows if row["policy"] == name],
        }
        for name in names
        if name not in ("mixture", own)
    ]


def _names(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**group, "name": clean(group["name"], NAME)} for group in groups]


def _examples(
    study: Study, stop: OperatingPoint, material: Material
) -> dict[str, list[dict[str, Any]]]:
    """Examples with their texts, cut."""
    return {
        kind: [
            {
                **example,
                "id": clean(material.id[example["question"]], NAME),
                "text": clean(material.text[example["question"]] or ""),
            }
            for example in examples
        ]
        for kind, examples in pick_examples(study, stop).items()
    }
