"""Paper figures, oracle: drawings of what the oracle does, from the data that is beside them.

Solid lines are what the paper's protocol says, dashed ones what other samples say. Nothing is
computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.paper.archetypes import NAMES, Archetypes, Compositions
from adacompute.paper.comparison import Pipeline
from adacompute.paper.oracle_data import Bisection, Mechanism, Scaling, Scatter, Staircase
from adacompute.paper.panels import (
    legend_below,
    mark_levels,
    mark_prices,
    price_jitter,
    shorten,
    stack,
)
from adacompute.report.plot_style import COLOURS, MARKERS, QUIET, panels

if TYPE_CHECKING:
    from adacompute.report.plot_style import Figure

KIND_COLOURS = dict(zip(NAMES, (COLOURS[2], COLOURS[0], COLOURS[4], COLOURS[1]), strict=True))
KIND_MARKERS = dict(zip(NAMES, MARKERS, strict=False))
SURE = 1.96
DODGE = 0.06
"""How far bars of error stand apart, in doublings."""

STEPS_SHOWN = 30
LINES_SHOWN = 200


def draw_pipeline(data: Pipeline) -> Figure:
    """Draw the three stages with the numbers of this run."""
    solve = (
        f"{data['questions']:.0f} questions × {data['samples a question']:.0f} samples",
        f"→ utility of {data['levels']:.0f} levels",
        f"→ price {data['price at B = 2']:.4f} at B = 2",
        f"→ labels, {100 * data['labels at the lowest level']:.0f} % of them 1",
    )
    learn = (
        f"{data['features']:.0f} features of the text",
        "→ classifier of the labels",
        f"imitates {100 * data['imitation of training questions']:.0f} % by the paper's",
        f"protocol, {100 * data['imitation held out']:.0f} % held out",
    )
    deploy = (
        "new question → level → vote",
        "held out at B = 2:",
        f"{100 * data['accuracy held out']:.1f} % right",
        f"at {data['cost held out']:.2f} samples a question",
    )
    with panels(1, 1, width=9.4, height=2.3) as (figure, (axis,)):
        axis.set_axis_off()
        axis.set_xlim(0, 3)
        axis.set_ylim(0, 1)
        stages = {"Solve (offline)": solve, "Learn (offline)": learn, "Deploy (online)": deploy}
        for i, (title, lines) in enumerate(stages.items()):
            x, y = np.array([0.04, 0.86, 0.86, 0.04, 0.04]) + i, [0.03, 0.03, 0.97, 0.97, 0.03]
            axis.plot(x, y, color=COLOURS[i], linewidth=1.8, solid_joinstyle="round")
            axis.text(i + 0.45, 0.88, title, ha="center", va="top", fontsize=12, weight="bold")
            text = "\n".join(lines)
            axis.text(i + 0.45, 0.64, text, ha="center", va="top", fontsize=9.5, linespacing=1.5)
            if i > 0:
                arrow = {"arrowstyle": "-|>", "color": "#555555", "linewidth": 1.6}
                axis.annotate("", (i + 0.04, 0.5), (i - 0.14, 0.5), arrowprops=arrow)
        return figure


def draw_scaling(data: Scaling) -> Figure:
    """Draw one question of each archetype, with its interval and the paper's windows."""
    with panels(1, 1, width=6.4, height=4.0) as (figure, (axis,)):
        for i, name in enumerate(data.names):
            colour, marker = KIND_COLOURS[name], KIND_MARKERS[name]
            place = np.asarray(data.levels) * 2.0 ** (DODGE * (i - 1.5))
            error = SURE * np.nan_to_num(data.error[i])
            ends = np.minimum(error, data.exact[i]), np.minimum(error, 1 - data.exact[i])
            axis.errorbar(
                place, data.exact[i], ends, color=colour, marker=marker, label=name, elinewidth=1
            )
            axis.plot(place, data.windows[i], color=colour, linestyle=":", linewidth=1.3)
        mark_levels(axis, data.levels)
        axis.set_ylim(-0.03, 1.03)
        axis.set_ylabel("chance that the vote is right")
        axis.set_title("Four questions, 95 % intervals (dotted: the paper's windows)")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def draw_staircase(data: Staircase) -> Figure:
    """Draw the oracle's mean cost against the price."""
    with panels(1, 1, width=6.4, height=3.8) as (figure, (axis,)):
        style: dict[str, Any] = {"where": "post", "linewidth": 1.6}
        axis.step(data.price, data.windows, color=COLOURS[0], label="windows (paper)", **style)
        axis.step(
            data.price, data.exact, color=COLOURS[1], label="all subsets", linestyle="--", **style
        )
        mark_prices(axis, data.price)
        axis.set_ylabel("mean cost (samples a question)")
        axis.set_title("What the oracle spends at each price")
        axis.legend()
        return figure


def draw_scatter(data: Scatter) -> Figure:
    """Draw the oracle's levels over difficulty: every question, then fifths by both ways."""
    columns = len(data.budgets)
    with panels(3, columns, width=4.0, height=2.9) as (figure, axes):
        rng = np.random.default_rng(0)
        for i, budget in enumerate(data.budgets):
            axis = axes[i]
            jitter = np.exp2(rng.uniform(-0.16, 0.16, len(data.single)))
            size = 5 + 60 * data.gain
            axis.scatter(
                data.single, data.chosen[i] * jitter, s=size, color=COLOURS[0], alpha=0.28, lw=0
            )
            line: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.8}
            axis.plot(
                data.place, data.mean[i], marker="o", markersize=3.5, label="same samples", **line
            )
            axis.plot(
                data.fair_place, data.fair_mean[i], linestyle="--", label="other half", **line
            )
            axis.set_yscale("log", base=2)
            axis.set_yticks(list(data.levels), [str(level) for level in data.levels])
            axis.set_ylim(0.8, data.levels[-1] * 1.35)
            axis.set_xlabel("share of single samples that are right")
            axis.set_ylabel("level given")
            axis.set_title(f"B = {budget:g}")
            if i == 0:
                axis.legend(title="mean of tenths", loc="upper right", fontsize=8)
            kinds = ((data.levels, data.shares), (data.half_levels, data.fair_shares))
            for row, (levels, shares) in enumerate(kinds, start=1):
                low = axes[row * columns + i]
                stack(low, ("hardest", "2", "3", "4", "easiest"), shares[i], levels)
                low.set_xlabel("fifths of the questions")
                low.set_title(("Same samples", "Sorted by the other half")[row - 1])
                if i == columns - 1:
                    low.legend(title="level", loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def draw_archetypes(data: Archetypes) -> Figure:
    """Draw the four kinds: their curves, where they are found, and what the oracle gives them."""
    with panels(1, 3, width=4.6, height=3.9) as (figure, (curves, found, given)):
        rng = np.random.default_rng(0)
        some = rng.permutation(len(data.curves))[:LINES_SHOWN]
        for i in some.tolist():
            colour = KIND_COLOURS[data.names[int(data.cluster[i])]]
            curves.plot(data.levels, data.curves[i], color=colour, alpha=0.06, linewidth=0.8)
        for c, name in enumerate(data.names):
            about: dict[str, Any] = {"color": KIND_COLOURS[name], "marker": KIND_MARKERS[name]}
            curves.plot(data.levels, data.curve[c], label=f"{name} ({data.size[c]})", **about)
        for a, name in enumerate(data.again_names):
            curves.plot(data.half_levels, data.again[a], color=KIND_COLOURS[name], linestyle="--")
        mark_levels(curves, data.levels)
        curves.set_ylim(-0.03, 1.03)
        curves.set_ylabel("accuracy of the vote")
        curves.set_title("Means of clusters (dashed: other half)")
        legend_below(curves, 2)
        bottom = np.zeros(len(data.bands))
        place = np.arange(len(data.bands))
        for c, name in enumerate(data.names):
            share = data.composition[:, c]
            found.barh(place, share, left=bottom, color=KIND_COLOURS[name], height=0.8)
            bottom += share
        found.set_yticks(place, [shorten(band) for band in data.bands])
        found.invert_yaxis()
        found.set_xlim(0, 1)
        found.set_xlabel("share of questions")
        found.grid(visible=False)
        found.set_title("Kinds by difficulty, easiest first")
        stack(given, data.names, data.given, data.levels)
        given.set_title("What the oracle gives them at B = 2")
        legend_below(given, 5, title="level")
        return figure


def draw_compositions(data: Compositions) -> Figure:
    """Draw the share of each kind in each run."""
    height = max(2.6, 0.24 * len(data.runs) + 1.4)
    with panels(1, 1, width=8.2, height=height) as (figure, (axis,)):
        left = np.zeros(len(data.runs))
        place = np.arange(len(data.runs))
        for c, name in enumerate(data.names):
            axis.barh(place, data.shares[:, c], left=left, color=KIND_COLOURS[name], label=name)
            left += data.shares[:, c]
        axis.set_yticks(place, [shorten(run, 44) for run in data.runs])
        axis.set_ylim(len(data.runs) - 0.5, -0.5)
        axis.set_xlim(0, 1)
        axis.set_xlabel("share of questions")
        axis.grid(visible=False)
        axis.set_title("Kinds of question in each run, clustered together")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def draw_bisection(data: Bisection) -> Figure:
    """Draw how the bisection converges: prices, costs, what is left, and where it looked."""
    with panels(2, 2, width=5.0, height=3.5) as (figure, (prices, costs, left, visited)):
        visited.step(data.stairs.price, data.stairs.windows, where="post", color=QUIET, lw=1.2)
        for i, (budget, trace) in enumerate(zip(data.budgets, data.traces, strict=True)):
            colour, steps = COLOURS[i], np.arange(1, len(trace.middle) + 1)[:STEPS_SHOWN]
            shown = slice(0, STEPS_SHOWN)
            name = f"B = {budget:g}"
            prices.plot(steps, trace.low[shown], color=colour, linestyle="--", lw=1.2)
            prices.plot(steps, trace.high[shown], color=colour, label=name)
            low, high = trace.cost_high[shown], trace.cost_low[shown]
            costs.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0, step="mid")
            costs.axhline(budget, color=colour, lw=1.2, label=name)
            off = np.maximum(np.abs(trace.cost_middle[shown] - budget), 1e-4)
            left.plot(steps, off, color=colour, marker=MARKERS[i], markersize=3, label=name)
            visited.plot(
                trace.middle, trace.cost_middle, MARKERS[i], color=colour, markersize=5, label=name
            )
        prices.set_yscale("symlog", linthresh=1e-3)
        prices.set_ylabel("price λ")
        prices.set_title("Bracket of prices (dashed: lower end)")
        costs.set_ylabel("mean cost (samples)")
        costs.set_title("Costs at its ends")
        left.set_yscale("log")
        left.axhline(0.05, color=QUIET, linestyle=":", label="0.05")
        left.set_ylabel("|cost − B| (samples)")
        left.set_title("What is left: a step of the stairs")
        for axis in (prices, costs, left):
            axis.set_xlabel("step")
        mark_prices(visited, data.stairs.price)
        visited.set_ylabel("mean cost (samples)")
        visited.set_title("Prices visited, on the staircase")
        for axis in (prices, costs, left, visited):
            axis.legend(fontsize=8)
        return figure


def draw_mechanism(data: Mechanism) -> Figure:
    """Draw what a price does to each question, to all, and to one."""
    with panels(1, 3, width=4.6, height=3.7) as (figure, (each, whole, one)):
        every = np.asarray(data.levels)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(data.choice))[:LINES_SHOWN]
        for i in order.tolist():
            jitter = float(np.exp2(rng.uniform(-0.12, 0.12)))
            colour = price_jitter(round(100 * float(data.single[i])), 101)
            each.step(
                data.price, every[data.choice[i]] * jitter, where="post", color=colour, lw=0.7
            )
        each.step(
            data.price, every[data.choice[data.question]], where="post", color=COLOURS[1], lw=2.2
        )
        mark_prices(each, data.price)
        each.set_yscale("log", base=2)
        each.set_yticks(list(data.levels), [str(level) for level in data.levels])
        each.set_ylabel("level given")
        each.set_title("Each question (deep: right at once)")
        labels = [str(level) for level in data.levels]
        colours = [price_jitter(k, len(labels)) for k in range(len(labels))]
        whole.stackplot(data.price, data.shares.T, labels=labels, colors=colours, step="post")
        mark_prices(whole, data.price)
        whole.set_ylim(0, 1)
        whole.set_ylabel("share of questions")
        whole.set_title("All questions")
        legend_below(whole, 5, title="level")
        for i, price in enumerate(data.prices):
            tone = COLOURS[i]
            one.plot(data.levels, data.net[i], color=tone, marker=".", label=f"λ = {price:.3g}")
            best = int(data.net[i].argmax())
            one.plot(data.levels[best], data.net[i, best], "^", color=tone, markersize=10)
        mark_levels(one, data.levels)
        one.set_ylabel("utility − λ × cost")
        one.set_title("The red question (triangle: its choice)")
        legend_below(one, 3)
        return figure
