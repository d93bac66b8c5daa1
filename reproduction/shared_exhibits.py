"""Paper shared exhibits: the tables and figures that the paper makes of several runs together.

The runs that got every exhibit of their own are put side by side, or pooled. It knows nothing of
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from reproduction import figures_shared as shared
from reproduction.classifier_ablation import Ablation, ablate
from reproduction.exhibits import Data
from reproduction.figures_learned import draw_ablation

if TYPE_CHECKING:
    from adacompute.report.plot_style import Figure
    from reproduction.run_data import RunData
    from reproduction.table_files import Row

DataT = TypeVar("DataT", bound=Data)


@dataclass(frozen=True)
class CompleteRun:
    """A run with the data of its own exhibits by name, and the verdicts on the paper's claims."""

    run: RunData
    exhibits: Mapping[str, Any]
    claims: list[Row]


@dataclass(frozen=True, eq=False)
class ByRun(Generic[DataT]):
    """The same data of several runs, by name."""

    by_run: dict[str, DataT]

    @property
    def rows(self) -> list[Row]:
        """The rows of every run."""
        return [{"run": name, **row} for name, data in self.by_run.items() for row in data.rows]


@dataclass(frozen=True)
class SharedExhibit:
    """A table or figure of several runs; with ``is_table`` its rows are saved as a table."""

    name: str
    source: str
    caption: str
    compute: Callable[[list[CompleteRun]], Data]
    draw: Callable[[Any], Figure]
    is_table: bool = False


def put_side_by_side(exhibit: str) -> Callable[[list[CompleteRun]], ByRun[Any]]:
    """Return a function that collects the data of one exhibit from the runs that have it."""

    def collect(runs: list[CompleteRun]) -> ByRun[Any]:
        return ByRun(
            {one.run.name: one.exhibits[exhibit] for one in runs if exhibit in one.exhibits}
        )

    return collect


def ablate_pooled(runs: list[CompleteRun]) -> Ablation:
    """Fit the five classifiers to the questions of all runs together."""
    return ablate(*(one.run for one in runs))


SHARED_EXHIBITS = (
    SharedExhibit(
        "staircase",
        "Figure 2",
        "Mean cost of the static oracle at each price, one curve per run",
        put_side_by_side("staircase"),
        shared.draw_costs,
    ),
    SharedExhibit(
        "pareto",
        "Figure 4",
        "Accuracy against cost by both protocols, one panel per run",
        put_side_by_side("pareto"),
        shared.draw_frontiers_by_run,
    ),
    SharedExhibit(
        "ablation",
        "Tables 2 and 7, Figure 10",
        "Five classifiers on the pooled questions of all runs, over the levels that all have",
        ablate_pooled,
        draw_ablation,
        is_table=True,
    ),
    SharedExhibit(
        "efficiency",
        "Figure 11",
        "Accuracy by share of the training questions, one panel per run",
        put_side_by_side("efficiency"),
        shared.draw_efficiency_by_run,
    ),
)
"""Made where at least two runs have every table and figure."""
