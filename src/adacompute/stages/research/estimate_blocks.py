"""Estimate blocks: utilities of runs that are larger than memory, one block after another.

Each block holds whole questions, and a question's utilities depend on its own samples only, so they
are those that `estimate` computes for the whole run. It is for one arm, majority votes and costs in
samples. Standard errors of means count every question as independent: to find questions with equal
texts, all texts would have to be in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import FloatArray
from adacompute.core.utility import Estimate, estimate
from adacompute.storage.sample_blocks import (
    MAX_SAMPLES_IN_MEMORY,
    count_samples,
    read_sample_blocks,
)
from adacompute.storage.store import Run, encode_samples

BLOCK_SAMPLES = 1 << 20
"""Samples per block. Questions with equal counts are estimated once per block, so large ones are
faster; a block takes about half a gigabyte."""

COLUMNS = ("question_id", "sample", "answer", "correct", "arm", "model")


def is_large(store: Run) -> bool:
    """Whether a run is read in blocks."""
    return count_samples(store) > MAX_SAMPLES_IN_MEMORY


@dataclass
class LevelSums:
    """Sums and sums of squares of the utilities of levels."""

    n_questions: int = 0
    total: FloatArray = field(default_factory=lambda: np.zeros(0))
    squares: FloatArray = field(default_factory=lambda: np.zeros(0))

    def add(self, utility: FloatArray) -> None:
        """Add the questions of a block."""
        new = utility.sum(axis=0), (utility**2).sum(axis=0)
        self.total = new[0] if not self.n_questions else self.total + new[0]
        self.squares = new[1] if not self.n_questions else self.squares + new[1]
        self.n_questions += len(utility)

    def describe(self, levels: tuple[int, ...]) -> list[dict[str, Any]]:
        """Return one row for each level."""
        n = self.n_questions
        mean = self.total / n
        variance = np.maximum(self.squares / n - mean**2, 0.0) * n / max(1, n - 1)
        errors = np.sqrt(variance / n).tolist() if n > 1 else [None] * len(levels)
        return [
            {"level": level, "cost": float(level), "utility": float(one), "standard_error": error}
            for level, one, error in zip(levels, mean, errors, strict=True)
        ]


def estimate_blocks(
    store: Run, name: str, levels: tuple[int, ...], *, method: str, vote: str, unit: str
) -> list[dict[str, Any]]:
    """Write the utility table of a run block by block, and return one row for each level."""
    if (method, vote, unit) != ("exact", "majority", "samples"):
        raise ConfigError(
            f"a run of {count_samples(store):,} samples is read in blocks, which supports the "
            f"method 'exact', the vote 'majority' and the unit 'samples', got {method!r}, {vote!r} "
            f"and {unit!r}"
        )
    sums, path = LevelSums(), store.file(name)
    partial = path.with_name(f".{name}.partial")
    columns = [f"{kind}_{level}" for level in levels for kind in ("utility", "error")]
    schema = pa.schema([("question_id", pa.string()), *((one, pa.float64()) for one in columns)])
    arms: set[str] = set()
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for block in read_sample_blocks(store, COLUMNS, block_rows=BLOCK_SAMPLES):
            ids, found = _estimate_block(block, levels, arms, pool_answers=store.pool_answers)
            sums.add(found.utility)
            values = [
                pa.array(one[:, k])
                for k in range(len(levels))
                for one in (found.utility, found.standard_error)
            ]
            writer.write_batch(pa.record_batch([ids, *values], schema=schema))
    partial.replace(path)
    return sums.describe(levels)


def _estimate_block(
    block: pa.Table, levels: tuple[int, ...], arms: set[str], *, pool_answers: bool
) -> tuple[pa.Array, Estimate]:
    """Return the ids and utilities of the questions of a block; ``arms`` collects their arms."""
    for name in ("question", "difficulty"):  # not needed, and the largest columns
        block = block.append_column(name, pa.nulls(len(block), pa.string()))
    recorded = encode_samples(block, pool_answers=pool_answers)
    arms |= set(recorded.arms)
    if len(arms) > 1:
        raise DataError(
            f"the run has several arms ({', '.join(sorted(arms))}), and is too large to be read at "
            "once: import each arm as its own run"
        )
    return pa.array(recorded.id, pa.string()), estimate(recorded.answers, levels)
