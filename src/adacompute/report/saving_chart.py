"""Saving chart: what each policy costs at the accuracy of today, with its interval.

The policy of the page comes first, then the mixture, then the others from the cheapest. It draws
the document and computes nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from adacompute.report.figures import Drawing, cost_label, draw_svg, no_overlay
from adacompute.report.lines import INK, choose_lines
from adacompute.report.plot_style import GREY
from adacompute.report.wording import (
    clean_text,
    format_number,
    format_percent,
    name_amount,
    name_policy,
)

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes

MAX_ROWS = 8
"""Number of policies that are drawn unless all are asked for; the table has them all."""

MAX_LABEL = 34
"""Characters of a name that fit beside its cost on a phone."""

BAR, LABEL, LINE = 0.34, 0.4, 0.24
"""In rows: the height of a bar, of its label above it, and of the line of today on both sides."""

MARGIN = 1.4
"""How far the axis extends beyond the highest estimate."""


def draw_savings(document: dict[str, Any]) -> Drawing:
    """Draw the cost of policies at the accuracy of today, and the cost of today as a line."""
    rows = sort_savings(document)[:MAX_ROWS]

    def draw(axes: list[Axes]) -> None:
        draw_bars(document, rows, axes[0])

    height = 1.0 + 0.52 * len(rows)
    wide = draw_svg("savings-w", 1, 1, (6.6, height), draw, no_overlay)
    narrow = draw_svg("savings-n", 1, 1, (3.9, height), draw, no_overlay)
    today = document["today"]
    costs = "; ".join(_label(row, document["unit"]) for row in rows)
    description = (
        f"Mean cost at which each policy is as accurate as today, which is correct on "
        f"{format_percent(today['accuracy'])} of the questions at "
        f"{name_amount(today['cost'], document['unit'])} per question. {costs}. The numbers are in "
        "the table below."
    )
    return Drawing("savings", wide, narrow, description)


def sort_savings(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows in the order of the figure; policies that never reach today come last."""
    first = {document["policy"]: 0, "mixture": 1}

    def rank(row: dict[str, Any]) -> tuple[int, float]:
        cost = math.inf if row["cost"] is None else row["cost"]
        return first.get(row["policy"], 2), cost

    return sorted(document["savings"], key=rank)


def find_limit(document: dict[str, Any]) -> float:
    """Return the highest cost of the axis; intervals may go beyond it, estimates do not."""
    estimates = [row["cost"] for row in document["savings"] if row["cost"] is not None]
    return MARGIN * float(max(document["today"]["cost"], *estimates, 0.0))


def has_arrows(document: dict[str, Any]) -> bool:
    """Whether an interval goes beyond the axis, or has no upper end."""
    limit = find_limit(document)
    return any(_end(row, limit) == limit for row in document["savings"])


def _end(row: dict[str, Any], limit: float) -> float | None:
    """Return where the interval of a cost ends in the figure; None without an interval."""
    if row["cost_low"] is None or row["cost_low"] >= limit:
        return None
    return limit if row["cost_high"] is None else float(min(row["cost_high"], limit))


def draw_bars(document: dict[str, Any], rows: list[dict[str, Any]], axes: Axes) -> None:
    """Draw a bar and an interval for each policy; an interval that goes on is an arrow."""
    styles = {c["policy"]: style for c, style in choose_lines(document, all_policies=True)}
    today, limit = float(document["today"]["cost"]), find_limit(document)
    for y, row in zip(range(len(rows))[::-1], rows, strict=True):
        style, end = styles.get(row["policy"]), _end(row, limit)
        colour = style.colour if style else GREY
        if row["cost"] is not None:
            axes.barh([y], [row["cost"]], BAR, color=colour, alpha=0.22, linewidth=0)
            axes.plot([row["cost"]], [y], "o", color=colour, markersize=7)
        if end is not None:
            axes.plot([row["cost_low"], end], [y, y], color=colour, linewidth=2.4)
        if end == limit:
            axes.plot([limit], [y], ">", color=colour, markersize=7, clip_on=False)
        label = _label(row)
        axes.text(0, y + LABEL, label, va="center", fontsize=9.5, color=INK, parse_math=False)
        # Only beside the bars, because a line across labels makes them hard to read.
        axes.plot([today, today], [y - LINE, y + LINE], color=INK, linewidth=1.4, zorder=3)
    side = "right" if today > limit / 2 else "left"
    name = f"today: {name_amount(today, document['unit'])}"
    axes.text(today, len(rows) - 0.3, name, ha=side, color=INK, fontweight="bold", fontsize=9.5)
    axes.set_xlim(0, limit)
    axes.set_ylim(-0.4, len(rows) + 0.05)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(cost_label(document))


def _label(row: dict[str, Any], unit: str | None = None) -> str:
    """Return the name of a policy, its cost and what it saves."""
    name = clean_text(name_policy(row["policy"]), MAX_LABEL)
    if row["cost"] is None:
        return f"{name}: not reached"
    change = f"{format_percent(abs(row['saving']), 0)} {'less' if row['saving'] >= 0 else 'more'}"
    cost = name_amount(row["cost"], unit) if unit else format_number(row["cost"])
    return f"{name}: {cost} ({change})"
