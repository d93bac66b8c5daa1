"""The plane of levels: labels do not overlap, and the cost axis fits the range of the costs."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from adacompute.report import plane
from adacompute.report.plot_style import panels, round_ticks


def document(arms: list[str], *, factor: float = 3.0) -> dict[str, Any]:
    """Return levels of arms, of which each costs more than the one before."""
    rows = [
        {
            "arm": arm,
            "samples": n,
            "cost": 100.0 * factor**i * n,
            "accuracy": 0.5 + 0.05 * i + 0.01 * n - 0.02 * (i % 2),
            "efficient": n == 1 and i % 2 == 0,
            "dominated_by": None,
        }
        for i, arm in enumerate(arms)
        for n in (1, 2, 4)
    ]
    points = [{"cost": 100.0 * 2**k, "accuracy": 0.5 + 0.02 * k} for k in range(12)]
    return {
        "unit": "tokens",
        "policy": "sequential",
        "arms": arms,
        "arm_levels": rows,
        "curves": [{"policy": "sequential", "points": points}],
    }


def placed_labels(content: dict[str, Any], width: float) -> dict[str, list[Any]]:
    """Return the boxes of the labels of a figure by their texts, and those of the frame."""
    with panels(width=width, height=5.4) as (figure, axes):
        figure.set_dpi(72)
        plane._points(content, axes[0])
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        plane._place_labels(content, axes[0], 9.0)
        boxes: dict[str, list[Any]] = {"frame": [axes[0].get_window_extent()]}
        for text in axes[0].texts:
            boxes.setdefault(text.get_text(), []).append(text.get_window_extent())
    return boxes


@pytest.mark.parametrize("n_arms", [2, 5, 8])
@pytest.mark.parametrize("width", [9.2, 3.9])
def test_labels_do_not_overlap_and_stay_inside(n_arms: int, width: float) -> None:
    arms = [f"model {i} high" for i in range(n_arms)]
    boxes = placed_labels(document(arms), width)
    (frame,) = boxes.pop("frame")
    assert boxes.keys() >= set(arms)  # every arm is named at its first level
    found = [box for own in boxes.values() for box in own]
    for a, b in combinations(found, 2):
        assert not a.overlaps(b)
    for box in found:
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1


def test_levels_are_labelled_by_arm_or_by_their_number_of_samples() -> None:
    rows = document(["low", "high"])["arm_levels"]
    labels = [(label.text, label.is_bold, label.is_required) for label in plane.list_labels(rows)]
    assert labels == [
        ("low", True, True),
        ("high", False, True),
        ("× 2", False, False),
        ("× 4", False, False),
        ("× 2", False, False),
        ("× 4", False, False),
    ]


@pytest.mark.parametrize(("factor", "scale"), [(1.5, "linear"), (4.0, "log")])
def test_costs_are_logarithmic_if_they_differ_more_than_tenfold(factor: float, scale: str) -> None:
    content = document(["low", "high"], factor=factor)
    content["arm_levels"] = [
        row for row in content["arm_levels"] if row["samples"] < 4 or factor > 2
    ]
    with panels() as (_, axes):
        plane._points(content, axes[0])
        assert axes[0].get_xscale() == scale
        low, high = axes[0].get_xlim()
    costs = [row["cost"] for row in content["arm_levels"]]
    assert low < min(costs) < max(costs) < high


def test_names_of_arms_are_plain_text() -> None:
    drawn = plane.draw_plane(document(["a $x_$ b", "<b>&"]))
    assert "a $x_$ b" in drawn.wide
    assert "&lt;b&gt;&amp;" in drawn.wide
    assert "2 arms" in drawn.description


def test_ticks_are_round_numbers() -> None:
    assert round_ticks(0.3, 4) == [0.5, 1.0, 2.0]
