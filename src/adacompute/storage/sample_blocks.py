"""Sample blocks: runs that are larger than memory, read as blocks of whole questions.

The samples of a question must be next to each other in the file, as `collect` and `import` write
them; a question that appears again later is an error, because its samples would be split. A
subsample by hash holds all samples of some questions: the same ones in every run that has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.types import KeyArray, hash_keys, hash_strings
from adacompute.storage.store import SAMPLES, Run

MAX_SAMPLES_IN_MEMORY = 20_000_000
"""Samples of a run that is read as a whole; larger runs are read in blocks, or in part."""

BLOCK_ROWS = 1 << 18
"""Samples that are read at once, about."""

BUFFER_BYTES = 1 << 20


def count_samples(run: Run) -> int:
    """Return the number of samples of a run, from the footer of its file.

    It is 0 if there is no such file or its footer is damaged: reading the samples then says why.
    """
    try:
        return int(pq.read_metadata(run.file(SAMPLES)).num_rows)
    except (pa.ArrowException, OSError):
        return 0


def read_sample_blocks(
    run: Run,
    columns: Sequence[str],
    *,
    block_rows: int = BLOCK_ROWS,
    need_grades: bool = True,
) -> Iterator[pa.Table]:
    """Yield samples in blocks of whole questions."""
    waiting: list[pa.Table] = []
    seen: list[KeyArray] = []
    for table in _read(run, columns, block_rows):
        if need_grades:
            run.check_grades(table)
        ids = table["question_id"].combine_chunks()
        changes = np.flatnonzero(np.asarray(pc.not_equal(ids[1:], ids[:-1]))) + 1
        last = int(changes[-1]) if len(changes) else 0
        starts_new = bool(waiting) and waiting[-1]["question_id"][-1] != ids[0]
        if last or starts_new:
            whole = [*waiting, table.slice(0, last)] if last else waiting
            yield _note(pa.concat_tables(whole), seen)
            waiting = []
        waiting.append(table.slice(last))
    if waiting:
        yield _note(pa.concat_tables(waiting), seen)
    keys = np.sort(np.concatenate(seen)) if seen else np.empty(0, dtype=np.uint64)
    if (keys[1:] == keys[:-1]).any():
        raise DataError(
            f"{run.file(SAMPLES)} has samples of one question in several places: sort it by "
            "question_id before importing it"
        )


def _note(block: pa.Table, seen: list[KeyArray]) -> pa.Table:
    """Keep the hashes of the questions of a block."""
    seen.append(hash_strings(_first_ids(block["question_id"]).to_pylist()))
    return block


def _first_ids(ids: pa.ChunkedArray) -> pa.Array:
    """Return the id of each run of equal ids."""
    return pc.run_end_encode(ids.combine_chunks()).values


def _read(run: Run, columns: Sequence[str], block_rows: int) -> Iterator[pa.Table]:
    """Yield samples in the order of the file."""
    path = run.check_samples()
    samples = pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
    names = [name for name in columns if name in samples.schema_arrow.names]
    for batch in samples.iter_batches(block_rows, columns=names):
        yield pa.table(batch)


def read_subsample(
    run: Run,
    max_questions: int,
    *,
    need_grades: bool = True,
) -> tuple[pa.Table, int]:
    """Return the samples of about ``max_questions`` questions, and how many questions there are.

    Questions are chosen by the hash of their ids.
    """
    names = pq.read_schema(run.check_samples()).names
    n_questions = sum(
        len(_first_ids(block["question_id"])) for block in read_sample_blocks(run, ("question_id",))
    )
    kept = []
    share = min(1.0, max_questions / max(1, n_questions))
    limit = np.uint64(min(2**64 - 1, int(2**64 * share)))
    for block in read_sample_blocks(run, names, need_grades=need_grades):
        encoded = pc.run_end_encode(block["question_id"].combine_chunks())
        chosen = hash_keys(hash_strings(encoded.values.to_pylist())) <= limit
        lengths = np.diff(np.asarray(encoded.run_ends), prepend=0)
        kept.append(block.filter(pa.array(np.repeat(chosen, lengths))))
    return pa.concat_tables(kept), n_questions
