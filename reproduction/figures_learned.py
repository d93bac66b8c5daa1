"""Paper figures, learned: plots of learned policies.

Left panels and solid lines follow the paper's protocol; right panels and dashed lines use held-out
questions. Nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.report.plot_style import COLOURS, GREY, panels
from reproduction.ablations import PAPER_SETS, Efficiency, Granularity
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, Ablation
from reproduction.comparison import BudgetCurve, Frontiers, HeatMap
from reproduction.feature_importance import FeatureImportance
from reproduction.figures_oracle import MARKERS
from reproduction.heuristic import HEURISTIC
from reproduction.panels import (
    add_legend_below,
    draw_matrix,
    shorten,
)

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray
    from adacompute.report.plot_style import Axes, Figure

STYLES = {
    "fixed": (GREY, "-", MARKERS[0]),
    "mixture": (GREY, "-", MARKERS[0]),
    "random": (COLOURS[1], ":", MARKERS[1]),
    HEURISTIC: (COLOURS[4], "-.", MARKERS[2]),
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
            _plot_curves(axis, curves)
            axis.set_ylim(*_accuracy_range(data.paper, data.held_out))
            add_legend_below(axis, 2)
        paper.set_title("The paper's protocol")
        held_out.set_title("Held-out questions, equal cost")
        return figure


def _plot_curves(axis: Axes, curves: dict[str, BudgetCurve]) -> None:
    for name, curve in curves.items():
        colour, dashes, marker = STYLES[name]
        order = np.argsort(curve.cost, kind="stable")
        style: dict[str, Any] = {"linestyle": dashes, "marker": marker, "markersize": 4}
        style["label"] = LABELS.get(name, name)
        axis.plot(curve.cost[order], curve.accuracy[order], color=colour, **style)
    max_cost = max(float(curve.cost.max()) for curve in curves.values())
    ticks = [n for n in (1, 2, 4, 8, 16) if n <= max_cost * 1.01]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.minorticks_off()
    axis.set_xlabel("mean cost (samples per question)")
    axis.set_ylabel("accuracy")


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
    """Draw five classifiers: accuracy, regret with its bounds, and the mistakes of trees."""
    with panels(2, 2, width=6.2, height=4.3) as (figure, (dots, regret, by_row, by_question)):
        names = list(dict.fromkeys(trial.classifier for trial in data.trials))
        _draw_accuracy(dots, data, names)
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


def _draw_accuracy(axis: Axes, data: Ablation, names: list[str]) -> None:
    """Draw the accuracy of each classifier by both kinds of split."""
    for i, name in enumerate(names):
        style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 6}
        axis.plot(i, data.mean(name, BY_ROW, "accuracy"), **style)
        axis.plot(i, data.mean(name, BY_QUESTION, "accuracy"), mfc="none", **style)
    axis.axhline(data.oracle_accuracy, color=GREY, linestyle="--", lw=1.4, label="static oracle")
    label = f"always level {data.levels[0]}"
    axis.axhline(data.lowest_accuracy, color=GREY, linestyle=":", lw=1.4, label=label)
    axis.set_xticks(range(len(names)), names)
    axis.grid(visible=False, axis="x")
    axis.set_ylabel("accuracy")
    axis.set_title("Accuracy (open: split by question)")
    add_legend_below(axis, 2)


def _draw_regret(axis: Axes, data: Ablation, names: list[str]) -> None:
    """Draw regret against the share of mistakes, with its valid bounds and the paper's line."""
    for i, name in enumerate(names):
        own = [trial for trial in data.trials if trial.classifier == name]
        error = [1 - trial.imitation for trial in own]
        style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "linestyle": ""}
        axis.plot(error, [t.regret for t in own], markersize=4.5, label=name, **style)
        axis.plot(
            error, [t.regret_bound for t in own], mfc="none", markersize=4, alpha=0.6, **style
        )
    limit = max((1 - trial.imitation for trial in data.trials), default=0.0) * 1.08 or 1.0
    largest = max((trial.regret_bound for trial in data.trials), default=0.0)
    line: dict[str, Any] = {"color": GREY, "lw": 1.3}
    ends = np.array([0, limit])
    axis.plot(ends, data.max_loss * ends, linestyle=":", label="largest M × mistakes", **line)
    label = "mean M × mistakes (paper)"
    axis.plot(ends, data.mean_loss * ends, linestyle="--", label=label, **line)
    axis.set_xlim(0, limit)
    axis.set_ylim(0, max(1.25 * largest, 1.1 * data.mean_loss * limit) or 1.0)
    axis.set_xlabel("share of mistakes (1 − imitation)")
    axis.set_ylabel("regret")
    axis.set_title("Regret (open: its bound E[M · 1{mistake}])")
    add_legend_below(axis, 4)


def draw_efficiency(data: Efficiency) -> Figure:
    """Draw accuracy against the share of training questions, by both protocols."""
    with panels(1, 2, width=5.2, height=4.0) as (figure, (paper, held_out)):
        plot_efficiency(paper, held_out, data)
        for axis in (paper, held_out):
            add_legend_below(axis, 3)
        paper.set_title("All questions (dashed: static oracle, dotted: Fixed-b)")
        held_out.set_title("The unseen fifth")
        return figure


def plot_efficiency(paper: Axes, held_out: Axes, data: Efficiency) -> None:
    """Plot accuracy on all questions, and the gain over Fixed-b on unseen ones, on two axes."""
    share = 100 * np.asarray(data.fractions)
    gain = 100 * (data.held_out - data.fixed_held_out[:, None, :])
    for axis, values in ((paper, data.paper), (held_out, gain)):
        for i, budget in enumerate(data.budgets):
            mean, deviation = values[i].mean(axis=1), values[i].std(axis=1)
            style: dict[str, Any] = {"marker": MARKERS[i], "label": f"router, B = {budget:g}"}
            axis.plot(share, mean, color=COLOURS[i], markersize=4, **style)
            ends = mean - deviation, mean + deviation
            axis.fill_between(share, *ends, color=COLOURS[i], alpha=0.12, lw=0)
        axis.set_xlabel("share of the training questions used (%)")
    for i in range(len(data.budgets)):
        paper.axhline(data.fixed[i], color=COLOURS[i], linestyle=":", lw=1.2)
        paper.axhline(data.oracle[i], color=COLOURS[i], linestyle="--", lw=1.2)
    held_out.axhline(0, color=GREY, lw=1.2)
    paper.set_ylabel("accuracy")
    held_out.set_ylabel("gain over Fixed-b (points)")


def draw_granularity(data: Granularity) -> Figure:
    """Draw the sets of levels: frontiers, the oracle's shares, and its accuracy at B = 2."""
    with panels(1, 3, width=4.9, height=4.0) as (figure, (curves, shares, accuracy)):
        for i, (name, one) in enumerate(data.level_sets.items()):
            colour, marker = COLOURS[i], MARKERS[i]
            order = np.argsort(one.router[:, 0], kind="stable")
            router = one.router[order]
            curves.plot(router[:, 0], router[:, 1], color=colour, lw=1.4, label=name)
            curves.plot(one.budgets, one.in_sample, color=colour, linestyle="--", lw=1.0)
            held_out = one.router_held_out
            curves.plot(held_out[:, 0], held_out[:, 1], marker, mfc="none", color=colour, ms=5)
            shares.plot(one.levels, one.shares, color=colour, marker=marker, lw=1.0, label=name)
        curves.set_xscale("log", base=2)
        shares.set_xscale("log", base=2)
        for axis in (curves, shares):
            axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            axis.minorticks_off()
            add_legend_below(axis, 4)
        curves.set_xlabel("mean cost (samples per question)")
        curves.set_ylabel("accuracy")
        title = "Router (open: held out), dashed: static oracle"
        curves.set_title(title, fontsize=10)
        shares.set_xlabel("level (samples that vote)")
        shares.set_ylabel("share of questions")
        shares.set_title("Levels of the static oracle at B = 2", fontsize=10)
        _draw_steps(accuracy, data)
        return figure


def _draw_steps(axis: Axes, data: Granularity) -> None:
    """Draw the oracle's accuracy at B = 2 against the number of levels, with each step's gain."""
    for i, (label, steps) in enumerate(data.steps.items()):
        x, y = np.array(list(steps.values()), dtype=np.float64).T.reshape(2, -1)
        axis.plot(x, y, color=COLOURS[i], marker=MARKERS[i], label=label)
        for k in range(len(x) - 1):
            middle = (x[k] + x[k + 1]) / 2, (y[k] + y[k + 1]) / 2
            axis.annotate(
                f"{100 * (y[k + 1] - y[k]):+.2f}",
                middle,
                (0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=COLOURS[i],
            )
    sets = {name: one for name, one in data.level_sets.items() if name in PAPER_SETS}
    axis.set_xticks(
        [len(one.levels) for one in sets.values()],
        [f"{len(one.levels)}\n{name}" for name, one in sets.items()],
        fontsize=8.5,
    )
    axis.margins(x=0.12, y=0.18)
    axis.set_xlabel("number of levels")
    axis.set_ylabel("accuracy of the static oracle")
    axis.set_title("Accuracy at B = 2 (gain of each step in points)", fontsize=10)
    add_legend_below(axis, 2)


def draw_importance(data: FeatureImportance) -> Figure:
    """Draw the importance of each feature, of the model and by shuffling, and its mean by level."""
    order = np.argsort(-data.gain, kind="stable")
    names = [data.names[f] for f in order]
    height = 0.27 * len(names) + 1.6
    with panels(1, 3, width=4.4, height=height) as (figure, (gains, losses, means)):
        y = np.arange(len(names))
        gains.barh(y, data.gain[order], height=0.7, color=COLOURS[2])
        gains.axvline(1 / max(1, len(names)), color=GREY, linestyle=":", lw=1.2)
        gains.set_yticks(y, names)
        gains.set_xlabel("normalised gain (dotted: all equal)")
        gains.set_title("Of the trees at B = 2 (paper)")
        values = (("training questions", data.training), ("held out", data.held_out))
        for i, (label, value) in enumerate(values):
            width = 100 * value[order]
            losses.barh(y + 0.4 * i - 0.2, width, height=0.38, color=COLOURS[i], label=label)
        losses.set_yticks(y, [""] * len(names))
        losses.set_xlabel("imitation lost (points)")
        losses.set_title("By shuffling the feature")
        losses.legend(loc="lower right")
        for axis in (gains, losses):
            axis.set_ylim(len(names) - 0.5, -0.5)
        _draw_level_means(means, data.level_means[order], data.levels)
        return figure


def _draw_level_means(axis: Axes, shown: FloatArray, levels: tuple[int, ...]) -> None:
    """Draw the standardised mean of each feature by level of the oracle."""
    image = axis.imshow(np.nan_to_num(shown), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
    axis.grid(visible=False)
    axis.set_yticks(range(len(shown)), [""] * len(shown))
    axis.set_xticks(range(len(levels)), [str(level) for level in levels])
    for f, k in np.argwhere(np.isnan(shown)).tolist():
        axis.text(k, f, "–", ha="center", va="center", color="#777777")
    axis.set_xlabel("level of the oracle (–: no question has it)")
    axis.set_title("Mean by level, standardised")
    axis.figure.colorbar(image, ax=axis, shrink=0.8, label="standard deviations")
