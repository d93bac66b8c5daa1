"""Decisions: an append-only log of what was decided, one JSON line each, rolled into Parquet.

A line is written by one call to the system before the answer's last byte leaves, so what was served
is in the log even if the process is killed; a line that was cut in two is skipped on reading. Each
process appends to a file of its own, which it keeps locked, so that what a dead one left is told
from what is being written, on any machine that shares the directory. Full files become two tables,
by one process at a time: ``samples-*.parquet``, one row a draw, in the form that every run can
import, and ``decisions-*.parquet``, one row a decision. The oldest are deleted by age and size. It
knows nothing of what decisions mean.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError

FORMAT = 2
"""Version of the log's fields; a log of another version is refused."""

_FORMAT_KEY = b"adacompute.log_format"
ACTIVE, FULL = "active-*.jsonl", "full-*.jsonl"
DAY_S = 86_400.0

DECISIONS = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.float64()),
        ("model", pa.string()),
        ("key", pa.uint64()),
        ("question", pa.string()),
        ("features", pa.list_(pa.float32())),
        ("budget", pa.float64()),
        ("price", pa.float64()),
        ("max_rounds", pa.int32()),
        ("answers", pa.list_(pa.int32())),
        ("samples_used", pa.int32()),
        ("samples_planned", pa.int32()),
        ("chosen", pa.int32()),
        ("rounds", pa.int32()),
        ("calls", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("estimated", pa.bool_()),
        ("cost", pa.float64()),
        ("latency_s", pa.float64()),
        ("decision_s", pa.float64()),
        ("question_source", pa.string()),
        ("incomplete", pa.bool_()),
        ("audit", pa.bool_()),
        ("shadow", pa.bool_()),
        ("scorer_error", pa.string()),
        ("upstream_model", pa.string()),
    ]
)
SAMPLES = pa.schema(
    [
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("gold", pa.string()),
        ("level", pa.string()),
        ("sample", pa.int32()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("completion", pa.string()),
        ("completion_chars", pa.int32()),
        ("completion_tokens", pa.int64()),
        ("mean_logprob", pa.float32()),
        ("model", pa.string()),
        ("decision_id", pa.string()),
    ]
)


@dataclass
class DecisionLog:
    """A log in a directory; append and seal in one thread, roll in any."""

    directory: Path
    roll_bytes: int = 64_000_000
    keep_days: float = 30.0
    keep_bytes: int = 10_000_000_000
    _active: Path = field(default=Path(), repr=False)
    _handle: int = field(default=-1, repr=False)
    _size: int = field(default=0, repr=False)
    _torn: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._alone():
            for left in self.directory.glob(ACTIVE):
                if not _is_locked(left):
                    self._seal(left)

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write one decision; whether the file is full and should be rolled."""
        if self._handle < 0:
            self._open()
        record = {"format": FORMAT, **record}
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        line = b"\n" + line if self._torn else line  # what a full disk cut off costs itself alone
        self._torn = os.write(self._handle, line) < len(line)
        self._size += len(line)
        return self._size >= self.roll_bytes

    def _open(self) -> None:
        """Begin a file, which has its name only once it is locked."""
        name = f"{time.time_ns()}-{os.getpid()}.jsonl"
        beside = self.directory / f"new-{name}"
        handle = os.open(beside, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._active = beside.rename(self.directory / f"active-{name}")
        self._handle, self._size, self._torn = handle, 0, False

    def seal(self) -> None:
        """Begin a new file with the next decision; the last one waits to be rolled."""
        if self._handle >= 0:
            try:
                self._seal(self._active)
            finally:
                os.close(self._handle)
                self._handle = -1

    def _seal(self, path: Path) -> None:
        path.replace(self.directory / f"full-{time.time_ns()}-{os.getpid()}.jsonl")

    def roll(self) -> int:
        """Turn sealed files into tables and delete what is too old; slow, for a thread."""
        rolled = 0
        with self._alone():
            for path in sorted(self.directory.glob(FULL)):
                if _read_format(path) != FORMAT:
                    continue
                name = path.stem.removeprefix("full-")
                records = _records(path)
                _write(self.directory / f"decisions-{name}.parquet", _decisions(records))
                _write(self.directory / f"samples-{name}.parquet", _samples(records))
                path.unlink()
                rolled += len(records)
            self._forget()
        return rolled

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other thread or process turns files of this directory into others."""
        with (self.directory / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _forget(self) -> None:
        """Delete the oldest tables beyond the age or the size that is kept."""
        files = sorted(self.directory.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
        size = sum(path.stat().st_size for path in files)
        for path in files:
            status = path.stat()
            if time.time() - status.st_mtime < self.keep_days * DAY_S and size <= self.keep_bytes:
                break
            size -= status.st_size
            path.unlink()


def read_decisions(directory: Path) -> pa.Table:
    """All decisions of a log, rolled or not, by time; one that was written again counts once."""
    check_format(directory)
    loose: list[pa.Table] = []
    for pattern in (ACTIVE, FULL):  # the way that files go, meanwhile too
        for path in sorted(directory.glob(pattern), reverse=True):
            with suppress(FileNotFoundError):
                loose.append(_decisions(_records(path)))
    tables = [pq.read_table(path) for path in sorted(directory.glob("decisions-*.parquet"))]
    tables += reversed(loose)
    if not tables:
        raise DataError(f"{directory} holds no decisions: is it the directory of a gateway's log?")
    table = pa.concat_tables(tables, promote_options="default")
    last = {name: row for row, name in enumerate(table["id"].to_pylist())}
    return table.take(pa.array(last.values(), pa.int64())).sort_by("time")


def check_format(log: Path) -> None:
    """Raise DataError for a log, or one of its files, that another version of the format wrote."""
    files = [log] if log.is_file() else sorted({*log.glob("*-*.jsonl"), *log.glob("*-*.parquet")})
    for path in files:
        if (found := _read_format(path)) != FORMAT:
            raise DataError(
                f"{path} is a log of format {found} and this version reads format {FORMAT}: "
                "read it with the version that wrote it, or move it out of the directory"
            )


def _read_format(path: Path) -> int:
    """Version of the format of a file; 1 is the one that did not say so."""
    if path.suffix == ".parquet":
        metadata = pq.read_schema(path).metadata or {}
        return int(metadata.get(_FORMAT_KEY, b"1"))
    try:
        first = next(_lines(path), {"format": FORMAT})
    except FileNotFoundError:  # it was renamed or turned into tables just now
        return FORMAT
    return int(first.get("format", 1))


def _is_locked(path: Path) -> bool:
    """Whether the process that a file belongs to still runs."""
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # that of another user, or sealed just now, is none of ours either
        return True
    return False


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut in two when the process was killed
            if isinstance(record, dict):
                yield record


def _records(path: Path) -> list[dict[str, Any]]:
    """Decisions of a file; one that was written again, with more draws, counts as it was last."""
    return list({record.get("id"): record for record in _lines(path)}.values())


def _decisions(records: list[dict[str, Any]]) -> pa.Table:
    rows = [{name: record.get(name) for name in DECISIONS.names} for record in records]
    return pa.Table.from_pylist(rows, schema=DECISIONS)


def _samples(records: list[dict[str, Any]]) -> pa.Table:
    """One row a draw; the same question asked again goes on counting its samples."""
    rows: list[dict[str, Any]] = []
    drawn: dict[str, int] = {}
    for record in records:
        name = f"{record['key']:016x}"
        for sample in record.get("samples", ()):
            number = drawn[name] = drawn.get(name, -1) + 1
            row = {column: sample.get(column) for column in SAMPLES.names}
            rows.append(
                row
                | {
                    "question_id": name,
                    "question": record.get("question"),
                    "model": record.get("upstream_model"),
                    "sample": number,
                    "decision_id": record.get("id"),
                }
            )
    return pa.Table.from_pylist(rows, schema=SAMPLES)


def _write(path: Path, table: pa.Table) -> None:
    """Write a table whole or not at all."""
    beside = path.with_suffix(".part")
    table = table.replace_schema_metadata({_FORMAT_KEY: str(FORMAT).encode()})
    pq.write_table(table, beside, compression="zstd")
    beside.replace(path)
