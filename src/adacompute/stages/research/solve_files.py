"""Solve files: the best allocation of a budget for utility tables that are larger than memory.

It reads Parquet files of utilities block by block: one pass takes a sample, one finds the exact
cutoff, and one writes the level of each question. The result is that of ``solve`` on the whole
table, with row numbers as keys. Memory does not grow with the number of questions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.allocation.cutoff import Cutoff, apply_cutoff, find_cutoff, is_sampled
from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import FloatArray, IntArray, UtilityTable, join_tables, sum_cost

PREFIX = "utility_"
"""Beginning of the names of the columns that hold utilities."""

BLOCK_ROWS = 1 << 16
"""Questions that are read at once."""

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class UtilityFiles:
    """Parquet files of utilities in the order of their paths, one column per level."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    n_questions: int

    @property
    def levels(self) -> list[str]:
        """Names of the levels."""
        return [name.removeprefix(PREFIX) for name in self.columns]


@dataclass
class AllocationTotals:
    """Sums over the questions of an allocation, collected block by block."""

    n_levels: int
    cost: Fraction = Fraction(0)
    utility: list[float] = field(default_factory=list)
    counts: IntArray = field(init=False)
    split_gain: float = 0.0
    split_cost: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.n_levels, dtype=np.int64)

    def add(self, block: UtilityTable, choice: IntArray, cutoff: Cutoff) -> None:
        """Add the questions of a block."""
        self.cost += sum_cost(block.cost_of(choice))
        self.utility.append(float(block.utility_of(choice).sum()))
        self.counts += np.bincount(choice, minlength=self.n_levels)
        if cutoff.probability and cutoff.key is not None:
            row = cutoff.key - int(block.key[0])
            if 0 <= row < len(block):
                costs, utility = block.costs[row], block.utility[row]
                self.split_cost = float(costs[cutoff.level] - costs[choice[row]])
                self.split_gain = float(utility[cutoff.level] - utility[choice[row]])


def open_utilities(path: Path, columns: Sequence[str] | None = None) -> UtilityFiles:
    """Find the files of a table of utilities: one file, or all Parquet files of a directory."""
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths or not paths[0].is_file():
        raise DataError(f"there are no Parquet files at {path}")
    names = pq.read_schema(paths[0]).names
    chosen = tuple(columns or (name for name in names if name.startswith(PREFIX)))
    missing = [name for name in chosen if name not in names]
    if missing or not chosen:
        wanted = ", ".join(missing) or f"whose name begins with {PREFIX}"
        raise DataError(f"{paths[0]} has no column {wanted}; its columns are {', '.join(names)}")
    n_rows = sum(pq.read_metadata(one).num_rows for one in paths)
    return UtilityFiles(tuple(map(str, paths)), chosen, n_rows)


def read_blocks(
    files: UtilityFiles, cost: FloatArray, *, sampled: bool = False
) -> Iterator[UtilityTable]:
    """Yield the utilities of all questions in blocks, or of a sample of them.

    Keys are row numbers.
    """
    row = 0
    for path in files.paths:
        with pq.ParquetFile(path, memory_map=True, buffer_size=BUFFER_BYTES) as document:
            for batch in document.iter_batches(BLOCK_ROWS, columns=list(files.columns)):
                key = np.arange(row, row + len(batch), dtype=np.uint64)
                row += len(batch)
                chosen = is_sampled(key, files.n_questions) if sampled else slice(None)
                key = key[chosen]
                # One column after another is how levels are compared, so nothing is transposed.
                utility = np.empty((len(files.columns), len(key)))
                for level, name in enumerate(files.columns):
                    utility[level] = batch.column(name).to_numpy(zero_copy_only=False)[chosen]
                yield UtilityTable(utility.T, cost, key)


def solve_files(
    path: Path,
    *,
    cost: Sequence[float],
    budget: float,
    out: Path,
    columns: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Compute the best allocation, and write the level of each question to a Parquet file."""
    files = open_utilities(path, columns)
    if len(cost) != len(files.columns):
        raise ConfigError(
            f"{len(files.columns)} levels ({', '.join(files.levels)}) need as many costs, got "
            f"{len(cost)}"
        )
    if not math.isfinite(budget):
        raise ConfigError(f"budget must be a finite number, got {budget}")
    if files.n_questions == 0:
        raise DataError(f"there are no questions in {path}")
    read = partial(read_blocks, files, np.array(cost, dtype=np.float64))
    sample = join_tables(list(read(sampled=True)))
    cutoff = find_cutoff(read, sample, budget).cutoff
    totals = AllocationTotals(len(cost))
    schema = pa.schema([("level", pa.int16())])
    out.parent.mkdir(parents=True, exist_ok=True)
    partial_path = out.with_name(f".{out.name}.partial")
    with pq.ParquetWriter(partial_path, schema) as writer:
        for block in read():
            choice = apply_cutoff(block, cutoff).astype(np.int64)
            totals.add(block, choice, cutoff)
            writer.write_batch(pa.record_batch([pa.array(choice, pa.int16())], schema=schema))
    partial_path.replace(out)
    return _describe(files, totals, cutoff, budget)


def _describe(
    files: UtilityFiles, totals: AllocationTotals, cutoff: Cutoff, budget: float
) -> dict[str, Any]:
    """Return an allocation as JSON, like that of ``solve``."""
    size = files.n_questions
    cost, utility = float(totals.cost / size), math.fsum(totals.utility) / size
    bound = max(utility, utility + cutoff.price * (budget - cost))
    split = []
    if cutoff.probability > 0:
        level = files.levels[cutoff.level]
        split = [{"row": cutoff.key, "level": level, "probability": cutoff.probability}]
    return {
        "questions": size,
        "price": cutoff.price,
        "cost": cost,
        "utility": utility,
        "bound": bound,
        "gap": bound - utility,
        "shares": dict(zip(files.levels, (totals.counts / size).tolist(), strict=True)),
        "split": split,
        "mixed_cost": cost + cutoff.probability * totals.split_cost / size,
        "mixed_utility": utility + cutoff.probability * totals.split_gain / size,
    }
