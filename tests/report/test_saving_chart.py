"""Saving chart: every policy has a row, and intervals that go on are arrows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from adacompute.report.plot_style import panels
from adacompute.report.saving_chart import (
    MAX_ROWS,
    draw_bars,
    draw_savings,
    has_arrows,
    sort_savings,
)


def row(
    policy: str, cost: float | None, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    saving = None if cost is None else 1 - cost / 5
    return {"policy": policy, "cost": cost, "cost_low": low, "cost_high": high, "saving": saving}


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a document that the chart uses: 5 samples today."""
    points = [{"cost": cost, "accuracy": 0.5} for cost in (1.0, 4.0)]
    names = dict.fromkeys(["sequential", "mixture", *(one["policy"] for one in rows)])
    return {
        "policy": "sequential",
        "unit": "samples",
        "today": {"cost": 5.0, "accuracy": 0.725},
        "savings": list(rows),
        "curves": [{"policy": name, "points": points} for name in names],
    }


ROWS = (
    row("mixture", 4.4, 3.2, 13.0),
    row("retry", None, 6.0, None),
    row("early-stopping", 6.0, 5.5, 6.4),
    row("adaptive-consistency", 3.0, 2.7, 3.4),
    row("sequential", 2.16, 1.7, None),
)


def test_the_policy_and_the_mixture_come_first_and_unreached_costs_last() -> None:
    names = [one["policy"] for one in sort_savings(document(*ROWS))]
    assert names == ["sequential", "mixture", "adaptive-consistency", "early-stopping", "retry"]


def test_the_description_says_what_each_policy_costs_and_saves() -> None:
    text = draw_savings(document(*ROWS)).description.replace("\u00a0", " ")
    for part in ("72.5 %", "5 samples", "sequential: 2.16 samples (57 % less)"):
        assert part in text
    assert "early-stopping: 6 samples (20 % more)" in text
    assert "retry: not reached" in text


def test_only_intervals_that_go_on_are_arrows() -> None:
    content = document(*ROWS)
    with panels() as (_, axes):
        draw_bars(content, content["savings"], axes[0])
        right = axes[0].get_xlim()[1]
        arrows = [line for line in axes[0].lines if line.get_marker() == ">"]
        heights = [np.ravel(line.get_ydata())[0] for line in arrows]
        lines = [line for line in axes[0].lines if line.get_linewidth() == 1.4]
        today = [np.ravel(line.get_xdata())[0] for line in lines]
    assert 6.4 < right < 13.0
    assert heights == [4, 3, 0]  # the mixture, retry and the policy, from the top
    assert today == [5.0] * len(ROWS)
    assert has_arrows(content)
    assert not has_arrows(document(ROWS[2], ROWS[3]))


def test_without_any_cost_there_is_a_figure() -> None:
    content = document(row("sequential", None), row("mixture", None))
    assert draw_savings(content).description.count("not reached") == 2
    assert not has_arrows(content)


def test_many_policies_are_drawn_on_request() -> None:
    content = document(*(row(f"method-{i}", 1 + i / 10, 1, 3) for i in range(MAX_ROWS + 3)))
    few, every = (draw_savings(content, all_policies=known) for known in (False, True))
    assert few.wide.count("method-") == few.narrow.count("method-") == MAX_ROWS
    assert every.wide.count("method-") == MAX_ROWS + 3
