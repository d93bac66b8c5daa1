"""Solve: the stage that computes the best allocation of a budget, with a bound on its utility.

It takes recorded samples, or a table of the utility and the cost of every level on every question.
The allocation uses the right answers, so it is a bound for policies and not a policy itself. With
several arms, it chooses among all levels of all arms. Tables are read in blocks: one pass finds the
exact cutoff, and one writes the level of each question, so memory does not grow with their length.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from adacompute.core.allocation.cutoff import (
    EVERYTHING,
    Cutoff,
    apply_cutoff,
    apply_cutoffs,
    cutoff_before,
    find_cutoff,
    is_sampled,
)
from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import IntArray, UtilityTable, join_tables, sum_cost
from adacompute.datasets.utilities import is_utility_table, read_utilities
from adacompute.evaluation.arm_levels import level_name
from adacompute.evaluation.costs import CostModel
from adacompute.options.definition import select, takes
from adacompute.options.main import SolveOptions
from adacompute.stages.import_samples import ImportOptions, import_samples
from adacompute.stages.inputs import (
    check_levels,
    describe_subsample,
    make_pool,
    read_recorded,
    token_prices_of,
)
from adacompute.storage.regular_files import write_when_complete
from adacompute.storage.store import SAMPLES, Run

if TYPE_CHECKING:
    from adacompute.datasets.utilities import Block

N_POINTS = 101
"""Points of a frontier that are written."""

LABELS = pa.schema([("question", pa.string()), ("level", pa.string())])


@dataclass(frozen=True)
class Utilities:
    """Questions with the utility and the cost of each level; each call of ``read`` is one pass."""

    levels: tuple[str, ...]
    n_questions: int
    read: Callable[[], Iterator[Block]]
    about: dict[str, Any] = field(default_factory=dict)

    def sample(self) -> UtilityTable:
        """Return some of the questions, chosen at random; all if there are few."""
        size = self.n_questions
        return join_tables([table.take(is_sampled(table.key, size)) for _, table in self.read()])

    def tables(self) -> Iterator[UtilityTable]:
        """Yield the blocks without the names of their questions."""
        return (table for _, table in self.read())


@takes(SolveOptions)
def solve_source(source: Path, options: SolveOptions) -> dict[str, Any]:
    """Compute the best allocation of a budget, and a bound on what any allocation reaches.

    ``source`` is a table of utilities, a run, or a file of recorded samples.
    """
    if not math.isfinite(options.budget):
        raise ConfigError(f"budget must be a finite number, got {options.budget}")
    found = _read_table(source, options) if is_utility_table(source, options.columns) else None
    return _solve(_estimate(source, options) if found is None else found, options)


def _solve(found: Utilities, options: SolveOptions) -> dict[str, Any]:
    """Return the allocation, and write what the options ask for."""
    sample = found.sample()
    cutoff = find_cutoff(found.tables, sample, options.budget).cutoff
    totals = AllocationTotals(len(found.levels))
    names = pa.array(found.levels, pa.string())
    with _open_labels(options.out) as write:
        for ids, table in found.read():
            choice = apply_cutoff(table, cutoff).astype(np.int64)
            totals.add(ids, table, choice, cutoff)
            write(pa.record_batch([ids, names.take(pa.array(choice))], schema=LABELS))
    if options.frontier is not None:
        _write(_frontier(found, sample), options.frontier)
    written = {name: getattr(options, name) for name in ("out", "frontier")}
    about = {name: None if path is None else str(path) for name, path in written.items()}
    return {**found.about, **totals.describe(found, cutoff, options.budget), **about}


def _read_table(source: Path, options: SolveOptions) -> Utilities:
    """Return a table of utilities; options that are for samples are refused."""
    defaults = SolveOptions(budget=options.budget)
    for name in ("grader", "levels", "unit", "token_prices", "price_as"):
        if (getattr(options, name) or None) != getattr(defaults, name):
            word = name.replace("_", "-")
            raise ConfigError(f"{word} is for samples, and {source} is a table of utilities")
    return Utilities(*read_utilities(source, options.columns), {"unit": None})


def _estimate(source: Path, options: SolveOptions) -> Utilities:
    """Return the utility and the cost of each level, estimated from recorded samples."""
    if (source / SAMPLES).is_file():
        return _estimate_run(source, options)
    with tempfile.TemporaryDirectory(prefix="adacompute-solve-") as directory:
        run = Path(directory) / "run"
        import_samples(source, run, options=select(ImportOptions, options))
        return _estimate_run(run, options)


def _estimate_run(run: Path, options: SolveOptions) -> Utilities:
    """Return the utilities of the samples of a run."""
    costs = CostModel(options.unit, token_prices_of(options, run))
    recorded = read_recorded(Run(run))
    pool = make_pool(recorded, costs=costs).equalise()
    names: list[str] = []
    tables: list[UtilityTable] = []
    for arm, name in enumerate(recorded.arms):
        one = pool if pool.arm is None else pool.keep(pool.arm == arm)
        kept = tuple(n for n in check_levels(options.levels) if n <= one.n_samples)
        if kept:
            tables.append(one.table(kept))
            levels = ({"arm": name, "samples": n} for n in kept)
            names += map(level_name, levels) if pool.has_arms else map(str, kept)
    if not tables:
        raise DataError(
            f"there are fewer samples per question than the lowest level, {min(options.levels)}: "
            "give lower levels, or collect more samples"
        )
    utility = np.concatenate([table.utility for table in tables], axis=1)
    same = all(table.cost.ndim == 1 for table in tables)
    cost = np.concatenate([table.cost if same else table.costs for table in tables], axis=-1)
    table, kept_ids = UtilityTable(utility, cost, pool.key), np.isin(recorded.key, pool.key)
    ids = pa.array(recorded.id, pa.string()).filter(pa.array(kept_ids))
    about = {"unit": options.unit, "excluded": pool.n_excluded, **describe_subsample(recorded)}
    return Utilities(tuple(names), len(table), lambda: iter([(ids, table)]), about)


@dataclass
class AllocationTotals:
    """Sums over the questions of an allocation, collected block by block."""

    n_levels: int
    cost: Fraction = Fraction(0)
    utility: list[float] = field(default_factory=list)
    counts: IntArray = field(init=False)
    split_name: str | None = None
    split_gain: float = 0.0
    split_cost: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.n_levels, dtype=np.int64)

    def add(self, ids: pa.Array, block: UtilityTable, choice: IntArray, cutoff: Cutoff) -> None:
        """Add the questions of a block."""
        self.cost += sum_cost(block.cost_of(choice))
        self.utility.append(float(block.utility_of(choice).sum()))
        self.counts += np.bincount(choice, minlength=self.n_levels)
        if not cutoff.probability or cutoff.key is None:
            return
        for row in np.flatnonzero(block.key == np.uint64(cutoff.key)).tolist():
            costs, utility = block.costs[row], block.utility[row]
            self.split_name = ids[row].as_py()
            self.split_cost = float(costs[cutoff.level] - costs[choice[row]])
            self.split_gain = float(utility[cutoff.level] - utility[choice[row]])

    def describe(self, found: Utilities, cutoff: Cutoff, budget: float) -> dict[str, Any]:
        """Return the allocation as JSON."""
        size, share = found.n_questions, cutoff.probability
        cost, utility = float(self.cost / size), math.fsum(self.utility) / size
        bound = max(utility, utility + cutoff.price * (budget - cost))
        level = found.levels[cutoff.level]
        split = {"question": self.split_name, "level": level, "probability": share}
        return {
            "questions": size,
            "price": cutoff.price,
            "cost": cost,
            "utility": utility,
            "bound": bound,
            "gap": bound - utility,
            "shares": dict(zip(found.levels, (self.counts / size).tolist(), strict=True)),
            "split": [split] if share > 0 else [],
            "mixed_cost": cost + share * self.split_cost / size,
            "mixed_utility": utility + share * self.split_gain / size,
        }


def _frontier(found: Utilities, sample: UtilityTable) -> pa.Table:
    """Return what budgets from the cheapest to the dearest buy.

    Prices are those at which the sample spends a budget; costs and utilities are those of all
    questions at them.
    """
    start, upgrades = envelope(sample)
    order = upgrades.order()
    first = float(sample.cost_of(start).mean())
    spent = first + np.cumsum(upgrades.extra_cost[order]) / len(sample)
    budgets = np.linspace(first, float(spent[-1]) if len(spent) else first, N_POINTS)
    ends = np.searchsorted(spent, budgets, side="right").tolist()
    cutoffs = tuple(
        cutoff_before(upgrades, int(order[end])) if end < len(order) else EVERYTHING for end in ends
    )
    cost, utility = [Fraction(0)] * N_POINTS, np.zeros(N_POINTS)
    for table in found.tables():
        for i, choice in enumerate(apply_cutoffs(table, cutoffs)):
            cost[i] += sum_cost(table.cost_of(choice))
            utility[i] += table.utility_of(choice).sum()
    return pa.table(
        {
            "budget": budgets,
            "price": [cutoff.price for cutoff in cutoffs],
            "cost": [float(one / found.n_questions) for one in cost],
            "utility": utility / found.n_questions,
        }
    )


@contextmanager
def _open_labels(out: Path | None) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Open the file of labels, which is there once it is complete; without one, write nothing."""
    if out is None:
        yield lambda _: None
        return
    with _open_writer(out, LABELS) as writer:
        yield writer.write_batch


def _write(table: pa.Table, path: Path) -> None:
    """Write a table as CSV or Parquet."""
    with _open_writer(path, table.schema) as writer:
        writer.write_table(table)


@contextmanager
def _open_writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Open a writer for the format that the name of a file ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_when_complete(path) as partial:
        is_csv = path.suffix.lower() == ".csv"
        options = {} if is_csv else {"compression": "zstd"}
        with (pa.csv.CSVWriter if is_csv else pq.ParquetWriter)(
            partial, schema, **options
        ) as writer:
            yield writer
