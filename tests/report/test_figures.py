"""Figures: everything stays inside the axes, also for documents without variation."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("matplotlib")

from adacompute.report import figures
from adacompute.report.plot_style import panels


def point(cost: float, accuracy: float, half: float) -> dict[str, float]:
    return {
        "cost": cost,
        "accuracy": accuracy,
        "accuracy_low": accuracy - half,
        "accuracy_high": accuracy + half,
    }


def document(accuracy: float = 0.5, *, half: float = 0.3, budget: float = 2.0) -> dict[str, Any]:
    """Two policies on few questions; the operating point's interval is wider than the bands."""
    narrow = [point(cost, accuracy, half / 2) for cost in (1.0, 4.0)]
    points = [
        {"budget": at, "price": 1e-9, **point(min(at, 3.5), accuracy, half)} for at in (1, budget)
    ]
    return {
        "policy": "sequential",
        "unit": "samples",
        "levels": [1, 2, 4],
        "arms": [],
        "selected": 1,
        "operating_points": points,
        "curves": [{"policy": name, "points": narrow} for name in ("mixture", "sequential")],
        "frontier": [
            {
                "price": price,
                **dict.fromkeys(("cost", "cost_low", "cost_high"), cost),
                **dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high"), accuracy),
            }
            for price, cost in ((1.0, 1.0), (0.5, 1.0), (0.1, 2.0), (0.01, 3.5), (1e-9, 3.5))
        ],
    }


@pytest.mark.parametrize("budget", [2.0, 100.0])
def test_every_operating_point_is_inside_the_figure_with_its_interval(budget: float) -> None:
    content = document(budget=budget)
    with panels() as (figure, axes):
        figure.set_dpi(72)
        figures._curves(content, axes[0])
        figure.draw_without_rendering()
        points = content["operating_points"]
        markers = [figures.mark_curve(one, figure, axes) for one in points]
        box, height = axes[0].get_window_extent(), figure.get_figheight() * 72
        assert axes[0].get_xlim()[1] < 5  # costs that no policy reaches are not drawn
    for marker in markers:
        assert box.x0 <= float(marker["dot"]["cx"]) <= box.x1
        heights = (marker["dot"]["cy"], marker["bar"]["y1"], marker["bar"]["y2"])
        assert all(box.y0 <= height - float(y) <= box.y1 for y in heights)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_accuracy_axis_stays_close_to_0_and_100_percent(accuracy: float) -> None:
    with panels() as (_, axes):
        figures._curves(document(accuracy, half=0.0), axes[0])
        low, high = axes[0].get_ylim()
    assert -1 < low < 100 * accuracy < high < 101
    assert high - low > 4


def test_frontier_is_trimmed_and_its_dots_are_inside_at_every_budget() -> None:
    content = figures._trim_frontier(document()["frontier"])
    assert [round(point["price"], 3) for point in content] == [0.5, 0.1, 0.01]
    drawing, markers = figures.draw_frontier(document())
    drawn = ET.fromstring(drawing.wide)  # noqa: S314 - made by matplotlib
    boxes = [box for clip in drawn.iter("clipPath") for box in clip.iter("rect")]
    assert len(markers["wide"]) == len(markers["narrow"]) == 2
    for marks in markers["wide"]:
        for dot, box in zip(marks.values(), boxes, strict=True):
            x, left, width = (
                float(v or "nan") for v in (dot["cx"], box.get("x"), box.get("width"))
            )
            assert left <= x <= left + width
    shown = [one.get("cx") for one in drawn.iter("circle")]
    assert shown == [dot["cx"] for dot in markers["wide"][1].values()]
