"""Result plots: the figures of the page for results in Python, on new axes or on given ones.

They draw what a result holds and compute nothing. Settings of matplotlib stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adacompute.evaluation.factories import is_single_arm
from adacompute.report.figures import (
    ACCURACY_LABEL,
    cost_label,
    draw_line,
    fit_accuracy_axis,
    scale_arm_costs,
)
from adacompute.report.lines import CURRENT_POINT, INK, NO_RIVALS, POLICY, choose_lines
from adacompute.report.operating_points import describe_equal_cost
from adacompute.report.plot_style import GREY, styled_axes
from adacompute.report.saving_chart import draw_bars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.report.plot_style import Axes

ROW_HEIGHT = 0.52
"""Inches of the figure of savings for each policy."""


def plot_calibration(result: dict[str, Any], axes: Axes | None = None) -> Axes:
    """Draw accuracy against cost of a calibrated policy, with its budget and what it gains there.

    The mixture is drawn at the budget, and what is run today where that is known.
    """
    curve = {"policy": result["policy"], "points": result["frontier"]}
    cost, accuracy, today = result["cost"], 100 * result["accuracy"], result["today"]
    with styled_axes(axes) as found:
        draw_line(found, curve, POLICY)
        ends = [100 * result["accuracy_low"], 100 * result["accuracy_high"]]
        found.plot([cost, cost], ends, color=CURRENT_POINT.colour, zorder=5)
        _dot(found, cost, accuracy, CURRENT_POINT.colour, "your budget")
        _dot(found, cost, accuracy - 100 * result["gain"], GREY, "best uniform mixture")
        if today:
            name = f"today: {today['samples']} samples"
            _dot(found, today["cost"], 100 * today["accuracy"], INK, name, marker="s")
        _finish(found, result["unit"])
    return found


def plot_scores(rows: Sequence[dict[str, Any]], unit: str, axes: Axes | None = None) -> Axes:
    """Draw accuracy against cost of every policy and of the best uniform mixture."""
    document = _as_document(rows, unit)
    with styled_axes(axes) as found:
        for curve, style in choose_lines(document, all_policies=True):
            draw_line(found, curve, style)
        _finish(found, unit)
    return found


def plot_savings(
    rows: Sequence[dict[str, Any]],
    today: Sequence[dict[str, Any]],
    unit: str,
    axes: Axes | None = None,
) -> Axes:
    """Draw the cost of each policy at the accuracy of today."""
    savings = [describe_equal_cost(row) for row in today]
    document = _as_document(rows, unit) | {"today": today[0], "savings": savings}
    with styled_axes(axes, height=1.0 + ROW_HEIGHT * len(savings)) as found:
        draw_bars(document, savings, found)
    return found


def _as_document(rows: Sequence[dict[str, Any]], unit: str) -> dict[str, Any]:
    """Return rows of scores as the part of the page's document that has the curves.

    Where the mixture was not scored, it is where the other policies were compared with it.
    """
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["policy"], []).append(row)
    policies = [name for name in curves if name not in NO_RIVALS and not is_single_arm(name)]
    policy = next(iter([*policies, *curves]))
    if "mixture" not in curves:
        curves["mixture"] = [_read_mixture(row) for row in curves[policy]]
    listed = [{"policy": name, "points": points} for name, points in curves.items()]
    return {"policy": policy, "unit": unit, "curves": listed}


def _read_mixture(row: dict[str, Any]) -> dict[str, Any]:
    """Return the mixture at the cost of a policy, without an interval."""
    accuracy = row["accuracy"] - row["difference"]
    ends = dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), accuracy)
    return {"cost": row["cost"], "difference": 0.0, **ends}


def _dot(
    axes: Axes, cost: float, accuracy: float, colour: str, label: str, marker: str = "o"
) -> None:
    axes.plot([cost], [accuracy], marker, color=colour, zorder=5, markersize=7, label=label)


def _finish(axes: Axes, unit: str) -> None:
    """Scale and label axes of accuracy against cost."""
    fit_accuracy_axis(axes)
    scale_arm_costs(axes, *axes.dataLim.intervalx)
    axes.set_xlabel(cost_label({"unit": unit}))
    axes.set_ylabel(ACCURACY_LABEL)
    axes.legend(loc="lower right", handlelength=2.6)
