"""Paper figures, learned: plots of learned policies.

Left panels and solid lines follow the paper's protocol; right panels and dashed lines use held-out
questions. Nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.paper.ablations import (
    BY_QUESTION,
    BY_ROW,
    Ablation,
    Efficiency,
    Granularity,
)
from adacompute.paper.comparison import BudgetCurve, Frontiers, HeatMap
from adacompute.paper.feature_importance import FeatureImportance
from adacompute.paper.panels import add_legend_below, draw_matrix, shorten
from adacompute.report.plot_style import COLOURS, GREY, MARKERS, panels

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes, Figure

STYLES = {
    "fixed": (GREY, "-", MARKERS[0]),
    "mixture": (GREY, "-", MARKERS[0]),
    "random": (COLOURS[1], ":", MARKERS[1]),
    "longest-first": (COLOURS[4], "-.", MARKERS[2]),
    "router": (COLOURS[0], "-", MARKERS[3]),
    "adaptive-consistency": (COLOURS[3], "-", MARKERS[4]),
    "sequential": (COLOURS[1], "-", MARKERS[5]),
    "oracle": (COLOURS[2], "--", ""),
    "oracle-in-sample": (COLOURS[2], "--", ""),
}
LABELS = {
    "oracle": "static oracle (cross-fitted)",
    "oracle-in-sample": "static oracle (in-sample)",
}
"""Labels of policies that are not shown by their own names."""


def draw_frontiers(data: Frontiers) -> Figure:
    """Draw the curves of both protocols side by side, on the same scale."""
    with panels(1, 2, width=5.6, height=4.1) as (figure, (paper, held_out)):
        for axis, curves in ((paper, data.paper), (held_out, data.held_out)):
            for name, curve in curves.items():
                colour, dashes, marker = STYLES[name]
                order = np.argsort(curve.cost, kind="stable")
                style: dict[str, Any] = {
                    "linestyle": dashes,
                    "marker": marker,
                    "markersize": 4,
                    "label": LABELS.get(name, name),
                }
                axis.plot(curve.cost[order], curve.accuracy[order], color=colour, **style)
            max_cost = max(float(curve.cost.max()) for curve in curves.values())
            ticks = [n for n in (1, 2, 4, 8, 16) if n <= max_cost * 1.01]
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [str(n) for n in ticks])
            axis.minorticks_off()
            axis.set_xlabel("mean cost (samples per question)")
            axis.set_ylabel("accuracy")
            add_legend_below(axis, 2)
        low, high = _accuracy_range(data.paper, data.held_out)
        for axis in (paper, held_out):
            axis.set_ylim(low, high)
        paper.set_title("The paper's protocol")
        held_out.set_title("Held-out questions, equal cost")
        return figure


def _accuracy_range(*groups: dict[str, BudgetCurve]) -> tuple[float, float]:
    values = np.concatenate([curve.accuracy for curves in groups for curve in curves.values()])
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) + 1e-3
    return low - margin, high + margin


def draw_heat_map(data: HeatMap) -> Figure:
    """Draw the levels by difficulty: of the oracle, and of the router by both protocols."""
    columns = len(data.budgets)
    height = max(1.9, 0.26 * len(data.bands) + 1.0)
    with panels(len(data.choosers), columns, width=3.9, height=height) as (figure, axes):
        for row, (name, shares) in enumerate(data.choosers):
            for i, budget in enumerate(data.budgets):
                axis = axes[row * columns + i]
                draw_matrix(axis, shares[i])
                axis.set_xticks(range(len(data.levels)), [str(level) for level in data.levels])
                bands = [shorten(band) for band in data.bands]
                axis.set_yticks(range(len(bands)), bands if i == 0 else [""] * len(bands))
                title = f"{name[0].upper()}{name[1:]}, B = {budget:g}"
                axis.set_title(title, fontsize=9.5)
                if row == len(data.choosers) - 1:
                    axis.set_xlabel("level (samples that vote)")
        return figure


def draw_ablation(data: Ablation) -> Figure:
    """Draw five classifiers: imitation, regret against its bounds, and the mistakes of trees."""
    with panels(1, 4, width=4.1, height=3.9) as (figure, (bars, regret, by_row, by_question)):
        names = list(dict.fromkeys(trial.classifier for trial in data.trials))
        _draw_imitation(bars, data, names)
        _draw_regret(regret, data, names)
        for axis, split in ((by_row, BY_ROW), (by_question, BY_QUESTION)):
            draw_matrix(axis, data.confusion[split])
            labels = [str(level) for level in data.levels]
            axis.set_xticks(range(len(labels)), labels)
            axis.set_yticks(range(len(labels)), labels)
            axis.set_xlabel("level of the trees")
            axis.set_ylabel("level of the oracle")
        by_row.set_title("Trees, split by row (paper)")
        by_question.set_title("Trees, split by question")
        return figure


def _draw_imitation(axis: Axes, data: Ablation, names: list[str]) -> None:
    """Draw the imitation of each classifier by both kinds of split."""
    x = np.arange(len(names))
    splits = ((BY_ROW, "split by row (paper)"), (BY_QUESTION, "split by question"))
    for i, (split, label) in enumerate(splits):
        height = [data.mean(name, split, "imitation") for name in names]
        axis.bar(x + 0.4 * i - 0.2, height, width=0.38, color=COLOURS[i], label=label)
    label = "always the most common level"
    axis.axhline(data.constant_imitation, color=GREY, linestyle="--", label=label)
    axis.set_xticks(x, names)
    axis.set_ylim(0, 1)
    axis.set_ylabel("imitation of the oracle")
    axis.set_title("Imitation")
    add_legend_below(axis, 1)


def _draw_regret(axis: Axes, data: Ablation, names: list[str]) -> None:
    """Draw regret against its valid bound, and the paper's gap against its mean bound."""
    for i, name in enumerate(names):
        own = [t for t in data.trials if t.classifier == name and t.split_by == BY_QUESTION]
        style: dict[str, Any] = {"color": COLOURS[i], "markersize": 4.5, "label": name}
        axis.plot([t.regret_bound for t in own], [t.regret for t in own], MARKERS[i], **style)
    bounds, gaps = [t.mean_bound for t in data.trials], [t.oracle_gap for t in data.trials]
    label = "the paper's gap and bound"
    axis.plot(bounds, gaps, "x", color=GREY, markersize=4.5, label=label, zorder=1)
    largest = max([t.regret_bound for t in data.trials] + bounds + gaps, default=0.0)
    limit = largest * 1.08 or 1.0
    axis.plot([0, limit], [0, limit], color=GREY, linestyle="--", lw=1.2)
    axis.set_xlim(0, limit)
    axis.set_ylim(0, limit)
    axis.text(0.62 * limit, 0.7 * limit, "bound", color="#555555", rotation=38, fontsize=9)
    axis.set_xlabel("bound: E[M · 1{mistake}]")
    axis.set_ylabel("regret, split by question")
    axis.set_title("Regret and its valid bound")
    add_legend_below(axis, 2)


def draw_efficiency(data: Efficiency) -> Figure:
    """Draw accuracy against the share of training questions, by both protocols."""
    share = 100 * np.asarray(data.fractions)
    gain = 100 * (data.held_out - data.fixed_held_out[:, None, :])
    with panels(1, 2, width=5.2, height=4.0) as (figure, (paper, held_out)):
        for axis, values in ((paper, data.paper), (held_out, gain)):
            for i, budget in enumerate(data.budgets):
                mean, deviation = values[i].mean(axis=1), values[i].std(axis=1)
                style: dict[str, Any] = {"marker": MARKERS[i], "label": f"router, B = {budget:g}"}
                axis.plot(share, mean, color=COLOURS[i], markersize=4, **style)
                ends = mean - deviation, mean + deviation
                axis.fill_between(share, *ends, color=COLOURS[i], alpha=0.12, lw=0)
            axis.set_xlabel("share of the training questions used (%)")
            add_legend_below(axis, 3)
        for i in range(len(data.budgets)):
            paper.axhline(data.fixed[i], color=COLOURS[i], linestyle=":", lw=1.2)
            paper.axhline(data.oracle[i], color=COLOURS[i], linestyle="--", lw=1.2)
        held_out.axhline(0, color=GREY, lw=1.2)
        paper.set_ylabel("accuracy")
        paper.set_title("All questions (dashed: static oracle, dotted: Fixed-b)")
        held_out.set_ylabel("gain over Fixed-b (points)")
        held_out.set_title("The unseen fifth")
        return figure


def draw_granularity(data: Granularity) -> Figure:
    """Draw the sets of levels: frontiers, the oracle's shares, and its accuracy at B = 2."""
    with panels(1, 3, width=4.9, height=4.0) as (figure, (curves, shares, accuracy)):
        for i, (name, one) in enumerate(data.level_sets.items()):
            colour, marker = COLOURS[i], MARKERS[i]
            curves.plot(one.budgets, one.in_sample, color=colour, lw=1.2, label=name)
            budgets = one.cross_fitted_budgets
            curves.plot(budgets, one.cross_fitted, color=colour, linestyle="--", lw=1.2)
            style: dict[str, Any] = {"color": colour, "markersize": 5}
            curves.plot(one.router[:, 0], one.router[:, 1], marker, **style)
            held_out = one.router_held_out
            curves.plot(held_out[:, 0], held_out[:, 1], marker, mfc="none", **style)
            shares.plot(one.levels, one.shares, color=colour, marker=marker, lw=1.0, label=name)
        curves.set_xscale("log", base=2)
        shares.set_xscale("log", base=2)
        for axis in (curves, shares):
            axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            axis.minorticks_off()
            add_legend_below(axis, 4)
        curves.set_xlabel("mean cost (samples per question)")
        curves.set_ylabel("accuracy")
        title = "Static oracle (dashed: cross-fitted)\nand router (points; open: held out)"
        curves.set_title(title, fontsize=10)
        shares.set_xlabel("level (samples that vote)")
        shares.set_ylabel("share of questions")
        shares.set_title("Levels of the static oracle at B = 2", fontsize=10)
        _draw_accuracy(accuracy, data)
        return figure


def _draw_accuracy(axis: Axes, data: Granularity) -> None:
    """Draw the oracle's accuracy at B = 2 by set of levels, in-sample and cross-fitted."""
    sets = data.level_sets
    x = np.arange(len(sets))
    values = {
        "in-sample (paper)": [one.in_sample_at_main for one in sets.values()],
        "cross-fitted": [one.cross_fitted_at_main for one in sets.values()],
    }
    for i, (label, accuracy) in enumerate(values.items()):
        axis.plot(x, accuracy, color=COLOURS[i], marker=MARKERS[i], label=label)
        for at, value in zip(x, accuracy, strict=True):
            axis.annotate(
                f"{value:.3f}", (at, value), (0, 6), textcoords="offset points", ha="center", size=8
            )
    axis.set_xticks(x, [f"{name}\n{len(one.levels)} levels" for name, one in sets.items()])
    axis.margins(x=0.12, y=0.18)
    axis.set_ylabel("accuracy of the static oracle")
    axis.set_title("Accuracy by number of levels at B = 2", fontsize=10)
    add_legend_below(axis, 2)


def draw_importance(data: FeatureImportance) -> Figure:
    """Draw the importance of each feature and its mean by level."""
    order = np.argsort(-data.training, kind="stable")
    names = [data.names[f] for f in order]
    with panels(1, 2, width=5.6, height=0.27 * len(names) + 1.4) as (figure, (bars, means)):
        y = np.arange(len(names))
        values = (("training questions (paper)", data.training), ("held out", data.held_out))
        for i, (label, value) in enumerate(values):
            width = 100 * value[order]
            bars.barh(y + 0.4 * i - 0.2, width, height=0.38, color=COLOURS[i], label=label)
        bars.set_yticks(y, names)
        bars.set_ylim(len(names) - 0.5, -0.5)
        bars.set_xlabel("imitation lost by permuting the feature (points)")
        bars.set_title("Importance at B = 2")
        bars.legend(loc="lower right")
        shown = data.level_means[order]
        image = means.imshow(np.nan_to_num(shown), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
        means.grid(visible=False)
        means.set_yticks(y, [""] * len(names))
        means.set_xticks(range(len(data.levels)), [str(level) for level in data.levels])
        for f, k in np.argwhere(np.isnan(shown)).tolist():
            means.text(k, f, "–", ha="center", va="center", color="#777777")
        means.set_xlabel("level of the oracle (–: no question has it)")
        means.set_title("Mean by level, standardised")
        figure.colorbar(image, ax=means, shrink=0.8, label="standard deviations")
        return figure
