"""Paid samples: everything that was paid for in one directory, in immutable Parquet files.

This is the store of ``collect`` and ``batch``, and the account of both: the sum of its costs is
what was spent. Payments are for samples, for scores of samples, for attempts that failed but may be
billed, for attempts that were lost when a process was killed, and for probes of a server. Those
that arrive together are written together as a segment, because an object store cannot append to a
file; a payment counts when its segment is on the disk. The name of a segment says which positions
it holds. There is one writer at a time. This module knows nothing of votes, prices or limits.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import DataError
from adacompute.models.messages import Sample
from adacompute.storage.regular_files import read_table, write_table

logger = logging.getLogger(__name__)

SEGMENTS = "segments"
"""Name of the directory of segments."""

FLUSH_S, FLUSHES_PER_S = 1.0, 50
"""Time from one segment to the next in a long run; the first ones follow faster."""

PATIENCE_S, RETRY_S = 30.0, 2.0
"""How long writing is tried again on a full disk, and the time between two tries."""

SAMPLE: Final = "sample"
SCORE: Final = "score"
FAILED: Final = "failed"
LOST: Final = "lost"
PROBE: Final = "probe"
Kind = Literal["sample", "score", "failed", "lost", "probe"]
"""What was paid for: a sample; the score of one; an attempt that failed and may be billed; one that
was open at a kill; one that found out what a server does."""

_NAME = re.compile(r"segment-(\d+)-(\d+)-(\d+)\.parquet")
_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("arm", pa.string()),
        ("sample", pa.int32()),
        ("kind", pa.string()),
        ("cost", pa.int64()),
        ("attempt", pa.int64()),
        ("score", pa.float64()),
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
_PAYMENT_FIELDS, _SAMPLE_FIELDS = _SCHEMA.names[:7], _SCHEMA.names[7:]


@dataclass(frozen=True, slots=True)
class Payment:
    """What an attempt cost, and the sample or score that it brought, if any.

    ``position`` is the number of the question and ``number`` that of the sample. The samples of one
    attempt share its cost and have its id, ``attempt``.
    """

    position: int
    arm: str | None
    number: int
    cost: int
    sample: Sample | None = None
    kind: Kind = SAMPLE
    attempt: int = 0
    score: float | None = None


@dataclass
class PaidTotals:
    """Sums over a store: the number of payments and their cost by kind, and completion tokens."""

    counts: dict[str, int] = field(default_factory=dict)
    costs: dict[str, int] = field(default_factory=dict)
    completion_tokens: int = 0
    last_attempt: int = 0

    @property
    def spent(self) -> int:
        """Cost of everything that was paid for."""
        return sum(self.costs.values())

    @property
    def lost(self) -> int:
        """Cost of the attempts that were lost."""
        return self.costs.get(LOST, 0)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.counts.get(SAMPLE, 0)

    def add(self, payments: Iterable[Payment]) -> None:
        """Add payments."""
        for one in payments:
            self.counts[one.kind] = self.counts.get(one.kind, 0) + 1
            self.costs[one.kind] = self.costs.get(one.kind, 0) + one.cost
            self.last_attempt = max(self.last_attempt, one.attempt)
            if one.sample is not None:
                self.completion_tokens += one.sample.completion_tokens or 0

    def add_segment(self, table: pa.Table) -> None:
        """Add the payments of a segment."""
        sums = table.group_by("kind").aggregate([("cost", "count"), ("cost", "sum")])
        for row in sums.to_pylist():
            kind = row["kind"]
            self.counts[kind] = self.counts.get(kind, 0) + row["cost_count"]
            self.costs[kind] = self.costs.get(kind, 0) + row["cost_sum"]
        self.completion_tokens += pc.sum(table["completion_tokens"]).as_py() or 0
        self.last_attempt = max(self.last_attempt, pc.max(table["attempt"]).as_py() or 0)


class StoreReader:
    """Sums over stores that are being written: each segment is read once."""

    def __init__(self, *directories: Path) -> None:
        self.totals = PaidTotals()
        self._directories = directories
        self._known: set[Path] = set()

    def read(self) -> PaidTotals:
        """Add the segments that are new; return the sums."""
        for directory in self._directories:
            for _, path in _list_segments(directory):
                if path not in self._known:
                    self._known.add(path)
                    columns = ["kind", "cost", "attempt", "completion_tokens"]
                    self.totals.add_segment(read_table(path, columns))
        return self.totals


class SegmentWriter:
    """Writes payments as segments; ``add`` returns when they are on the disk."""

    def __init__(
        self, directory: Path, *, interval_s: float = FLUSH_S, patience_s: float = PATIENCE_S
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._last_flush = -math.inf
        self._n_written = 0
        self._rows: list[Payment] = []
        self._written: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()
        self._next = 1 + max((number for number, _ in _list_segments(directory)), default=-1)

    async def add(self, payments: Iterable[Payment]) -> None:
        """Add payments, and wait until they are on the disk."""
        self._rows += payments
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
            self._written.add_done_callback(_retrieve)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_all())
        await asyncio.shield(self._written)

    def hurry(self) -> None:
        """Write at once what there is, because nothing else will come soon."""
        self._is_due.set()

    async def close(self) -> None:
        """Wait until everything is on the disk."""
        self.hurry()
        if self._task is not None:
            await self._task

    async def _flush_all(self) -> None:
        while self._rows:
            pause_s = min(self._interval_s, self._n_written / FLUSHES_PER_S)
            pause_s += self._last_flush - time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), max(0.0, pause_s))
            self._is_due.clear()
            self._last_flush = time.monotonic()
            rows, written = self._rows, self._written
            self._rows, self._written = [], None
            try:
                await self._write_patiently(rows)
            except OSError as error:
                self._fail(written, error)
            else:
                _finish(written)

    async def _write_patiently(self, rows: list[Payment]) -> None:
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
            message = (
                f"{self._directory} cannot be written: {error.strerror}: make room and run the "
                "same command again"
            )
            written.set_exception(DataError(message))

    def _write(self, rows: list[Payment]) -> None:
        write_segment(self._directory, self._next, rows)
        self._next += 1
        self._n_written += 1


def write_segment(directory: Path, number: int, rows: Sequence[Payment]) -> None:
    """Write payments as a segment with a number that no other has."""
    first, last = (choose(row.position for row in rows) for choose in (min, max))
    write_table(directory / f"segment-{number:08d}-{first}-{last}.parquet", _to_table(rows))


def read_payments(
    directory: Path, *, first: int = 0, last: int | None = None, with_samples: bool = True
) -> Iterator[Payment]:
    """Yield the payments for questions from one position to another, both included."""
    for _, path in _list_segments(directory, first, last):
        table = read_table(path, None if with_samples else _PAYMENT_FIELDS)
        wanted = pc.greater_equal(table["position"], first)
        if last is not None:
            wanted = pc.and_(wanted, pc.less_equal(table["position"], last))
        for row in table.filter(wanted).to_pylist():
            yield _from_row(row, with_sample=with_samples)


def sum_payments(directory: Path) -> PaidTotals:
    """Return the sums over all segments of a directory."""
    return StoreReader(directory).read()


def has_attempts(directory: Path, attempts: set[int]) -> set[int]:
    """Return which of these attempts are in the store."""
    found: set[int] = set()
    for _, path in _list_segments(directory) if attempts else ():
        found |= attempts.intersection(read_table(path, ["attempt"])["attempt"].to_pylist())
    return found


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory; the lock ends with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"another process works on {directory}") from None
        yield


def _list_segments(
    directory: Path, first: int = 0, last: int | None = None
) -> list[tuple[int, Path]]:
    """Return the numbers and the paths of the segments with questions in a range, in order."""
    if not directory.is_dir():
        return []
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(
        (int(name[1]), path)
        for name, path in found
        if name is not None and int(name[3]) >= first and (last is None or int(name[2]) <= last)
    )


def _to_table(rows: Sequence[Payment]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "position": [row.position for row in rows],
        "arm": [row.arm for row in rows],
        "sample": [row.number for row in rows],
        "kind": [row.kind for row in rows],
        "cost": [row.cost for row in rows],
        "attempt": [row.attempt for row in rows],
        "score": [row.score for row in rows],
    }
    samples = [row.sample for row in rows]
    for name in _SAMPLE_FIELDS:
        columns[name] = [None if one is None else getattr(one, name) for one in samples]
    return pa.table(columns, schema=_SCHEMA)


def _from_row(row: dict[str, Any], *, with_sample: bool) -> Payment:
    sample = None
    if with_sample and row["kind"] == SAMPLE:
        sample = Sample(**{name: row[name] for name in _SAMPLE_FIELDS})
    return Payment(
        row["position"],
        row["arm"],
        row["sample"],
        row["cost"],
        sample,
        row["kind"],
        row["attempt"],
        row["score"],
    )


def _finish(written: asyncio.Future[None] | None) -> None:
    if written is not None and not written.done():
        written.set_result(None)


def _retrieve(written: asyncio.Future[None]) -> None:
    """Mark the failure of a segment as known, even if nobody waits for it any more."""
    if not written.cancelled():
        written.exception()
