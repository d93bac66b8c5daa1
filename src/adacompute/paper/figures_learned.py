"""Paper figures, learned: drawings of policies that learn, from the data that is beside them.

Left or solid is the paper's protocol, right or dashed what held-out questions say. Nothing is
computed here.
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
from adacompute.paper.comparison import HeatMap, Line, Pareto
from adacompute.paper.feature_importance import Features
from adacompute.paper.panels import legend_below, shorten, tile
from adacompute.report.plot_style import COLOURS, MARKERS, QUIET, panels

if TYPE_CHECKING:
    from adacompute.report.plot_style import Axes, Figure

STYLES = {
    "fixed": (QUIET, "-", MARKERS[0]),
    "mixture": (QUIET, "-", MARKERS[0]),
    "random": (COLOURS[1], ":", MARKERS[1]),
    "longest-first": (COLOURS[4], "-.", MARKERS[2]),
    "router": (COLOURS[0], "-", MARKERS[3]),
    "adaptive-consistency": (COLOURS[3], "-", MARKERS[4]),
    "sequential": (COLOURS[1], "-", MARKERS[5]),
    "oracle": (COLOURS[2], "--", ""),
    "oracle-in-sample": (COLOURS[2], "--", ""),
}


def draw_pareto(data: Pareto) -> Figure:
    """Draw the frontiers by both protocols beside each other, on one scale."""
    with panels(1, 2, width=5.6, height=4.1) as (figure, (paper, fair)):
        for axis, lines in ((paper, data.paper), (fair, data.held_out)):
            for name, line in lines.items():
                colour, dashes, marker = STYLES[name]
                order = np.argsort(line.cost, kind="stable")
                about: dict[str, Any] = {
                    "linestyle": dashes,
                    "marker": marker,
                    "markersize": 4,
                    "label": name,
                }
                axis.plot(line.cost[order], line.accuracy[order], color=colour, **about)
            most = max(float(line.cost.max()) for line in lines.values())
            ticks = [n for n in (1, 2, 4, 8, 16) if n <= most * 1.01]
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [str(n) for n in ticks])
            axis.minorticks_off()
            axis.set_xlabel("realised mean cost (samples a question)")
            axis.set_ylabel("accuracy")
            legend_below(axis, 3)
        low, high = _range(data.paper, data.held_out)
        for axis in (paper, fair):
            axis.set_ylim(low, high)
        paper.set_title("The paper's protocol")
        fair.set_title("Held-out questions, equal cost")
        return figure


def _range(*groups: dict[str, Line]) -> tuple[float, float]:
    values = np.concatenate([line.accuracy for lines in groups for line in lines.values()])
    low, high = float(values.min()), float(values.max())
    room = 0.05 * (high - low) + 1e-3
    return low - room, high + room


def draw_heat_map(data: HeatMap) -> Figure:
    """Draw the labels by difficulty: the oracle's, the learned, and the learned held out."""
    ways = (
        ("Oracle", data.oracle),
        ("Learned, the paper's way", data.learned),
        ("Learned, held out", data.held_out),
    )
    columns = len(data.budgets)
    height = max(1.9, 0.26 * len(data.bands) + 1.0)
    with panels(len(ways), columns, width=3.9, height=height) as (figure, axes):
        for row, (name, shares) in enumerate(ways):
            for i, budget in enumerate(data.budgets):
                axis = axes[row * columns + i]
                tile(axis, shares[i])
                axis.set_xticks(range(len(data.levels)), [str(level) for level in data.levels])
                bands = [shorten(band) for band in data.bands]
                axis.set_yticks(range(len(bands)), bands if i == 0 else [""] * len(bands))
                axis.set_title(f"{name}, B = {budget:g}", fontsize=9.5)
                if row == len(ways) - 1:
                    axis.set_xlabel("level (samples that vote)")
        return figure


def draw_ablation(data: Ablation) -> Figure:
    """Draw five classifiers: accuracy, regret against its bounds, and where trees go wrong."""
    names = list(dict.fromkeys(trial.classifier for trial in data.trials))
    with panels(1, 4, width=4.1, height=3.9) as (figure, (bars, regret, leaky, fair)):
        place = np.arange(len(names))
        for i, (split, about) in enumerate(
            ((BY_ROW, "split by row (paper)"), (BY_QUESTION, "split by question"))
        ):
            value = [data.mean(name, split, "imitation") for name in names]
            bars.bar(place + 0.4 * i - 0.2, value, width=0.38, color=COLOURS[i], label=about)
        bars.axhline(data.commonest, color=QUIET, linestyle="--", label="always the commonest")
        bars.set_xticks(place, names)
        bars.set_ylim(0, 1)
        bars.set_ylabel("imitation of the oracle")
        bars.set_title("Imitation")
        legend_below(bars, 1)
        for i, name in enumerate(names):
            mine = [t for t in data.trials if t.classifier == name and t.split_by == BY_QUESTION]
            bound, lost = [t.bound for t in mine], [t.regret for t in mine]
            about_points: dict[str, Any] = {"color": COLOURS[i], "markersize": 4.5, "label": name}
            regret.plot(bound, lost, MARKERS[i], **about_points)
        drawn, said = [t.mean_bound for t in data.trials], [t.gap for t in data.trials]
        as_paper = "the paper's gap and bound"
        regret.plot(drawn, said, "x", color=QUIET, markersize=4.5, label=as_paper, zorder=1)
        most = max([t.bound for t in data.trials] + drawn + said, default=0.0) * 1.08 or 1.0
        regret.plot([0, most], [0, most], color=QUIET, linestyle="--", lw=1.2)
        regret.set_xlim(0, most)
        regret.set_ylim(0, most)
        regret.text(0.62 * most, 0.7 * most, "bound", color="#555555", rotation=38, fontsize=9)
        regret.set_xlabel("bound: E[M · 1{mistake}]")
        regret.set_ylabel("regret, split by question")
        regret.set_title("Regret, and the bound that is valid")
        legend_below(regret, 2)
        for axis, split in ((leaky, BY_ROW), (fair, BY_QUESTION)):
            tile(axis, data.confusion[split])
            labels = [str(level) for level in data.levels]
            axis.set_xticks(range(len(labels)), labels)
            axis.set_yticks(range(len(labels)), labels)
            axis.set_xlabel("level that the trees say")
            axis.set_ylabel("level of the oracle")
        leaky.set_title("Trees, split by row (paper)")
        fair.set_title("Trees, split by question")
        return figure


def draw_efficiency(data: Efficiency) -> Figure:
    """Draw accuracy against the share of training questions, by both protocols."""
    share = 100 * np.asarray(data.fractions)
    gain = 100 * (data.held_out - data.fixed_held_out[:, None, :])
    with panels(1, 2, width=5.2, height=4.0) as (figure, (paper, fair)):
        for axis, values in ((paper, data.paper), (fair, gain)):
            for i, budget in enumerate(data.budgets):
                mean, spread = values[i].mean(axis=1), values[i].std(axis=1)
                about: dict[str, Any] = {"marker": MARKERS[i], "label": f"router, B = {budget:g}"}
                axis.plot(share, mean, color=COLOURS[i], markersize=4, **about)
                ends = mean - spread, mean + spread
                axis.fill_between(share, *ends, color=COLOURS[i], alpha=0.12, lw=0)
            axis.set_xlabel("share of the training questions used (%)")
            legend_below(axis, 3)
        for i in range(len(data.budgets)):
            paper.axhline(data.fixed[i], color=COLOURS[i], linestyle=":", lw=1.2)
            paper.axhline(data.oracle[i], color=COLOURS[i], linestyle="--", lw=1.2)
        fair.axhline(0, color=QUIET, lw=1.2)
        paper.set_ylabel("accuracy")
        paper.set_title("All questions (dashed: oracle, dotted: Fixed-b)")
        fair.set_ylabel("gain over Fixed-b (points)")
        fair.set_title("The unseen fifth")
        return figure


def draw_granularity(data: Granularity) -> Figure:
    """Draw ladders: frontiers, labels at B = 2, and what more levels return."""
    with panels(1, 3, width=4.9, height=4.0) as (figure, (curves, labels, returns)):
        for i, (name, ladder) in enumerate(data.ladders.items()):
            colour = COLOURS[i]
            curves.plot(ladder.budgets, ladder.in_sample, color=colour, lw=1.2, label=name)
            fair = ladder.fair_budgets
            curves.plot(fair, ladder.cross_fitted_oracle, color=colour, linestyle="--", lw=1.2)
            about: dict[str, Any] = {"color": colour, "markersize": 5}
            curves.plot(ladder.learned[:, 0], ladder.learned[:, 1], MARKERS[i], **about)
            held = ladder.held_out
            curves.plot(held[:, 0], held[:, 1], MARKERS[i], mfc="none", **about)
            labels.plot(
                ladder.levels, ladder.shares, color=colour, marker=MARKERS[i], lw=1.0, label=name
            )
        curves.set_xscale("log", base=2)
        labels.set_xscale("log", base=2)
        for axis in (curves, labels):
            axis.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            axis.minorticks_off()
            legend_below(axis, 4)
        curves.set_xlabel("mean cost (samples a question)")
        curves.set_ylabel("accuracy")
        curves.set_title(
            "Oracle (dashed: cross-fitted), router\n(points; open: held out)", fontsize=10
        )
        labels.set_xlabel("level (samples that vote)")
        labels.set_ylabel("share of questions")
        labels.set_title("The oracle's labels at B = 2", fontsize=10)
        _returns(returns, data)
        return figure


def _returns(axis: Axes, data: Granularity) -> None:
    """Draw accuracy at B = 2 by ladder, in-sample and cross-fitted."""
    names = list(data.ladders)
    place = np.arange(len(names))
    kinds = (("in_sample", "in-sample (paper)"), ("cross_fitted", "cross-fitted"))
    for i, (column, about) in enumerate(kinds):
        values = [data.at_middle(name, column) for name in names]
        axis.plot(place, values, color=COLOURS[i], marker=MARKERS[i], label=about)
        for x, value in zip(place, values, strict=True):
            axis.annotate(
                f"{value:.3f}", (x, value), (0, 6), textcoords="offset points", ha="center", size=8
            )
    axis.set_xticks(place, [f"{n}\n{len(data.ladders[n].levels)} levels" for n in names])
    axis.margins(x=0.12, y=0.18)
    axis.set_ylabel("oracle's accuracy at B = 2")
    axis.set_title("What more levels return", fontsize=10)
    legend_below(axis, 2)


def draw_features(data: Features) -> Figure:
    """Draw what each feature counts for, trained on and held out, and the labels' signatures."""
    order = np.argsort(-data.importance, kind="stable")
    names = [data.names[f] for f in order]
    with panels(1, 2, width=5.6, height=0.27 * len(names) + 1.4) as (figure, (weight, sign)):
        place = np.arange(len(names))
        bars = (("trained on (paper)", data.importance), ("held out", data.held_out))
        for i, (about, value) in enumerate(bars):
            weight.barh(
                place + 0.4 * i - 0.2,
                100 * value[order],
                height=0.38,
                color=COLOURS[i],
                label=about,
            )
        weight.set_yticks(place, names)
        weight.set_ylim(len(names) - 0.5, -0.5)
        weight.set_xlabel("imitation lost when shuffled (points)")
        weight.set_title("What each feature counts for at B = 2")
        weight.legend(loc="lower right")
        shown = data.signature[order]
        image = sign.imshow(np.nan_to_num(shown), cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto")
        sign.grid(visible=False)
        sign.set_yticks(place, [""] * len(names))
        sign.set_xticks(range(len(data.levels)), [str(level) for level in data.levels])
        for f, k in np.argwhere(np.isnan(shown)).tolist():
            sign.text(k, f, "–", ha="center", va="center", color="#777777")
        sign.set_xlabel("level of the oracle (–: no question has it)")
        sign.set_title("Mean of each label, standardised")
        figure.colorbar(image, ax=sign, shrink=0.8, label="standard deviations")
        return figure
