"""Figures: the figures of the page, each in a wide and in a narrow layout.

They draw the document and compute nothing. Each figure has a text description for readers who
cannot see it; the numbers are in the table below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.report.lines import CURRENT_POINT, choose_lines
from adacompute.report.plot_style import (
    COLOURS,
    fix_layout,
    panels,
    round_ticks,
    spread,
    to_svg,
)
from adacompute.report.svg import inline_svg
from adacompute.report.wording import (
    format_number,
    format_percent,
    name_policy,
)

if TYPE_CHECKING:
    from adacompute.report.lines import LineStyle
    from adacompute.report.plot_style import Axes, Figure

ACCENT = COLOURS[0]
DASHES = ("--", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (2, 2)))
LABEL_DISTANCE = 8.0
"""Points of accuracy between two labels beside an axis from 0 to 100 %."""

LOG_RANGE = 10
"""Costs of several arms that differ by more than this factor get a logarithmic axis."""

DOT_RADIUS = 4.5
MAX_LEGEND_INSIDE = 7
"""Number of policies whose legend fits inside the figure."""

MIN_SPAN, MARGIN = 8.0, 0.6
"""Points of accuracy that an axis spans at least, and how far it extends beyond 0 and 100 %."""

ACCURACY_LABEL = "accuracy (%)"

Size = tuple[float, float]
Draw = Callable[["list[Axes]"], None]
Overlay = Callable[["Figure", "list[Axes]"], str]


@dataclass(frozen=True)
class Drawing:
    """A figure in two layouts, and its text description."""

    name: str
    wide: str
    narrow: str
    description: str


Marks = dict[str, dict[str, str]]
"""Attributes of the SVG elements that mark an operating point, by the names of the elements."""

Markers = dict[str, list[Marks]]
"""The marks of every operating point, by layout."""


def draw_svg(name: str, rows: int, columns: int, size: Size, draw: Draw, overlay: Overlay) -> str:
    """Draw a figure in one layout, which is fixed before the overlay is placed."""
    with panels(rows, columns, width=size[0], height=size[1]) as (figure, axes):
        figure.set_dpi(72)
        draw(axes)
        fix_layout(figure)
        extra = overlay(figure, axes)
        return inline_svg(to_svg(figure), name=name, extra=extra)


def no_overlay(_figure: Figure, _axes: list[Axes]) -> str:
    """Add nothing to a figure."""
    return ""


def _mark_points(
    document: dict[str, Any],
    markers: Markers,
    layout: str,
    place: Callable[[dict[str, Any], Figure, list[Axes]], Marks],
) -> Overlay:
    """Return an overlay that marks the selected operating point, and note the marks of all."""

    def overlay(figure: Figure, axes: list[Axes]) -> str:
        markers[layout] = [place(point, figure, axes) for point in document["operating_points"]]
        return _marker_svg(markers[layout][document["selected"]])

    return overlay


def draw_curves(document: dict[str, Any]) -> tuple[Drawing, Markers]:
    """Draw accuracy against cost, and return the markers of the operating points by layout."""
    markers: Markers = {}
    n_lines = len(choose_lines(document))

    def overlay(layout: str) -> Overlay:
        return _mark_points(document, markers, layout, mark_curve)

    def draw(axes: list[Axes]) -> None:
        _curves(document, axes[0])
        if n_lines <= MAX_LEGEND_INSIDE and not document["arms"]:
            axes[0].legend(loc="lower right", handlelength=2.6)
        else:
            axes[0].figure.legend(loc="outside lower left", handlelength=2.6, ncols=3)

    def draw_narrow(axes: list[Axes]) -> None:
        _curves(document, axes[0])
        axes[0].figure.legend(loc="outside lower left", handlelength=2.6)

    wide = draw_svg("curves-w", 1, 1, (6.6, 4.3), draw, overlay("wide"))
    narrow = draw_svg("curves-n", 1, 1, (3.9, 5.0), draw_narrow, overlay("narrow"))
    description = (
        f"Accuracy against mean cost of {n_lines} policies on {document['questions']:,} questions. "
        f"A dot marks the budget on the curve of {document['policy']}; what it gains there is "
        "written beside the slider. The numbers are in the table below."
    )
    return Drawing("curves", wide, narrow, description), markers


def _marker_svg(marks: Marks) -> str:
    """Return the elements that mark an operating point; the script of the page moves them."""
    elements = []
    for name, attributes in marks.items():
        part = name.partition("-")[0]
        tag = "circle" if part == "dot" else "line"
        fixed = f'class="op-{part}" data-marker="{name}"'
        radius = f' r="{DOT_RADIUS}"' if part == "dot" else ""
        moved = " ".join(f'{key}="{value}"' for key, value in attributes.items())
        elements.append(f"<{tag} {fixed}{radius} {moved}/>")
    return "".join(elements)


def draw_line(
    axes: Axes, curve: dict[str, Any], style: LineStyle, *, against: str = "cost"
) -> None:
    """Draw accuracy of one policy, with its intervals if its style has a band.

    It is drawn against the cost, or against another value of the points.
    """
    points = curve["points"]
    x = [point[against] for point in points]
    y, low, high = (
        [100 * point[key] for point in points]
        for key in ("accuracy", "accuracy_low", "accuracy_high")
    )
    if style.is_banded:
        axes.fill_between(x, low, high, color=style.colour, alpha=0.14, linewidth=0)
    axes.plot(
        x,
        y,
        color=style.colour,
        linewidth=style.width,
        linestyle=style.dashes,
        zorder=style.zorder,
        label=name_policy(curve["policy"]),
    )


def fit_accuracy_axis(axes: Axes) -> None:
    """Let an axis of accuracy in per cent span a few points at least, and end at 0 and 100."""
    bottom, top = axes.get_ylim()
    extra = max(0.0, MIN_SPAN - (top - bottom)) / 2
    axes.set_ylim(max(-MARGIN, bottom - extra), min(100 + MARGIN, top + extra))


def _curves(document: dict[str, Any], axes: Axes) -> None:
    """Draw the curves, those of the policy and of the mixture with intervals."""
    for curve, style in choose_lines(document):
        draw_line(axes, curve, style)
    axes.plot(
        [],
        [],
        "o",
        color=CURRENT_POINT.colour,
        markerfacecolor="none",
        markersize=6,
        markeredgewidth=2,
        label="your budget",
    )
    ends = ("accuracy_low", "accuracy_high")
    points = document["operating_points"]
    # The intervals of the operating points are drawn later, but must fit into the axes.
    axes.update_datalim([(point["cost"], 100 * point[end]) for point in points for end in ends])
    fit_accuracy_axis(axes)
    _scale_cost_axis(axes, document)
    axes.set_xlabel(cost_label(document))
    axes.set_ylabel(ACCURACY_LABEL)


def cost_label(document: dict[str, Any]) -> str:
    """Return the label of an axis of costs."""
    return f"mean {document['unit']} per question"


def _scale_cost_axis(axes: Axes, document: dict[str, Any]) -> None:
    """Use a logarithmic axis with a tick at the cost of each level."""
    costs = [point["cost"] for curve in document["curves"] for point in curve["points"]]
    lowest = min(costs)
    highest = max(*costs, *(point["cost"] for point in document["operating_points"]))
    if document["arms"]:
        scale_arm_costs(axes, lowest, highest)
        return
    axes.set_xscale("log", base=2)
    axes.set_xlim(lowest / 1.03, highest * 1.03)
    scale = lowest / document["levels"][0]
    ticks = [scale * level for level in document["levels"]]
    axes.set_xticks(ticks, [format_number(tick) for tick in ticks])
    axes.minorticks_off()


def scale_arm_costs(axes: Axes, lowest: float, highest: float) -> None:
    """Set the range of an axis of costs; it is logarithmic if they differ more than tenfold."""
    if highest > LOG_RANGE * lowest:
        axes.set_xscale("log")
        axes.set_xlim(lowest / 1.15, highest * 1.15)
        ticks = round_ticks(lowest / 1.15, highest * 1.15)
        axes.set_xticks(ticks, [format_number(tick) for tick in ticks])
        axes.minorticks_off()
        return
    margin = 0.05 * (highest - lowest) or 0.05 * highest
    axes.set_xlim(lowest - margin, highest + margin)


def locate(figure: Figure, axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return a point of axes in the units of the SVG: points from the upper left."""
    found = axes.transData.transform((x, y))
    return float(found[0]), float(figure.get_figheight()) * 72 - float(found[1])


def mark_curve(point: dict[str, Any], figure: Figure, axes: list[Axes]) -> Marks:
    """Return the marks of an operating point: a dot, its interval and a line to the axis."""
    (one,) = axes
    x, y = locate(figure, one, point["cost"], 100 * point["accuracy"])
    low, high = (
        locate(figure, one, point["cost"], 100 * point[end])[1]
        for end in ("accuracy_low", "accuracy_high")
    )
    axis = locate(figure, one, point["cost"], one.get_ylim()[0])[1]
    return {
        "drop": _format_line(x, y, axis),
        "bar": _format_line(x, low, high),
        "dot": {"cx": f"{x:.1f}", "cy": f"{y:.1f}"},
    }


def _format_line(x: float, first: float, last: float) -> dict[str, str]:
    """Return the attributes of a vertical line."""
    return {"x1": f"{x:.1f}", "x2": f"{x:.1f}", "y1": f"{first:.1f}", "y2": f"{last:.1f}"}


def draw_types(document: dict[str, Any]) -> Drawing:
    """Draw the utility curve of each question type, and its share of the budget."""
    types, names = document["question_types"], document["response_levels"]
    has_arms = bool(document["arms"])
    levels = list(range(len(names))) if has_arms else document["levels"]

    def draw(axes: list[Axes]) -> None:
        (left,) = axes
        heights = spread([100 * one["curve"][-1] for one in types], LABEL_DISTANCE)
        for i, one in enumerate(types):
            curve = [100 * value for value in one["curve"]]
            style = DASHES[i % len(DASHES)] if i else "-"
            left.plot(levels, curve, color=COLOURS[i], linestyle=style, linewidth=2)
            left.annotate(
                one["name"],
                (levels[-1], heights[i]),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=COLOURS[i],
                annotation_clip=False,
            )
        _scale_levels(left, levels, names, has_arms=has_arms)
        left.set_ylim(-3, 103)
        left.set_ylabel(ACCURACY_LABEL)

    wide = draw_svg("types-w", 1, 1, (6.6, 3.4), draw, no_overlay)
    narrow = draw_svg("types-n", 1, 1, (3.9, 3.0), draw, no_overlay)
    shares = "; ".join(
        f"{one['name']}, {format_percent(one['share'], 0)} of the questions: from "
        f"{format_percent(one['curve'][0], 0)} to {format_percent(one['curve'][-1], 0)}"
        for one in types
    )
    return Drawing(
        "types", wide, narrow, f"Accuracy by type from the first to the last level. {shares}."
    )


def _scale_levels(axes: Axes, levels: list[int], names: list[str], *, has_arms: bool) -> None:
    """Label the levels of an axis: numbers of samples, or efficient levels of several arms."""
    if has_arms:
        axes.set_xticks(levels)
        axes.set_xticklabels(names, rotation=30, ha="right", parse_math=False)
        axes.set_xlabel("efficient levels by rising cost")
        axes.set_title("Response to more expensive levels")
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, names)
    axes.minorticks_off()
    axes.set_xlabel("samples")
    axes.set_title("Response to more samples")


def draw_frontier(document: dict[str, Any]) -> tuple[Drawing, Markers]:
    """Draw cost and accuracy at each price, with intervals and the operating points by layout."""
    frontier = _trim_frontier(document["frontier"])
    markers: Markers = {}
    prices = [one["price"] for one in frontier]

    def mark(point: dict[str, Any], figure: Figure, axes: list[Axes]) -> Marks:
        price = min(max(point["price"], prices[-1]), prices[0])  # beyond these nothing changes
        heights = zip(axes, (point["cost"], 100 * point["accuracy"]), strict=True)
        places = [locate(figure, one, price, height) for one, height in heights]
        return {f"dot-{i}": {"cx": f"{x:.1f}", "cy": f"{y:.1f}"} for i, (x, y) in enumerate(places)}

    def draw(axes: list[Axes]) -> None:
        columns = (("cost", 1.0, cost_label(document)), ("accuracy", 100.0, ACCURACY_LABEL))
        for one, (key, scale, label) in zip(axes, columns, strict=True):
            low, high, value = (
                [scale * row[name] for row in frontier]
                for name in (f"{key}_low", f"{key}_high", key)
            )
            one.fill_between(prices, low, high, color=ACCENT, alpha=0.18, linewidth=0)
            one.plot(prices, value, color=ACCENT, linewidth=2)
            one.set_xscale("log")
            one.set_xlim(prices[0] * 1.2, prices[-1] / 1.2)
            one.minorticks_off()
            one.set_xlabel("price (decreasing)")
            one.set_ylabel(label)

    wide, narrow = (_mark_points(document, markers, name, mark) for name in ("wide", "narrow"))
    drawn = (
        draw_svg("frontier-w", 1, 2, (5.6, 3.3), draw, wide),
        draw_svg("frontier-n", 2, 1, (3.9, 2.7), draw, narrow),
    )
    description = (
        f"Cost and accuracy of {document['policy']} at {len(frontier)} decreasing prices, with "
        "95 % intervals. Dots mark the budget."
    )
    return Drawing("frontier", *drawn, description), markers


def _trim_frontier(frontier: list[dict[str, float]]) -> list[dict[str, float]]:
    """Drop prices so high or so low that the cost no longer changes."""
    costs = [point["cost"] for point in frontier]
    lowest, highest = costs[0] * (1 + 1e-6), max(costs) * (1 - 1e-3)
    first = max(0, sum(cost <= lowest for cost in costs) - 1)
    last = next(i for i, cost in enumerate(costs) if cost >= highest)
    return frontier[first : last + 1] if last > first else frontier
