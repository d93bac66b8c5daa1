"""Spool: what was prepared of each question, on disk, one set of files per shard.

A shard is a range of rows of one file of questions. Its values, keys and ids are written block by
block; its manifest is written last, so a shard with a manifest is complete and is not prepared
again. Shards depend on the source alone, not on the number of processes. Values are read as views
of the files, so memory does not grow with the number of questions.

This module does not know what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adacompute.batch.formats import INDEX_STEP, PARQUET
from adacompute.batch.planning.preparation import Preparation, Prepared
from adacompute.batch.questions import QuestionFile, QuestionSource, read_arrays
from adacompute.core.errors import DataError
from adacompute.storage.regular_files import name_in_error, read_json, write_atomically

FORMAT = 1
BLOCK_ROWS = 1 << 14
"""Questions that are prepared at once."""

SHARD_ROWS = 1 << 16
"""Smallest number of rows of a shard, except at the end of a file."""

MAX_SHARDS = 1 << 12
"""Shards of a source, about: larger sources have larger shards."""

SPLIT_ROWS = 1 << 22
"""Row groups of Parquet files with more rows are split, which reads their beginning again."""


@dataclass(frozen=True)
class Shard:
    """A range of positions within one file."""

    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShardSummary:
    """What is known about a finished shard: its questions, and how many are in each class.

    ``n_questions`` counts the questions with a usable text.
    """

    start: int
    stop: int
    n_questions: int
    counts: tuple[tuple[int, ...], ...]


def split_source(source: QuestionSource) -> list[tuple[Shard, QuestionFile]]:
    """Split a source into shards that can be read without much of what is before them."""
    min_rows = max(SHARD_ROWS, source.n_questions // MAX_SHARDS)
    shards: list[tuple[Shard, QuestionFile]] = []
    for file in source.files:
        for start, stop in _split_file(file, min_rows):
            first = file.first_position
            shards.append((Shard(len(shards), first + start, first + stop), file))
    return shards


def _split_file(file: QuestionFile, min_rows: int) -> list[tuple[int, int]]:
    """Return ranges of rows that begin where a file can be read from."""
    if file.format == PARQUET:
        edges = [*file.groups, file.n_rows]
        limit = max(SPLIT_ROWS, min_rows)
        steps = [row for begin, end in pairwise(edges) for row in range(begin, end, limit)]
    else:
        steps = [i * INDEX_STEP for i in range(len(file.starts))] or [0]
    starts = [0] if file.n_rows else []
    for row in steps:
        if row - starts[-1] >= min_rows and file.n_rows - row > 0:
            starts.append(row)
    return list(zip(starts, [*starts[1:], file.n_rows], strict=True))


@dataclass(frozen=True)
class Spool:
    """The directory of the files of shards."""

    directory: Path

    def path(self, number: int, suffix: str) -> Path:
        """Return the path of a file of a shard."""
        return self.directory / f"shard-{number:06}.{suffix}"

    def read_summary(self, shard: Shard, fingerprint: str) -> ShardSummary | None:
        """Return the summary of a shard; None if it is not finished or of another batch."""
        try:
            content = read_json(self.path(shard.number, "json"))
        except DataError:
            return None
        expected = {"format": FORMAT, "fingerprint": fingerprint}
        expected |= {"start": shard.start, "stop": shard.stop}
        if any(content.get(name) != value for name, value in expected.items()):
            return None
        counts = tuple(tuple(row) for row in content["counts"])
        return ShardSummary(shard.start, shard.stop, content["n_questions"], counts)

    def write_shard(
        self, preparation: Preparation, shard: Shard, source: QuestionSource
    ) -> ShardSummary:
        """Prepare the questions of a shard, without its manifest."""
        self.directory.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([("question_id", pa.string())])
        n_questions, counts = 0, None
        with (
            name_in_error(self.directory),
            self.path(shard.number, "values").open("wb", buffering=0) as values,
            self.path(shard.number, "keys").open("wb") as keys,
            pa.OSFile(str(self.path(shard.number, "ids")), "wb") as sink,
            pa.ipc.new_file(sink, schema) as ids,
        ):
            for block in read_arrays(
                source, block_size=BLOCK_ROWS, start=shard.start, stop=shard.stop
            ):
                prepared = preparation.prepare(block.texts)
                values.write(np.ascontiguousarray(prepared.values).data)
                if prepared.keys is not None:
                    keys.write(prepared.keys.data)
                ids.write_batch(pa.record_batch([block.ids], schema=schema))
                found = preparation.count_classes(prepared.values)
                counts = found if counts is None else counts + found
                n_questions += len(block.texts) - block.texts.null_count
        rows = () if counts is None else tuple(tuple(row) for row in counts.tolist())
        return ShardSummary(shard.start, shard.stop, n_questions, rows)

    def finish_shard(self, shard: Shard, summary: ShardSummary, fingerprint: str) -> None:
        """Write the manifest of a shard."""
        content = {"format": FORMAT, "fingerprint": fingerprint, **asdict(summary)}
        write_atomically(self.path(shard.number, "json"), json.dumps(content).encode())

    def count_written(self, shard: Shard, row_bytes: int) -> int:
        """Return how many questions of a shard have been prepared so far."""
        try:
            return self.path(shard.number, "values").stat().st_size // row_bytes
        except OSError:
            return 0

    def read_values(self, preparation: Preparation, shard: Shard) -> Any:  # noqa: ANN401 - of any type
        """Return the values of a finished shard, (rows, width), as a view of the file."""
        shape = (len(shard), max(1, preparation.width))
        return self._map(shard, "values", preparation.dtype, shape)

    def read_prepared(
        self, preparation: Preparation, shard: Shard, *, block_size: int = BLOCK_ROWS
    ) -> Iterator[tuple[int, Prepared]]:
        """Yield the position and what was prepared of each block of a finished shard."""
        values, keys = self.read_values(preparation, shard), None
        if preparation.needs_keys:
            keys = self._map(shard, "keys", np.dtype(np.uint64), (len(shard),))
        for row in range(0, len(values), block_size):
            rows = slice(row, row + block_size)
            some = None if keys is None else np.asarray(keys[rows])
            yield shard.start + row, Prepared(np.asarray(values[rows]), some)

    def read_ids(self, shard: Shard) -> pa.Table:
        """Return the ids of a finished shard, as a view of the file."""
        return pa.ipc.open_file(pa.memory_map(str(self.path(shard.number, "ids")))).read_all()

    def _map(self, shard: Shard, suffix: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - of any type
        path = self.path(shard.number, suffix)
        try:
            return np.memmap(path, dtype=dtype, mode="r", shape=shape)
        except (OSError, ValueError):
            raise DataError(f"{path} is damaged: remove its directory and plan again") from None
