"""Summary: everything that the page shows, as one document of numbers and shortened texts.

The document is stored in the run, and the page is made from it alone: nothing is computed after
this module, and the samples are not needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adacompute.evaluation.intervals import CONFIDENCE
from adacompute.evaluation.scoring.frontier import list_frontier
from adacompute.report.breakdown import count_unparsed
from adacompute.report.operating_points import (
    MAX_NAME,
    QuestionData,
    at_budget,
    describe_equal_cost,
    describe_points,
)
from adacompute.report.study import PolicyCurve, Study, compare_savings, score_curves
from adacompute.report.wording import clean_text

SLIDER_STEPS = ((2.0, 0.1), (4.0, 0.2), (8.0, 0.5), (16.0, 1.0), (np.inf, 4.0))
"""Distance between budgets of the slider up to each number of samples per question."""

N_COMPARED = 12
"""Approximate number of budgets at which the other policies are scored."""

N_ARM_BUDGETS = 25
"""Approximate number of budgets of the slider where there are several arms."""


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
    points = [study.operating_point(b) for b in budgets]
    selected = budgets.index(budget)
    point = points[selected]
    unparsed = count_unparsed(study)
    compared = budgets[:: max(1, len(budgets) // N_COMPARED)]
    curves = score_curves(study, () if evaluation else policies, compared, progress)
    known: dict[str, Any] = {"selected": selected, "unparsed": unparsed}
    described = describe_points(study, data, points, **known)
    has_saving = described[selected]["today"] is not None
    document = {
        **data.run,
        "policy": study.name,
        "levels": list(study.experiment.levels),
        **_describe_data(study),
        "permutations": study.experiment.n_permutations,
        "confidence": CONFIDENCE,
        "savings": _describe_savings(study, policies, evaluation) if has_saving else [],
        "operating_points": described,
        "curves": [_describe_curve(curve) for curve in curves]
        + _evaluation_curves(evaluation, study.name),
        "has_evaluation": evaluation is not None,
        "frontier": list_frontier(study.frontier, point.point, price=point.price),
    }
    return at_budget(document, selected)


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


def _describe_savings(
    study: Study, policies: Sequence[str], evaluation: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Return what each policy costs at the accuracy of today.

    The rows of a stored evaluation replace those of other policies, if they are about the same.
    """
    if study.saving is None:
        return []
    saving = study.saving[1]
    stored = evaluation["today"] if evaluation else []
    is_stored = any(all(row[key] == saving[key] for key in SAME_TODAY) for row in stored)
    rows = compare_savings(study, () if is_stored else policies)
    known = [row["policy"] for row in rows]
    rows += [row for row in stored if is_stored and row["policy"] not in known]
    return [describe_equal_cost(row) for row in rows]


SAME_TODAY = ("wanted_samples", "arm", "votes", "calls", "tolerance")
"""What two comparisons with today must have in common to be shown together."""


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
