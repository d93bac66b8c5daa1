"""Paper exhibits: the list of every table and figure of the paper.

An exhibit has a name, its numbers in the paper, a caption, a function that computes its data from a
run, and for figures a function that draws it. ``reproduce``, the documentation and the tests all go
through this list. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reproduction import figures_learned as learned
from reproduction import figures_oracle as oracle
from reproduction.ablations import compare_level_sets, measure_efficiency
from reproduction.archetypes import find_archetypes, trace_scaling
from reproduction.classifier_ablation import ablate
from reproduction.comparison import (
    map_levels,
    measure_gap,
    tabulate_main,
    trace_frontiers,
)
from reproduction.feature_importance import measure_importance
from reproduction.oracle_data import (
    bisect_prices,
    count_levels,
    measure_difficulties,
    scatter_levels,
    trace_cost,
    trace_price_effect,
)

if TYPE_CHECKING:
    from adacompute.report.plot_style import Figure
    from reproduction.run_data import RunData
    from reproduction.table_files import Row


class Data(Protocol):
    """The data behind an exhibit, which can be written as a table."""

    @property
    def rows(self) -> list[Row]:
        """Rows of plain values."""


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper, or both: with ``is_table`` its rows are saved as a table."""

    name: str
    source: str
    caption: str
    compute: Callable[[RunData], Data]
    draw: Callable[[Any], Figure] | None = None
    is_table: bool = False


EXHIBITS = (
    Exhibit(
        "scaling",
        "Figure 1",
        "Scaling curves of one question per archetype, from windows and over all subsets",
        trace_scaling,
        oracle.draw_scaling,
    ),
    Exhibit(
        "staircase",
        "Figure 2",
        "Mean cost of the static oracle at each price",
        trace_cost,
        oracle.draw_cost_by_price,
    ),
    Exhibit(
        "main",
        "Table 1",
        "Accuracy and cost of every policy at three budgets, by both protocols",
        tabulate_main,
        is_table=True,
    ),
    Exhibit(
        "pareto",
        "Figure 4",
        "Accuracy against cost on a dense grid of budgets, by both protocols",
        trace_frontiers,
        learned.draw_frontiers,
    ),
    Exhibit(
        "heat-map",
        "Figure 5",
        "Levels by difficulty: of the static oracle, and of the router by both protocols",
        map_levels,
        learned.draw_heat_map,
    ),
    Exhibit(
        "difficulty",
        "Table 3",
        "Accuracy at the lowest and highest level by difficulty, and the gain of voting",
        measure_difficulties,
        is_table=True,
    ),
    Exhibit(
        "labels",
        "Table 4",
        "Share of questions at each level of the static oracle",
        count_levels,
        is_table=True,
    ),
    Exhibit(
        "gap",
        "Table 5",
        "Imitation of the oracle and the gap to it: the paper, held out, and a leaked feature",
        measure_gap,
        is_table=True,
    ),
    Exhibit(
        "scatter",
        "Figure 6",
        "Levels of the static oracle against difficulty, and their shares by fifths",
        scatter_levels,
        oracle.draw_level_scatter,
    ),
    Exhibit(
        "archetypes",
        "Figure 7",
        "Four archetypes by k-means: their curves, their difficulty and their levels",
        find_archetypes,
        oracle.draw_archetypes,
    ),
    Exhibit(
        "bisection",
        "Table 6 and Figure 8",
        "The price of each budget by bisection and exactly, and how the bisection converges",
        bisect_prices,
        oracle.draw_bisection,
        is_table=True,
    ),
    Exhibit(
        "mechanism",
        "Figure 9",
        "Effect of the price on each question, on all questions, and on one in detail",
        trace_price_effect,
        oracle.draw_price_effect,
    ),
    Exhibit(
        "ablation",
        "Tables 2 and 7, Figure 10",
        "Five classifiers with their regret and its valid bound, and the mistakes of trees",
        ablate,
        learned.draw_ablation,
        is_table=True,
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
        "Coarse, default, fine and odd sets of levels: frontiers, shares and accuracy",
        compare_level_sets,
        learned.draw_granularity,
        is_table=True,
    ),
    Exhibit(
        "features",
        "Figure 13",
        "Importance of each feature, of the trees and by shuffling, and its mean by level",
        measure_importance,
        learned.draw_importance,
    ),
)
"""In the order of the paper, except where one exhibit covers several of its tables and figures."""
