"""Paper figures, oracle: plots of the oracle's choices.

Solid lines follow the paper's protocol; dashed lines use other samples. Nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.report.plot_style import COLOURS, GREY, panels
from reproduction.archetypes import NAMES, Archetypes, Scaling
from reproduction.oracle_data import (
    Bisection,
    CostByPrice,
    LevelScatter,
    PriceEffect,
)
from reproduction.panels import (
    add_legend_below,
    scale_colour,
    set_level_axis,
    set_price_axis,
    shorten,
    stack_bars,
)

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes, Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One marker for each colour."""

ARCHETYPE_COLOURS = dict(zip(NAMES, (COLOURS[2], COLOURS[0], COLOURS[4], COLOURS[1]), strict=True))
ARCHETYPE_MARKERS = dict(zip(NAMES, MARKERS, strict=False))
Z_95 = 1.96
OFFSET = 0.06
"""Distance between error bars at the same level, in powers of 2."""

MAX_STEPS = 30
MAX_LINES = 200


def draw_scaling(data: Scaling) -> Figure:
    """Draw one question per archetype, with its intervals and the paper's windows."""
    with panels(1, 1, width=6.4, height=4.0) as (figure, (axis,)):
        for i, name in enumerate(data.names):
            colour, marker = ARCHETYPE_COLOURS[name], ARCHETYPE_MARKERS[name]
            x = np.asarray(data.levels) * 2.0 ** (OFFSET * (i - 1.5))
            error = Z_95 * np.nan_to_num(data.standard_error[i])
            ends = np.minimum(error, data.exact[i]), np.minimum(error, 1 - data.exact[i])
            axis.errorbar(
                x, data.exact[i], ends, color=colour, marker=marker, label=name, elinewidth=1
            )
            axis.plot(x, data.windows[i], color=colour, linestyle=":", linewidth=1.3)
        set_level_axis(axis, data.levels)
        axis.set_ylim(-0.03, 1.03)
        axis.set_ylabel("probability that the vote is correct")
        axis.set_title("Four questions, 95 % intervals (dotted: the paper's windows)")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def draw_cost_by_price(data: CostByPrice) -> Figure:
    """Draw the oracle's mean cost against the price."""
    with panels(1, 1, width=6.4, height=3.8) as (figure, (axis,)):
        style: dict[str, Any] = {"where": "post", "linewidth": 1.6}
        axis.step(data.price, data.windows, color=COLOURS[0], label="windows (paper)", **style)
        axis.step(
            data.price, data.exact, color=COLOURS[1], label="all subsets", linestyle="--", **style
        )
        set_price_axis(axis, data.price)
        axis.set_ylabel("mean cost (samples per question)")
        axis.set_title("Cost of the static oracle at each price")
        axis.legend()
        return figure


def draw_level_scatter(data: LevelScatter) -> Figure:
    """Draw the oracle's levels against difficulty: every question, then fifths in both ways."""
    columns = len(data.budgets)
    with panels(3, columns, width=4.0, height=2.9) as (figure, axes):
        rng = np.random.default_rng(0)
        for i, budget in enumerate(data.budgets):
            _scatter_budget(axes[i], data, i, rng)
            axes[i].set_title(f"B = {budget:g}")
            if i == 0:
                axes[i].legend(title="mean of tenths", loc="upper right", fontsize=8)
            titles = ("Sorted by the same samples", "Sorted by the other half")
            for row, (title, groups) in enumerate(
                zip(titles, (data.same, data.other), strict=True), start=1
            ):
                bars = axes[row * columns + i]
                names = ("hardest", "2", "3", "4", "easiest")
                stack_bars(bars, names, groups.shares[i], groups.levels)
                bars.set_xlabel("fifths of the questions")
                bars.set_title(title)
                if i == columns - 1:
                    bars.legend(title="level", loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def _scatter_budget(axis: Axes, data: LevelScatter, i: int, rng: np.random.Generator) -> None:
    """Draw every question's level at one budget, and the means of tenths."""
    jitter = np.exp2(rng.uniform(-0.16, 0.16, len(data.single)))
    size = 5 + 60 * data.gain
    axis.scatter(data.single, data.chosen[i] * jitter, s=size, color=COLOURS[0], alpha=0.28, lw=0)
    line: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.8}
    same, other, levels = data.same, data.other, data.same.levels
    axis.plot(
        same.accuracy,
        same.tenth_cost[i],
        marker="o",
        markersize=3.5,
        label="same samples",
        **line,
    )
    axis.plot(other.accuracy, other.tenth_cost[i], linestyle="--", label="other half", **line)
    axis.set_yscale("log", base=2)
    axis.set_yticks(list(levels), [str(level) for level in levels])
    axis.set_ylim(0.8, levels[-1] * 1.35)
    axis.set_xlabel("accuracy of one sample")
    axis.set_ylabel("level")


def draw_archetypes(data: Archetypes) -> Figure:
    """Draw the archetypes: their curves, their shares by difficulty, and the oracle's levels."""
    with panels(1, 3, width=4.6, height=3.9) as (figure, (curves, shares, levels)):
        rng = np.random.default_rng(0)
        shown = rng.permutation(len(data.curves))[:MAX_LINES]
        for i in shown.tolist():
            colour = ARCHETYPE_COLOURS[data.names[int(data.cluster[i])]]
            curves.plot(data.levels, data.curves[i], color=colour, alpha=0.06, linewidth=0.8)
        for c, name in enumerate(data.names):
            style: dict[str, Any] = {
                "color": ARCHETYPE_COLOURS[name],
                "marker": ARCHETYPE_MARKERS[name],
            }
            curves.plot(data.levels, data.curve[c], label=f"{name} ({data.size[c]})", **style)
        for h, name in enumerate(data.half_names):
            colour = ARCHETYPE_COLOURS[name]
            curves.plot(data.half_levels, data.other_curve[h], color=colour, linestyle="--")
        set_level_axis(curves, data.levels)
        curves.set_ylim(-0.03, 1.03)
        curves.set_ylabel("accuracy of the vote")
        curves.set_title("Means of clusters (dashed: other half)")
        add_legend_below(curves, 2)
        left = np.zeros(len(data.bands))
        y = np.arange(len(data.bands))
        for c, name in enumerate(data.names):
            share = data.composition[:, c]
            shares.barh(y, share, left=left, color=ARCHETYPE_COLOURS[name], height=0.8)
            left += share
        shares.set_yticks(y, [shorten(band) for band in data.bands])
        shares.invert_yaxis()
        shares.set_xlim(0, 1)
        shares.set_xlabel("share of questions")
        shares.grid(visible=False)
        shares.set_title("Archetypes by difficulty, easiest first")
        stack_bars(levels, data.names, data.level_shares, data.levels)
        levels.set_title("Levels of the static oracle at B = 2")
        add_legend_below(levels, 5, title="level")
        return figure


def draw_bisection(data: Bisection) -> Figure:
    """Draw how the bisection converges: prices, costs, deviations, and the prices it tried."""
    with panels(2, 2, width=5.0, height=3.5) as (figure, (prices, costs, deviations, tried)):
        curve = data.cost_by_price
        tried.step(curve.price, curve.windows, where="post", color=GREY, lw=1.2)
        for i, (budget, trace) in enumerate(zip(data.budgets, data.traces, strict=True)):
            colour, steps = COLOURS[i], np.arange(1, len(trace.middle) + 1)[:MAX_STEPS]
            shown = slice(0, MAX_STEPS)
            name = f"B = {budget:g}"
            prices.plot(steps, trace.low[shown], color=colour, linestyle="--", lw=1.2)
            prices.plot(steps, trace.high[shown], color=colour, label=name)
            low, high = trace.cost_high[shown], trace.cost_low[shown]
            costs.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0, step="mid")
            costs.axhline(budget, color=colour, lw=1.2, label=name)
            deviation = np.maximum(np.abs(trace.cost_middle[shown] - budget), 1e-4)
            style: dict[str, Any] = {"color": colour, "label": name}
            deviations.plot(steps, deviation, marker=MARKERS[i], markersize=3, **style)
            tried.plot(trace.middle, trace.cost_middle, MARKERS[i], markersize=5, **style)
        prices.set_yscale("symlog", linthresh=1e-3)
        prices.set_ylabel("price λ")
        prices.set_title("Bracket of prices (dashed: lower end)")
        costs.set_ylabel("mean cost (samples)")
        costs.set_title("Costs at both ends of the bracket")
        deviations.set_yscale("log")
        deviations.axhline(0.05, color=GREY, linestyle=":", label="0.05")
        deviations.set_ylabel("|cost − B| (samples)")
        deviations.set_title("Deviation from the budget")
        for axis in (prices, costs, deviations):
            axis.set_xlabel("step")
        set_price_axis(tried, curve.price)
        tried.set_ylabel("mean cost (samples)")
        tried.set_title("Prices tried, on the curve of costs")
        for axis in (prices, costs, deviations, tried):
            axis.legend(fontsize=8)
        return figure


def draw_price_effect(data: PriceEffect) -> Figure:
    """Draw the effect of the price on each question, on all of them, and on one."""
    with panels(1, 3, width=4.6, height=3.7) as (figure, (each, whole, one)):
        levels = np.asarray(data.levels)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(data.choice))[:MAX_LINES]
        for i in order.tolist():
            jitter = float(np.exp2(rng.uniform(-0.12, 0.12)))
            colour = scale_colour(round(100 * float(data.single[i])), 101)
            level = levels[data.choice[i]] * jitter
            each.step(data.price, level, where="post", color=colour, lw=0.7)
        level = levels[data.choice[data.question]]
        each.step(data.price, level, where="post", color=COLOURS[1], lw=2.2)
        at = data.transitions
        each.plot(data.price[at], level[at], "v", color=COLOURS[1], markersize=9, mec="white")
        set_price_axis(each, data.price)
        each.set_yscale("log", base=2)
        each.set_yticks(list(data.levels), [str(level) for level in data.levels])
        each.set_ylabel("level")
        each.set_title("Each question (darker: easier)\nand one in red, its changes as triangles")
        labels = [str(level) for level in data.levels]
        colours = [scale_colour(k, len(labels)) for k in range(len(labels))]
        whole.stackplot(data.price, data.shares.T, labels=labels, colors=colours, step="post")
        set_price_axis(whole, data.price)
        whole.set_ylim(0, 1)
        whole.set_ylabel("share of questions")
        whole.set_title("All questions")
        add_legend_below(whole, 5, title="level")
        for i, price in enumerate(data.prices):
            line: dict[str, Any] = {"color": COLOURS[i], "label": f"λ = {price:.3g}"}
            one.plot(data.levels, data.net[i], marker=".", **line)
            best = int(data.net[i].argmax())
            one.plot(data.levels[best], data.net[i, best], "^", color=COLOURS[i], markersize=10)
        set_level_axis(one, data.levels)
        one.set_ylabel("utility − λ × cost")
        one.set_title("The red question (triangle: its level)")
        add_legend_below(one, 3)
        return figure
