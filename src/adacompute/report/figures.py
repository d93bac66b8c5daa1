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
    GREY,
    fix_layout,
    panels,
    round_ticks,
    spread,
    to_svg,
)
from adacompute.report.svg import inline_svg
from adacompute.report.wording import (
    format_budget,
    format_gain,
    format_interval,
    format_number,
    format_percent,
    name_policy,
)

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class Marker:
    """The position of an operating point in a drawing: the point, its interval and the axis."""

    x: float
    y: float
    low: float
    high: float
    axis: float

    @property
    def attributes(self) -> dict[str, dict[str, str]]:
        """SVG attributes of the three elements that show it."""
        x, y, low, high, axis = (f"{value:.1f}" for value in vars(self).values())
        return {
            "drop": {"x1": x, "x2": x, "y1": y, "y2": axis},
            "bar": {"x1": x, "x2": x, "y1": low, "y2": high},
            "dot": {"cx": x, "cy": y},
        }


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


def draw_curves(
    document: dict[str, Any], *, all_policies: bool = False
) -> tuple[Drawing, dict[str, list[Marker]]]:
    """Draw accuracy against cost, and return the markers of the operating points by layout."""
    markers: dict[str, list[Marker]] = {}
    n_lines = len(choose_lines(document, all_policies=all_policies))

    def overlay(layout: str) -> Overlay:
        def place(figure: Figure, axes: list[Axes]) -> str:
            markers[layout] = _markers(document, figure, axes[0])
            return _marker_svg(markers[layout][document["selected"]])

        return place

    def draw(axes: list[Axes]) -> None:
        _curves(document, axes[0], all_policies=all_policies)
        if n_lines <= MAX_LEGEND_INSIDE and not document["arms"]:
            axes[0].legend(loc="lower right", handlelength=2.6)
        else:
            axes[0].figure.legend(loc="outside lower left", handlelength=2.6, ncols=3)

    def draw_narrow(axes: list[Axes]) -> None:
        _curves(document, axes[0], all_policies=all_policies)
        axes[0].figure.legend(loc="outside lower left", handlelength=2.6)

    wide = draw_svg("curves-w", 1, 1, (6.6, 4.3), draw, overlay("wide"))
    narrow = draw_svg("curves-n", 1, 1, (3.9, 5.0), draw_narrow, overlay("narrow"))
    point = document["operating_points"][document["selected"]]
    description = (
        f"Accuracy against mean cost of {n_lines} policies. At "
        f"{format_budget(document['budget'], document['unit'])}, {document['policy']} is correct "
        f"on {format_percent(point['accuracy'])} of {document['questions']:,} questions: "
        f"{format_gain(point)} compared with the best uniform mixture. The numbers are in the "
        "table below."
    )
    return Drawing("curves", wide, narrow, description), markers


def _marker_svg(marker: Marker) -> str:
    """Return the elements of a marker; the script of the page moves them."""
    elements = []
    for part, attributes in marker.attributes.items():
        tag = "circle" if part == "dot" else "line"
        fixed = f'class="op-{part}" data-part="{part}"'
        radius = f' r="{DOT_RADIUS}"' if part == "dot" else ""
        moved = " ".join(f'{key}="{value}"' for key, value in attributes.items())
        elements.append(f"<{tag} {fixed}{radius} {moved}/>")
    return "".join(elements)


def _curves(document: dict[str, Any], axes: Axes, *, all_policies: bool = False) -> None:
    """Draw the curves, those of the policy and of the mixture with intervals."""
    for curve, style in choose_lines(document, all_policies=all_policies):
        points = curve["points"]
        x = [point["cost"] for point in points]
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
    bottom, top = axes.get_ylim()
    extra = max(0.0, MIN_SPAN - (top - bottom)) / 2
    axes.set_ylim(max(-MARGIN, bottom - extra), min(100 + MARGIN, top + extra))
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


def _markers(document: dict[str, Any], figure: Figure, axes: Axes) -> list[Marker]:
    """Return the operating points in the units of the SVG: points from the upper left."""
    height = float(figure.get_figheight()) * 72
    bottom = float(axes.transAxes.transform((0, 0))[1])

    def place(x: float, y: float) -> tuple[float, float]:
        found = axes.transData.transform((x, 100 * y))
        return float(found[0]), height - float(found[1])

    markers = []
    for point in document["operating_points"]:
        x, y = place(point["cost"], point["accuracy"])
        low, high = (
            place(point["cost"], point[end])[1] for end in ("accuracy_low", "accuracy_high")
        )
        markers.append(Marker(x, y, low, high, height - bottom))
    return markers


def draw_types(document: dict[str, Any]) -> Drawing:
    """Draw the utility curve of each question type, and its share of the budget."""
    types, names = document["question_types"], document["response_levels"]
    has_arms = bool(document["arms"])
    levels = list(range(len(names))) if has_arms else document["levels"]

    def draw(axes: list[Axes]) -> None:
        left, right = axes
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
        _bars(right, types)

    wide = draw_svg("types-w", 1, 2, (5.6, 3.4), draw, no_overlay)
    narrow = draw_svg("types-n", 2, 1, (3.9, 3.0), draw, no_overlay)
    shares = "; ".join(
        f"{one['name']}: {format_percent(one['share'], 0)} of the questions take "
        f"{format_percent(one['budget_share'], 0)} of the budget"
        for one in types
    )
    return Drawing("types", wide, narrow, f"Types of questions. {shares}.")


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


def _bars(axes: Axes, types: list[dict[str, Any]]) -> None:
    """Draw the share of the questions and of the budget side by side."""
    positions = list(range(len(types)))[::-1]
    for shift, key, colour, label in (
        (0.2, "share", GREY, "of the questions"),
        (-0.2, "budget_share", ACCENT, "of the budget"),
    ):
        shares = [100 * one[key] for one in types]
        axes.barh([y + shift for y in positions], shares, 0.36, color=colour, label=label)
        for y, share in zip(positions, shares, strict=True):
            axes.text(share + 1, y + shift, f"{share:.0f}", va="center", fontsize=8.5)
    axes.set_yticks(positions, [one["name"] for one in types])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.margins(x=0.12)
    axes.set_xlabel("share (%)")
    axes.set_title("Where the budget goes")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)  # below the bars


def draw_frontier(document: dict[str, Any]) -> Drawing:
    """Draw cost and accuracy at each price, with intervals."""
    frontier = _trim_frontier(document["frontier"])
    point = document["operating_points"][document["selected"]]
    prices = [one["price"] for one in frontier]
    price = min(max(point["price"], prices[-1]), prices[0])  # beyond these nothing changes

    def draw(axes: list[Axes]) -> None:
        columns = (("cost", 1.0, cost_label(document)), ("accuracy", 100.0, ACCURACY_LABEL))
        for one, (key, scale, label) in zip(axes, columns, strict=True):
            low, high, value = (
                [scale * row[name] for row in frontier]
                for name in (f"{key}_low", f"{key}_high", key)
            )
            one.fill_between(prices, low, high, color=ACCENT, alpha=0.18, linewidth=0)
            one.plot(prices, value, color=ACCENT, linewidth=2)
            one.plot([price], [scale * point[key]], "o", color="#000000", markersize=6)
            one.set_xscale("log")
            one.set_xlim(prices[0] * 1.2, prices[-1] / 1.2)
            one.minorticks_off()
            one.set_xlabel("price (decreasing)")
            one.set_ylabel(label)

    wide = draw_svg("frontier-w", 1, 2, (5.6, 3.3), draw, no_overlay)
    narrow = draw_svg("frontier-n", 2, 1, (3.9, 2.7), draw, no_overlay)
    description = (
        f"Cost and accuracy of {document['policy']} at {len(frontier)} decreasing prices, with "
        f"95 % intervals. At a price of {format_number(point['price'])} it costs "
        f"{format_number(point['cost'])} and is correct on {format_percent(point['accuracy'])} of "
        "the questions."
    )
    return Drawing("frontier", wide, narrow, description)


def _trim_frontier(frontier: list[dict[str, float]]) -> list[dict[str, float]]:
    """Drop prices so high or so low that the cost no longer changes."""
    costs = [point["cost"] for point in frontier]
    lowest, highest = costs[0] * (1 + 1e-6), max(costs) * (1 - 1e-3)
    first = max(0, sum(cost <= lowest for cost in costs) - 1)
    last = next(i for i, cost in enumerate(costs) if cost >= highest)
    return frontier[first : last + 1] if last > first else frontier


def draw_sensitivity(document: dict[str, Any]) -> Drawing:
    """Draw the gain with the intervals that fewer or more questions would give it."""
    rows, count = document["sensitivity"], document["independent_questions"]

    def draw(axes: list[Axes]) -> None:
        (one,) = axes
        one.axhline(0, color=GREY, linewidth=1)
        for row in rows:
            is_real, is_fewer = row["questions"] == count, row["questions"] <= count
            ends = [100 * row["gain_low"], 100 * row["gain_high"]]
            x, colour = [row["questions"]] * 2, ACCENT if is_fewer else GREY
            one.plot(x, ends, color=colour, linewidth=3 if is_real else 1.8)
            size = 7 if is_real else 5
            one.plot(x[:1], [100 * row["gain"]], "o", color=colour, markersize=size)
        one.set_xscale("log", base=2)
        counts = [row["questions"] for row in rows]
        one.set_xticks(counts, [f"{count:,}" for count in counts])
        one.minorticks_off()
        one.margins(x=0.06)
        one.set_xlabel("independent questions")
        one.set_ylabel("gain (points)")

    wide = draw_svg("sensitivity-w", 1, 1, (7.8, 3.0), draw, no_overlay)
    narrow = draw_svg("sensitivity-n", 1, 1, (3.9, 3.0), draw, no_overlay)
    intervals = "; ".join(
        f"{row['questions']:,}: {format_interval(row['gain_low'], row['gain_high'])}"
        for row in rows
    )
    description = f"Interval of the gain in points by the number of questions. {intervals}."
    return Drawing("sensitivity", wide, narrow, description)
