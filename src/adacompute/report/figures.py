"""Figures: what the page draws, each for a wide screen and for a phone.

They draw the document and compute nothing. A figure says in words what it shows, for those who
cannot see it; the table behind it has the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.report.plot_style import COLOURS, QUIET, panels, to_svg
from adacompute.report.svg import inline_svg
from adacompute.report.wording import between, number, per_question, percent, points

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes, Figure

ACCENT = COLOURS[0]
OTHERS = COLOURS[1:]
DASHES = ("--", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (2, 2)))
DOT = 4.5
INSIDE = 7
"""Policies whose names fit into the figure."""

LEAST_SPAN, BEYOND = 8.0, 0.6
"""Points of accuracy that an axis spans at least, and reaches beyond none or all right at most."""

Shape = tuple[float, float]
Sample = Callable[["list[Axes]"], None]
Overlay = Callable[["Figure", "list[Axes]"], str]


@dataclass(frozen=True)
class Drawing:
    """A figure in two shapes, and what it shows in words."""

    name: str
    wide: str
    narrow: str
    label: str


@dataclass(frozen=True)
class Spot:
    """Where a stop lies in a drawing: the point, its interval's ends, the axis below it."""

    x: float
    y: float
    low: float
    high: float
    axis: float

    @property
    def attributes(self) -> dict[str, dict[str, str]]:
        """Attributes of the three elements that show it."""
        x, y, low, high, axis = (f"{value:.1f}" for value in vars(self).values())
        return {
            "drop": {"x1": x, "x2": x, "y1": y, "y2": axis},
            "bar": {"x1": x, "x2": x, "y1": low, "y2": high},
            "dot": {"cx": x, "cy": y},
        }


def _svg(name: str, rows: int, columns: int, size: Shape, draw: Sample, overlay: Overlay) -> str:
    """Draw a figure of one shape, its layout settled before anything is placed upon it."""
    with panels(rows, columns, width=size[0], height=size[1]) as (figure, axes):
        figure.set_dpi(72)
        draw(axes)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return inline_svg(to_svg(figure), name=name, extra=overlay(figure, axes))


def _nothing(_figure: Figure, _axes: list[Axes]) -> str:
    return ""


def draw_curves(document: dict[str, Any]) -> tuple[Drawing, dict[str, list[Spot]]]:
    """Accuracy against cost of every policy, and where each stop lies in both shapes."""
    spots: dict[str, list[Spot]] = {}

    def overlay(shape: str) -> Overlay:
        def place(figure: Figure, axes: list[Axes]) -> str:
            spots[shape] = _spots(document, figure, axes[0])
            parts = spots[shape][document["at"]].attributes
            radius = f' r="{DOT}"'
            return "".join(
                f'<{"circle" if part == "dot" else "line"} class="op-{part}" '
                f'data-part="{part}"{radius if part == "dot" else ""} '
                + " ".join(f'{key}="{value}"' for key, value in named.items())
                + "/>"
                for part, named in parts.items()
            )

        return place

    def draw(axes: list[Axes]) -> None:
        _curves(document, axes[0])
        if len(document["lines"]) <= INSIDE:
            axes[0].legend(loc="lower right", handlelength=2.6)
        else:
            axes[0].figure.legend(loc="outside lower left", handlelength=2.6, ncols=3)

    def draw_narrow(axes: list[Axes]) -> None:
        _curves(document, axes[0])
        axes[0].figure.legend(loc="outside lower left", handlelength=2.6)

    wide = _svg("curves-w", 1, 1, (6.6, 4.3), draw, overlay("wide"))
    narrow = _svg("curves-n", 1, 1, (3.9, 5.0), draw_narrow, overlay("narrow"))
    at = document["stops"][document["at"]]
    label = (
        f"Accuracy against mean cost of {len(document['lines'])} policies. At "
        f"{per_question(document['budget'], document['unit'])}, {document['policy']} is right on "
        f"{percent(at['accuracy'])} of {document['questions']:,} questions, "
        f"{points(at['gain'])} points, {between(at['gain_low'], at['gain_high'])}, against the "
        "best uniform mixture. The numbers are in the table below."
    )
    return Drawing("curves", wide, narrow, label), spots


def _curves(document: dict[str, Any], axes: Axes) -> None:
    """Draw the lines: ours in colour with its interval, the mixture quiet, others thin."""
    own = document["policy"]
    others = 0
    for line in document["lines"]:
        x = [point["cost"] for point in line["points"]]
        y, low, high = (
            [100 * point[key] for point in line["points"]]
            for key in ("accuracy", "accuracy_low", "accuracy_high")
        )
        name = line["policy"]
        if name == own:
            axes.fill_between(x, low, high, color=ACCENT, alpha=0.14, linewidth=0)
            axes.plot(x, y, color=ACCENT, linewidth=2.4, label=name, zorder=4)
        elif name == "mixture":
            axes.fill_between(x, low, high, color=QUIET, alpha=0.14, linewidth=0)
            label = "best uniform mixture"
            axes.plot(x, y, color=QUIET, linewidth=2, label=label, zorder=3)
        else:
            style = ":" if name == "oracle" else DASHES[others % len(DASHES)]
            colour = QUIET if name == "oracle" else OTHERS[others % len(OTHERS)]
            label = "oracle (knows each question)" if name == "oracle" else name
            axes.plot(x, y, color=colour, linewidth=1.3, linestyle=style, label=label)
            others += name != "oracle"
    ends = [
        (stop["cost"], 100 * stop[end])
        for stop in document["stops"]
        for end in ("accuracy_low", "accuracy_high")
    ]
    axes.update_datalim(ends)  # the operating point's interval is drawn later
    bottom, top = axes.get_ylim()
    room = max(0.0, LEAST_SPAN - (top - bottom)) / 2
    axes.set_ylim(max(-BEYOND, bottom - room), min(100 + BEYOND, top + room))
    _log_axis(axes, document)
    axes.set_xlabel(f"mean {document['unit']} a question")
    axes.set_ylabel("accuracy, per cent")


def _log_axis(axes: Axes, document: dict[str, Any]) -> None:
    """Let the cost double from tick to tick, from the cheapest level to the dearest."""
    costs = [point["cost"] for line in document["lines"] for point in line["points"]]
    least, most = min(costs), max(*costs, *(stop["cost"] for stop in document["stops"]))
    axes.set_xscale("log", base=2)
    axes.set_xlim(least / 1.03, most * 1.03)
    scale = least / document["levels"][0]
    ticks = [scale * level for level in document["levels"]]
    axes.set_xticks(ticks, [number(tick) for tick in ticks])
    axes.minorticks_off()


def _spots(document: dict[str, Any], figure: Figure, axes: Axes) -> list[Spot]:
    """Where the stops lie, in the units of the SVG: points from the upper left."""
    height = float(figure.get_figheight()) * 72
    bottom = float(axes.transAxes.transform((0, 0))[1])

    def place(x: float, y: float) -> tuple[float, float]:
        found = axes.transData.transform((x, 100 * y))
        return float(found[0]), height - float(found[1])

    spots = []
    for stop in document["stops"]:
        x, y = place(stop["cost"], stop["accuracy"])
        low, high = (place(stop["cost"], stop[end])[1] for end in ("accuracy_low", "accuracy_high"))
        spots.append(Spot(x, y, low, high, height - bottom))
    return spots


def draw_kinds(document: dict[str, Any]) -> Drawing:
    """Curves of the kinds of questions, and what each takes of the budget."""
    kinds = document["kinds"]

    def draw(axes: list[Axes]) -> None:
        left, right = axes
        for i, kind in enumerate(kinds):
            curve = [100 * value for value in kind["curve"]]
            style = DASHES[i % len(DASHES)] if i else "-"
            left.plot(document["levels"], curve, color=COLOURS[i], linestyle=style, linewidth=2)
            left.annotate(
                kind["name"],
                (document["levels"][-1], curve[-1]),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=COLOURS[i],
                annotation_clip=False,
            )
        left.set_xscale("log", base=2)
        left.set_xticks(document["levels"], [str(level) for level in document["levels"]])
        left.minorticks_off()
        left.set_ylim(-3, 103)
        left.set_xlabel("samples")
        left.set_ylabel("accuracy, per cent")
        left.set_title("What more samples do")
        _bars(right, kinds)

    wide = _svg("kinds-w", 1, 2, (5.6, 3.4), draw, _nothing)
    narrow = _svg("kinds-n", 2, 1, (3.9, 3.0), draw, _nothing)
    told = "; ".join(
        f"{kind['name']}: {percent(kind['share'], 0)} of the questions take "
        f"{percent(kind['budget_share'], 0)} of the budget"
        for kind in kinds
    )
    return Drawing("kinds", wide, narrow, f"Kinds of questions. {told}.")


def _bars(axes: Axes, kinds: list[dict[str, Any]]) -> None:
    """Share of the questions and of the budget, beside each other."""
    place = list(range(len(kinds)))[::-1]
    for shift, key, colour, label in (
        (0.2, "share", QUIET, "of the questions"),
        (-0.2, "budget_share", ACCENT, "of the budget"),
    ):
        shares = [100 * kind[key] for kind in kinds]
        axes.barh([y + shift for y in place], shares, 0.36, color=colour, label=label)
        for y, share in zip(place, shares, strict=True):
            axes.text(share + 1, y + shift, f"{share:.0f}", va="center", fontsize=8.5)
    axes.set_yticks(place, [kind["name"] for kind in kinds])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_axisbelow(True)
    axes.margins(x=0.12)
    axes.set_xlabel("per cent")
    axes.set_title("Where the budget goes")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)  # clear of every bar


def draw_frontier(document: dict[str, Any]) -> Drawing:
    """What each price costs and gets right, with intervals."""
    frontier = _turning(document["frontier"])
    at = document["stops"][document["at"]]
    prices = [point["price"] for point in frontier]
    here = min(max(at["price"], prices[-1]), prices[0])  # beyond them nothing changes

    def draw(axes: list[Axes]) -> None:
        cost = ("cost", 1.0, f"mean {document['unit']} a question")
        told = (cost, ("accuracy", 100.0, "accuracy, per cent"))
        for place, (key, scale, label) in zip(axes, told, strict=True):
            low, high, value = (
                [scale * point[name] for point in frontier]
                for name in (f"{key}_low", f"{key}_high", key)
            )
            place.fill_between(prices, low, high, color=ACCENT, alpha=0.18, linewidth=0)
            place.plot(prices, value, color=ACCENT, linewidth=2)
            place.plot([here], [scale * at[key]], "o", color="#000000", markersize=6)
            place.set_xscale("log")
            place.set_xlim(prices[0] * 1.2, prices[-1] / 1.2)
            place.minorticks_off()
            place.set_xlabel("price, falling")
            place.set_ylabel(label)

    wide = _svg("frontier-w", 1, 2, (5.6, 3.3), draw, _nothing)
    narrow = _svg("frontier-n", 2, 1, (3.9, 2.7), draw, _nothing)
    label = (
        f"Cost and accuracy of {document['policy']} along {len(frontier)} falling prices, with "
        f"95 % intervals. At a price of {number(at['price'])} it costs {number(at['cost'])} and "
        f"is right on {percent(at['accuracy'])} of the questions."
    )
    return Drawing("frontier", wide, narrow, label)


def _turning(frontier: list[dict[str, float]]) -> list[dict[str, float]]:
    """Leave out prices so high or so low that nothing changes any more."""
    costs = [point["cost"] for point in frontier]
    least, most = costs[0] * (1 + 1e-6), max(costs) * (1 - 1e-3)
    first = max(0, sum(cost <= least for cost in costs) - 1)
    last = next(i for i, cost in enumerate(costs) if cost >= most)
    return frontier[first : last + 1] if last > first else frontier


def draw_sensitivity(document: dict[str, Any]) -> Drawing:
    """Show the gain with the interval that fewer or more questions would give it."""
    rows = document["sensitivity"]

    def draw(axes: list[Axes]) -> None:
        (place,) = axes
        place.axhline(0, color=QUIET, linewidth=1)
        for row in rows:
            here = row["questions"] == document["groups"]
            known = row["questions"] <= document["groups"]
            ends = [100 * row["gain_low"], 100 * row["gain_high"]]
            x, colour = [row["questions"]] * 2, ACCENT if known else QUIET
            place.plot(x, ends, color=colour, linewidth=3 if here else 1.8)
            size = 7 if here else 5
            place.plot(x[:1], [100 * row["gain"]], "o", color=colour, markersize=size)
        place.set_xscale("log", base=2)
        numbers = [row["questions"] for row in rows]
        place.set_xticks(numbers, [f"{count:,}" for count in numbers])
        place.minorticks_off()
        place.margins(x=0.06)
        place.set_xlabel("different questions")
        place.set_ylabel("gain, points")

    wide = _svg("sensitivity-w", 1, 1, (7.8, 3.0), draw, _nothing)
    narrow = _svg("sensitivity-n", 1, 1, (3.9, 3.0), draw, _nothing)
    told = "; ".join(
        f"{row['questions']:,}: {between(row['gain_low'], row['gain_high'])}" for row in rows
    )
    return Drawing(
        "sensitivity",
        wide,
        narrow,
        f"Interval of the gain in points by the number of questions. {told}.",
    )
