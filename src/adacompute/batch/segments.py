"""Segments: every sample that a batch has paid for, in immutable Parquet files.

Samples that arrive are collected and written together, at most once per second, because an object
store cannot append to a file. A sample counts only after its segment is on the disk. Rows are
keyed by (position of the question, arm, number of the sample); attempts that failed but may be
billed, and calls that were lost when a process was killed, have rows too, so the sum of all costs
is what the batch has spent. The name of a segment says which positions it holds. This module knows
nothing of votes or allowances.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.models.messages import Sample
from adacompute.storage.manifest import write_atomically
from adacompute.storage.regular_files import read_table

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
"""Time from one segment to the next, at least."""

PATIENCE_S, RETRY_S = 600.0, 5.0
"""How long writing is tried again on a full disk, and the time between two tries."""

SAMPLE: Final = "sample"
FAILED: Final = "failed"
LOST: Final = "lost"
Kind = Literal["sample", "failed", "lost"]
"""A sample; an attempt that failed and may be billed; a call that was open at a kill."""

_NAME = re.compile(r"segment-(\d+)-(\d+)-(\d+)\.parquet")
_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("arm", pa.string()),
        ("sample", pa.int32()),
        ("kind", pa.string()),
        ("cost", pa.int64()),
        ("text", pa.large_string()),
        ("mean_logprob", pa.float64()),
        ("completion_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("reasoning_tokens", pa.int64()),
        ("is_estimated", pa.bool_()),
        ("latency_s", pa.float64()),
        ("samples_per_call", pa.int32()),
        ("entropy", pa.float64()),
        ("top_logprobs", pa.int32()),
        ("min_logprob_window", pa.float64()),
        ("token_logprobs", pa.large_binary()),
    ]
)
_SAMPLE_FIELDS = tuple(name for name in _SCHEMA.names[5:])


@dataclass(frozen=True, slots=True)
class PaidCall:
    """What was paid for one sample, and the sample, if there is one."""

    position: int
    arm: str | None
    number: int
    cost: int
    sample: Sample | None = None
    kind: Kind = SAMPLE


class SegmentWriter:
    """Writes paid samples as segments; ``add`` returns when they are on the disk."""

    def __init__(
        self, directory: Path, *, interval_s: float = FLUSH_S, patience_s: float = PATIENCE_S
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._last_flush = -math.inf
        self._rows: list[PaidCall] = []
        self._written: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._next = 1 + max((number for number, _, _ in _list(directory)), default=-1)

    async def add(self, calls: Iterable[PaidCall]) -> None:
        """Add rows, and wait until they are on the disk."""
        self._rows += calls
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
            self._written.add_done_callback(_retrieve)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_all())
        await asyncio.shield(self._written)

    async def close(self) -> None:
        """Wait until everything is on the disk."""
        if self._task is not None:
            await self._task

    async def _flush_all(self) -> None:
        while self._rows:
            await asyncio.sleep(max(0.0, self._last_flush + self._interval_s - time.monotonic()))
            self._last_flush = time.monotonic()
            rows, written = self._rows, self._written
            self._rows, self._written = [], None
            try:
                await self._write_patiently(rows)
            except OSError as error:
                self._fail(written, error)
            else:
                _finish(written)

    async def _write_patiently(self, rows: list[PaidCall]) -> None:
        """Write a segment; while the disk is full or gone, try again until patience ends."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return await asyncio.to_thread(self._write, rows)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise
                logger.warning("%s cannot be written: %s", self._directory, error.strerror)
            await asyncio.sleep(min(RETRY_S, self._patience_s))

    def _fail(self, written: asyncio.Future[None] | None, error: OSError) -> None:
        if written is not None and not written.done():
            message = f"{self._directory} cannot be written: {error.strerror}"
            written.set_exception(DataError(message))

    def _write(self, rows: list[PaidCall]) -> None:
        first = min(row.position for row in rows)
        last = max(row.position for row in rows)
        path = self._directory / f"segment-{self._next:08d}-{first}-{last}.parquet"
        write_table(path, _to_table(rows))
        self._next += 1


def read_segments(
    directory: Path, *, first: int = 0, last: int | None = None
) -> Iterator[PaidCall]:
    """Yield the paid calls of questions from one position to another, both included."""
    for number, low, high in sorted(_list(directory)):
        if high < first or (last is not None and low > last):
            continue
        path = directory / f"segment-{number:08d}-{low}-{high}.parquet"
        for row in read_table(path).to_pylist():
            if row["position"] >= first and (last is None or row["position"] <= last):
                yield _from_row(row)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file, completely or not at all; when this returns, it is on the disk."""
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue())
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list(directory: Path) -> list[tuple[int, int, int]]:
    """Return the number, the first and the last position of each segment."""
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return [(int(m[1]), int(m[2]), int(m[3])) for m in found if m is not None]


def _to_table(rows: list[PaidCall]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "position": [row.position for row in rows],
        "arm": [row.arm for row in rows],
        "sample": [row.number for row in rows],
        "kind": [row.kind for row in rows],
        "cost": [row.cost for row in rows],
    }
    samples = [row.sample for row in rows]
    for name in _SAMPLE_FIELDS:
        columns[name] = [None if one is None else getattr(one, name) for one in samples]
    return pa.table(columns, schema=_SCHEMA)


def _from_row(row: dict[str, Any]) -> PaidCall:
    sample = None
    if row["kind"] == SAMPLE:
        sample = Sample(**{name: row[name] for name in _SAMPLE_FIELDS})
    return PaidCall(row["position"], row["arm"], row["sample"], row["cost"], sample, row["kind"])


def _finish(written: asyncio.Future[None] | None) -> None:
    if written is not None and not written.done():
        written.set_result(None)


def _retrieve(written: asyncio.Future[None]) -> None:
    """Mark the failure of a segment as known, even if nobody waits for it any more."""
    if not written.cancelled():
        written.exception()
