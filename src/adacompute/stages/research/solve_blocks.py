"""Solve blocks: the best allocation of a budget for runs that are larger than memory.

The utility table is read block by block. It is for one arm, costs in samples and no limits. Among
questions with equal gains at the cutoff, those first in the file are upgraded, where `solve` takes
them in the order of their keys; cost and utility are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import ConfigError
from adacompute.stages.research.estimate_blocks import is_large
from adacompute.stages.research.solve_files import BLOCK_ROWS, open_utilities, solve_files
from adacompute.storage.store import Run

MAX_QUESTIONS_IN_MEMORY = 5_000_000
"""Rows of a utility table that is read as a whole."""


def needs_blocks(store: Run, name: str, *, is_supported: bool) -> bool:
    """Whether a utility table is read in blocks; ConfigError if it must be and cannot.

    ``is_supported`` says that the options allow it.
    """
    files = open_utilities(store.file(name))
    is_supported = is_supported and all(level.isdecimal() for level in files.levels)
    if is_large(store) and not is_supported:
        raise ConfigError(
            f"a run of {files.n_questions:,} questions with this many samples is solved in blocks, "
            "which supports one arm, the unit 'samples' and no limits"
        )
    return is_large(store) or (is_supported and files.n_questions > MAX_QUESTIONS_IN_MEMORY)


def solve_blocks(store: Run, utility: str, allocation: str, budget: float) -> dict[str, Any]:
    """Write the level of each question to ``allocation``; return the result of the stage."""
    source, out = store.file(utility), store.file(allocation)
    levels = np.array([int(level) for level in open_utilities(source).levels])
    chosen = out.with_name(f".{allocation}.levels")
    try:
        found = solve_files(source, cost=levels.tolist(), budget=budget, out=chosen)
        choice = pq.read_table(chosen)["level"].to_numpy()
    finally:
        chosen.unlink(missing_ok=True)
    del found["questions"]
    rows = {one["row"]: one for one in found["split"]}
    names = _write_levels(source, out, levels[choice], set(rows))
    found["split"] = [
        {"question": names[row], "level": int(one["level"]), "probability": one["probability"]}
        for row, one in rows.items()
    ]
    return found


def _write_levels(source: Path, out: Path, level: Any, rows: set[int]) -> dict[int, str]:  # noqa: ANN401 - an array
    """Write ids and levels block by block; return the ids of some rows."""
    schema = pa.schema([("question_id", pa.string()), ("level", pa.int64())])
    partial, first = out.with_name(f".{out.name}.partial"), 0
    names: dict[int, str] = {}
    with pq.ParquetFile(source) as document, pq.ParquetWriter(partial, schema) as writer:
        for batch in document.iter_batches(BLOCK_ROWS, columns=["question_id"]):
            ids = batch.column(0).cast(pa.string())
            stop = first + len(ids)
            names |= {row: ids[row - first].as_py() for row in rows if first <= row < stop}
            levels = pa.array(level[first:stop], pa.int64())
            writer.write_batch(pa.record_batch([ids, levels], schema=schema))
            first = stop
    partial.replace(out)
    return names
