"""Paper exhibits: every table and figure of the paper, in one list.

An exhibit has a name, what it is in the paper and what it shows, a function from a subject to the
data behind it, and for figures one that draws them. Whoever makes, documents or tests them goes
through this list. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from adacompute.paper import figures_learned as learned
from adacompute.paper import figures_oracle as oracle
from adacompute.paper.ablations import ablate, compare_ladders, measure_efficiency
from adacompute.paper.archetypes import find_archetypes
from adacompute.paper.comparison import (
    describe_pipeline,
    map_labels,
    measure_gap,
    tabulate_main,
    trace_frontiers,
)
from adacompute.paper.feature_importance import weigh_features
from adacompute.paper.oracle_data import (
    bisect_prices,
    climb_staircase,
    count_labels,
    measure_difficulties,
    scatter_choices,
    show_mechanism,
    trace_scaling,
)

if TYPE_CHECKING:
    from adacompute.paper.subject import Subject
    from adacompute.report.plot_style import Figure
    from adacompute.report.table_files import Row


class Data(Protocol):
    """What is behind an exhibit: it can be told as rows of a table."""

    @property
    def rows(self) -> list[Row]:
        """Rows of plain values."""


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper; a figure can be drawn, and some are tables as well."""

    name: str
    source: str
    shows: str
    compute: Callable[[Subject], Data]
    draw: Callable[[Any], Figure] | None = None
    table: bool = False


EXHIBITS = (
    Exhibit(
        "pipeline",
        "Figure 3",
        "Solve, learn and deploy, with the numbers of this run",
        describe_pipeline,
        oracle.draw_pipeline,
    ),
    Exhibit(
        "scaling",
        "Figure 1",
        "Scaling curves of one question of each archetype, by windows and over all subsets",
        trace_scaling,
        oracle.draw_scaling,
    ),
    Exhibit(
        "staircase",
        "Figure 2",
        "Mean cost of the oracle at each price",
        climb_staircase,
        oracle.draw_staircase,
    ),
    Exhibit(
        "main",
        "Table 1",
        "Accuracy and cost of every policy at three budgets, by both protocols",
        tabulate_main,
        table=True,
    ),
    Exhibit(
        "pareto",
        "Figure 4",
        "Accuracy against cost on a dense grid of budgets, by both protocols",
        trace_frontiers,
        learned.draw_pareto,
    ),
    Exhibit(
        "heat-map",
        "Figure 5",
        "Levels by difficulty: the oracle's, the learned, and the learned held out",
        map_labels,
        learned.draw_heat_map,
    ),
    Exhibit(
        "difficulty",
        "Table 3",
        "Accuracy at the lowest and highest level by difficulty, and what voting adds",
        measure_difficulties,
        table=True,
    ),
    Exhibit(
        "labels",
        "Table 4",
        "Share of questions that the oracle gives each level",
        count_labels,
        table=True,
    ),
    Exhibit(
        "gap",
        "Table 5",
        "Imitation of the oracle and the gap to it, by both protocols",
        measure_gap,
        table=True,
    ),
    Exhibit(
        "scatter",
        "Figure 6",
        "The oracle's levels over difficulty, and their composition by fifths",
        scatter_choices,
        oracle.draw_scatter,
    ),
    Exhibit(
        "archetypes",
        "Figure 7",
        "Four kinds of question by k-means: curves, where they are found, what they get",
        find_archetypes,
        oracle.draw_archetypes,
    ),
    Exhibit(
        "bisection",
        "Table 6 and Figure 8",
        "The search for each budget's price beside the exact one, and how it converges",
        bisect_prices,
        oracle.draw_bisection,
        table=True,
    ),
    Exhibit(
        "mechanism",
        "Figure 9",
        "What a price does to each question, to all of them, and to one",
        show_mechanism,
        oracle.draw_mechanism,
    ),
    Exhibit(
        "ablation",
        "Tables 2 and 7, Figure 10",
        "Five classifiers with regret and its valid bound, and where trees go wrong",
        ablate,
        learned.draw_ablation,
        table=True,
    ),
    Exhibit(
        "efficiency",
        "Figure 11",
        "Accuracy by share of the training questions, by both protocols",
        measure_efficiency,
        learned.draw_efficiency,
    ),
    Exhibit(
        "granularity",
        "Figure 12",
        "Coarse, default, fine and odd ladders: frontiers, labels and returns",
        compare_ladders,
        learned.draw_granularity,
        table=True,
    ),
    Exhibit(
        "features",
        "Figure 13",
        "What each feature counts for, trained on and held out, and each label's signature",
        weigh_features,
        learned.draw_features,
    ),
)
"""In the order of the paper, as far as one exhibit is not two things there."""
