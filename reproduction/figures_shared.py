"""Paper figures, shared: plots of several runs together.

One curve, one panel or one group of marks per run, as in the paper. Nothing is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.report.plot_style import COLOURS, panels
from reproduction.figures_learned import plot_efficiency, plot_frontiers
from reproduction.figures_oracle import ARCHETYPE_COLOURS, ARCHETYPE_MARKERS
from reproduction.panels import (
    add_legend_below,
    drop_common_start,
    set_level_axis,
    set_price_axis,
    shorten,
)

if TYPE_CHECKING:
    from adacompute.report.plot_style import Figure
    from reproduction.ablations import Efficiency
    from reproduction.archetypes import Compositions
    from reproduction.comparison import Frontiers
    from reproduction.oracle_data import CostByPrice
    from reproduction.shared_exhibits import ByRun

MAX_NAME = 44


def draw_costs(data: ByRun[CostByPrice]) -> Figure:
    """Draw the oracle's mean cost against the price, one curve per run."""
    with panels(1, 1, width=6.4, height=4.2) as (figure, (axis,)):
        names = drop_common_start(list(data.by_run))
        for i, (name, cost) in enumerate(zip(names, data.by_run.values(), strict=True)):
            colour = COLOURS[i % len(COLOURS)]
            axis.step(cost.price, cost.windows, color=colour, label=name, where="post", lw=1.6)
        longest = max((cost.price for cost in data.by_run.values()), key=lambda price: price[-1])
        set_price_axis(axis, longest)
        axis.set_ylabel("mean cost (samples per question)")
        axis.set_title("Cost of the static oracle at each price")
        add_legend_below(axis, 2)
        return figure


def draw_frontiers_by_run(data: ByRun[Frontiers]) -> Figure:
    """Draw the frontiers of both protocols, one row of panels per run."""
    with panels(len(data.by_run), 2, width=5.6, height=3.4) as (figure, axes):
        for i, (name, frontiers) in enumerate(data.by_run.items()):
            paper, held_out = axes[2 * i], axes[2 * i + 1]
            plot_frontiers(paper, held_out, frontiers)
            paper.set_title(f"{shorten(name, MAX_NAME)}\nThe paper's protocol")
            held_out.set_title("Held-out questions, equal cost")
        for axis in axes[-2:]:
            add_legend_below(axis, 2)
        return figure


def draw_efficiency_by_run(data: ByRun[Efficiency]) -> Figure:
    """Draw accuracy against the share of training questions, one row of panels per run."""
    with panels(len(data.by_run), 2, width=5.2, height=3.3) as (figure, axes):
        for i, (name, efficiency) in enumerate(data.by_run.items()):
            paper, held_out = axes[2 * i], axes[2 * i + 1]
            plot_efficiency(paper, held_out, efficiency)
            paper.set_title(f"{shorten(name, MAX_NAME)}\nDashed: static oracle, dotted: Fixed-b")
            held_out.set_title("The unseen fifth")
        for axis in axes[-2:]:
            add_legend_below(axis, 3)
        return figure


def draw_compositions(data: Compositions) -> Figure:
    """Draw the mean curve of each archetype, and its share in each run."""
    height = max(3.6, 0.24 * len(data.runs) + 1.4)
    with panels(1, 2, width=6.6, height=height) as (figure, (curves, shares)):
        left = np.zeros(len(data.runs))
        y = np.arange(len(data.runs))
        for c, name in enumerate(data.names):
            colour, marker = ARCHETYPE_COLOURS[name], ARCHETYPE_MARKERS[name]
            label = f"{name} ({data.size[c]})"
            curves.plot(data.levels, data.centre[c], color=colour, marker=marker, label=label)
            shares.barh(y, data.shares[:, c], left=left, color=colour)
            left += data.shares[:, c]
        set_level_axis(curves, data.levels)
        curves.set_ylim(-0.03, 1.03)
        curves.set_ylabel("accuracy of the vote")
        curves.set_title("Centres of the clusters (questions)")
        curves.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        shares.set_yticks(y, [shorten(run, MAX_NAME) for run in data.runs], fontsize=8.5)
        shares.set_ylim(len(data.runs) - 0.5, -0.5)
        shares.set_xlim(0, 1)
        shares.set_xlabel("share of questions")
        shares.grid(visible=False)
        shares.set_title("Archetypes in each run")
        return figure
