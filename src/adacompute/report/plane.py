"""Plane: the cost and the accuracy of every level of every arm, as a figure with labels.

Labels are placed one after another, the most important first, each where it covers least. It draws
the document and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.report.figures import (
    ACCURACY_LABEL,
    Drawing,
    Overlay,
    cost_label,
    draw_svg,
    scale_arm_costs,
)
from adacompute.report.lines import INK, POLICY
from adacompute.report.plot_style import GREY
from adacompute.report.wording import format_number, format_percent, name_policy

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.report.plot_style import Axes, Figure

DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
DISTANCES = (5.0, 9.0, 14.0)
"""Distances in points at which the place of a label is tried."""

POINT_RADIUS = 3.5
ALIGNMENTS = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}
POINT_PENALTY = 10
"""Penalty of a label that covers a point; lines alone give less."""

N_ON_LINE = 40
"""Points of each segment of a line that a label should not cover."""


@dataclass(frozen=True)
class Label:
    """A text beside a point; one that is not required is left out where it does not fit."""

    text: str
    row: int
    is_bold: bool
    is_required: bool


def draw_plane(document: dict[str, Any]) -> Drawing:
    """Draw all levels of all arms, the efficient frontier and the curve of the policy."""

    def draw(axes: list[Axes]) -> None:
        _points(document, axes[0])
        axes[0].figure.legend(loc="outside lower left", handlelength=2.6, ncols=3)

    def draw_narrow(axes: list[Axes]) -> None:
        _points(document, axes[0])
        axes[0].figure.legend(loc="outside lower left", handlelength=2.6)

    def overlay(size: float) -> Overlay:
        def place(figure: Figure, axes: list[Axes]) -> str:
            del figure
            _place_labels(document, axes[0], size)
            return ""

        return place

    wide = draw_svg("plane-w", 1, 1, (9.2, 5.4), draw, overlay(9.0))
    narrow = draw_svg("plane-n", 1, 1, (3.9, 5.4), draw_narrow, overlay(8.0))
    frontier = "; ".join(
        f"{name_level(row)}: {format_percent(row['accuracy'])} at {format_number(row['cost'])}"
        for row in _efficient(document)
    )
    description = (
        f"Accuracy against mean cost of {len(document['arm_levels'])} levels of "
        f"{len(document['arms'])} arms. Efficient, by rising cost: {frontier}. The numbers are in "
        "the table below."
    )
    return Drawing("plane", wide, narrow, description)


def name_level(row: dict[str, Any]) -> str:
    """Return the name of a level: its arm, and how many samples if there are several.

    >>> name_level({"arm": "low", "samples": 1}), name_level({"arm": "low", "samples": 4})
    ('low', 'low × 4')
    """
    return row["arm"] if row["samples"] == 1 else f"{row['arm']} × {row['samples']}"


def _efficient(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [row for row in document["arm_levels"] if row["efficient"]]
    return sorted(rows, key=lambda row: float(row["cost"]))


def _policy_curve(document: dict[str, Any]) -> list[dict[str, float]]:
    """Return the points of the policy up to the cost of the most expensive level."""
    highest = max(row["cost"] for row in document["arm_levels"])
    (points,) = (
        curve["points"] for curve in document["curves"] if curve["policy"] == document["policy"]
    )
    return [point for point in points if point["cost"] <= highest * (1 + 1e-9)]


def _points(document: dict[str, Any], axes: Axes) -> None:
    """Draw the levels of each arm on a thin line, the frontier and the policy."""
    rows = document["arm_levels"]
    for i, arm in enumerate(document["arms"]):
        own = [row for row in rows if row["arm"] == arm]
        x, y = [row["cost"] for row in own], [100 * row["accuracy"] for row in own]
        label = "_hidden" if i else "levels of one arm"
        axes.plot(x, y, "-o", color=GREY, linewidth=0.8, markersize=4.5, label=label)
    frontier = _efficient(document)
    x, y = [row["cost"] for row in frontier], [100 * row["accuracy"] for row in frontier]
    label = "efficient frontier"
    axes.plot(x, y, "--o", color=INK, linewidth=1.3, markersize=7, zorder=4, label=label)
    points = _policy_curve(document)
    x, y = [one["cost"] for one in points], [100 * one["accuracy"] for one in points]
    label = f"{name_policy(document['policy'])}, held out"
    axes.plot(x, y, color=POLICY.colour, linewidth=POLICY.width, zorder=3, label=label)
    costs = [row["cost"] for row in rows]
    scale_arm_costs(axes, min(costs), max(costs))
    axes.margins(y=0.08)
    axes.set_xlabel(cost_label(document))
    axes.set_ylabel(ACCURACY_LABEL)


def list_labels(rows: list[dict[str, Any]]) -> list[Label]:
    """Return the labels of levels: efficient ones, then the name of each other arm, then the rest.

    A level that is not efficient is named by its number of samples if its arm is named elsewhere.
    """
    efficient = [Label(name_level(row), i, True, True) for i, row in enumerate(rows) if _is(row)]
    arms, others = [], []
    for i, row in enumerate(rows):
        if _is(row):
            continue
        is_first = not any(one["arm"] == row["arm"] for one in rows[:i])
        if is_first:
            arms.append(Label(name_level(row), i, False, True))
        else:
            others.append(Label(f"× {row['samples']}", i, False, False))
    return [*efficient, *arms, *others]


def _is(row: dict[str, Any]) -> bool:
    return bool(row["efficient"])


def _place_labels(document: dict[str, Any], axes: Axes, size: float) -> None:
    """Place each label where it covers nothing, or, if it is required, where it covers least."""
    rows = document["arm_levels"]
    points = _to_pixels(axes, [(row["cost"], 100 * row["accuracy"]) for row in rows])
    lines = np.concatenate([_on_line(axes, line) for line in _drawn_lines(document)])
    frame, placed = np.array(axes.get_window_extent().extents), np.empty((0, 4))
    for label in list_labels(rows):
        note = axes.annotate(
            label.text,
            (rows[label.row]["cost"], 100 * rows[label.row]["accuracy"]),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=size if label.is_required else size - 1.5,
            fontweight="bold" if label.is_bold else "normal",
            color=INK if label.is_required else GREY,
            annotation_clip=False,
            parse_math=False,
            zorder=6,
        )
        extent = note.get_window_extent()
        shape = np.array([extent.width, extent.height])
        found = [
            (_penalty(box, points, lines, placed, frame), distance, at, box)
            for distance in DISTANCES
            for at in DIRECTIONS
            for box in [_box(points[label.row], shape, at, distance)]
        ]
        penalty, distance, at, box = min(found, key=lambda one: one[:2])
        if penalty >= POINT_PENALTY and not label.is_required:
            note.remove()
            continue
        note.set(ha=ALIGNMENTS[0][at[0]], va=ALIGNMENTS[1][at[1]])
        note.xyann = (at[0] * distance, at[1] * distance)
        placed = np.vstack([placed, box])


def _drawn_lines(document: dict[str, Any]) -> list[list[tuple[float, float]]]:
    lines = [_efficient(document), _policy_curve(document)]
    lines += [
        [row for row in document["arm_levels"] if row["arm"] == arm] for arm in document["arms"]
    ]
    return [[(one["cost"], 100 * one["accuracy"]) for one in line] for line in lines]


def _to_pixels(axes: Axes, points: list[tuple[float, float]]) -> FloatArray:
    return np.asarray(axes.transData.transform(points), dtype=np.float64)


def _on_line(axes: Axes, line: list[tuple[float, float]]) -> FloatArray:
    """Return points on a line that are close together."""
    corners = _to_pixels(axes, line)
    steps = np.linspace(0, 1, N_ON_LINE)[:, None]
    parts = [a + steps * (b - a) for a, b in pairwise(corners)]
    return np.concatenate([corners, *parts])


def _box(point: FloatArray, shape: FloatArray, at: tuple[int, int], distance: float) -> FloatArray:
    """Return the corners of a label beside a point: left, bottom, right, top."""
    direction = np.array(at)
    low = point + direction * distance - shape * (1 - direction) / 2
    return np.concatenate([low, low + shape])


def _penalty(
    box: FloatArray, points: FloatArray, lines: FloatArray, placed: FloatArray, frame: FloatArray
) -> int:
    """Return how much a label covers: other labels count most, then points, then lines."""
    low, high = box[:2], box[2:]
    is_outside = bool((low < frame[:2]).any() or (high > frame[2:]).any())
    overlaps = ((placed[:, :2] < high) & (placed[:, 2:] > low)).all(axis=1)
    margin = POINT_RADIUS
    covered = ((points > low - margin) & (points < high + margin)).all(axis=1)
    crossed = ((lines > low) & (lines < high)).all(axis=1)
    n_crossed = min(int(crossed.sum()), POINT_PENALTY - 1)
    worse = 10 * int(overlaps.sum()) + 4 * is_outside + int(covered.sum())
    return POINT_PENALTY * worse + n_crossed
