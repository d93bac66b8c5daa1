"""Decisions: an append-only log of the gateway's decisions, JSON lines compacted into Parquet.

Each decision is one line, written by one system call before the last byte of the reply is sent, so
a served request is in the log even if the process is killed. Readers skip a line that was cut off.
Each process appends to a file of its own and keeps it locked, so any machine that shares the
directory can see which files are no longer in use. Rotated files are compacted into
two tables, by one process at a time: ``samples-*.parquet``, one row per sample, which every run can
import, and ``decisions-*.parquet``, one row per decision. Old tables are deleted by age and total
size. This module knows nothing of what the decisions mean.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.memory import check_json
from adacompute.storage.decision_columns import (
    DECISION_COLUMNS,
    LOGGED_SAMPLE_COLUMNS,
    make_schema,
)
from adacompute.storage.regular_files import check_regular, read_table

FORMAT = 3
"""Version of the log's fields; logs of other versions are rejected."""

BATCH_VALUES = 2_000
"""Decisions and samples that are held in memory while a file is compacted."""

_FORMAT_KEY = b"adacompute.log_format"

ACTIVE, FULL, COMPACTED = "active-*.jsonl", "full-*.jsonl", "decisions-*.parquet"
SAMPLE_TABLES = "samples-*.parquet"
DAY_S = 86_400.0

DECISIONS = make_schema(DECISION_COLUMNS)
SAMPLES = make_schema(LOGGED_SAMPLE_COLUMNS)


@dataclass
class DecisionLog:
    """A log in a directory. Append and rotate from one thread; compact from any."""

    directory: Path
    rotate_bytes: int = 64_000_000
    keep_days: float = 30.0
    keep_bytes: int = 10_000_000_000
    _active: Path = field(default=Path(), repr=False)
    _descriptor: int = field(default=-1, repr=False)
    _size: int = field(default=0, repr=False)
    _is_torn: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._lock():
            for path in self.directory.glob(ACTIVE):
                if not _is_locked(path):
                    self._mark_full(path)

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write one decision; True if the file has reached its size and should be rotated.

        OSError if it is lost, because the disk is full or cannot be written.
        """
        if self._descriptor < 0:
            self._open()
        record = {"format": FORMAT, **record}
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        line = b"\n" + line if self._is_torn else line  # end the line that a full disk cut off
        self._is_torn = os.write(self._descriptor, line) < len(line)
        self._size += len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._active))
        return self._size >= self.rotate_bytes

    def _open(self) -> None:
        """Start a file; it gets its final name only once it is locked."""
        name = f"{time.time_ns()}-{os.getpid()}.jsonl"
        unlocked = self.directory / f"new-{name}"
        descriptor = os.open(unlocked, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._active = unlocked.rename(self.directory / f"active-{name}")
        self._descriptor, self._size, self._is_torn = descriptor, 0, False

    def rotate(self) -> None:
        """Close the current file, ready to be compacted; the next decision starts a new one."""
        if self._descriptor >= 0:
            try:
                self._mark_full(self._active)
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def _mark_full(self, path: Path) -> None:
        path.replace(self.directory / f"full-{time.time_ns()}-{os.getpid()}.jsonl")

    def compact(self) -> int:
        """Turn rotated files into tables, apply the retention, and return the decisions compacted.

        This is slow. Where it must not delay anything, use ``compact_in_process``.
        """
        n_decisions = 0
        with self._lock():
            for path in sorted(self.directory.glob(FULL)):
                if _read_format(path) != FORMAT:
                    continue
                n_decisions += self._compact_file(path)
            self._apply_retention()
        return n_decisions

    def compact_in_process(self) -> None:
        """Compact in a process of low priority, and wait for it; raise OSError if it fails."""
        settings = {"keep_days": self.keep_days, "keep_bytes": self.keep_bytes}
        command = [sys.executable, "-m", __name__, str(self.directory), json.dumps(settings)]
        done = subprocess.run(  # noqa: S603 - our own module
            command, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if done.returncode != 0:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise OSError(f"a process exited with {done.returncode}: {reason}")

    def _compact_file(self, path: Path) -> int:
        """Turn a file into two tables, part by part, and return its number of decisions."""
        name, n_decisions = path.stem.removeprefix("full-"), 0
        n_samples: Counter[str] = Counter()
        with (
            _open_table(self.directory / f"samples-{name}.parquet", SAMPLES) as samples,
            _open_table(self.directory / f"decisions-{name}.parquet", DECISIONS) as decisions,
        ):
            for records in _record_batches(path):
                decisions.write_table(_decisions(records))
                samples.write_table(_samples(records, n_samples))
                n_decisions += len(records)
        path.unlink()
        return n_decisions

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Wait until no other thread or process renames or compacts files of this directory."""
        with (self.directory / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _apply_retention(self) -> None:
        """Delete the oldest tables until all are within ``keep_days`` and ``keep_bytes``."""
        files = sorted(self.directory.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
        size = sum(path.stat().st_size for path in files)
        for path in files:
            status = path.stat()
            if time.time() - status.st_mtime < self.keep_days * DAY_S and size <= self.keep_bytes:
                break
            size -= status.st_size
            path.unlink()


def find_files(directory: Path) -> list[Path]:
    """Return the files of a log; none if the path is no directory."""
    return sorted({*directory.glob("*-*.jsonl"), *directory.glob("*-*.parquet")})


def has_decisions(directory: Path) -> bool:
    """Whether a directory has files of a log, of whatever version."""
    return any(any(directory.glob(one)) for one in (ACTIVE, FULL, COMPACTED))


def read_decisions(directory: Path, columns: Collection[str] = ()) -> pa.Table:
    """All decisions of a log, compacted or not, by time; the last record of an id counts.

    With ``columns`` only these are read, with ``id`` and ``time``: a log can be larger than memory.
    """
    check_format(directory)
    wanted = {"id", "time", *(columns or DECISIONS.names)}
    uncompacted: list[pa.Table] = []
    for pattern in (ACTIVE, FULL):  # in the order in which a file changes its name
        for path in sorted(directory.glob(pattern), reverse=True):
            with suppress(FileNotFoundError):
                table = _read_uncompacted(path)
                uncompacted.append(table.select([n for n in DECISIONS.names if n in wanted]))
    tables = [_read_compacted(path, wanted) for path in sorted(directory.glob(COMPACTED))]
    tables += reversed(uncompacted)
    if not tables:
        raise DataError(f"{directory} holds no decisions: is it the directory of a gateway's log?")
    table = pa.concat_tables(tables, promote_options="default")
    last = {name: row for row, name in enumerate(table["id"].to_pylist())}
    return table.take(pa.array(last.values(), pa.int64())).sort_by("time")


def read_today(directory: Path) -> tuple[pa.Table, int, int]:
    """Return the samples of requests that were answered as today, their number, and that of all.

    Requests that got fewer samples than today's, or no answer, are left out. The samples of a
    question are numbered over all of its requests.
    """
    logged = read_decisions(directory, ("today", "incomplete", "answers"))
    left = {
        row["id"]
        for row in logged.to_pylist()
        if row["today"] and row["answers"] and not row["incomplete"]
    }
    n_kept, tables = len(left), list[pa.Table]()
    for pattern in (ACTIVE, FULL):  # in the order in which a file changes its name
        for path in sorted(directory.glob(pattern)):
            with suppress(FileNotFoundError):
                records = [one for one in read_records(path) if one.get("id") in left]
                left -= {one["id"] for one in records}
                tables.append(_samples(records, Counter()))
    for path in sorted(directory.glob(SAMPLE_TABLES)):
        table = read_table(path, _read_schema(path).names)
        tables.append(table.filter(pc.is_in(table["decision_id"], pa.array(left, pa.string()))))
    table = pa.concat_tables(tables, promote_options="permissive").sort_by("question_id")
    n_samples: Counter[str] = Counter()
    numbers = []
    for question_id in table["question_id"].to_pylist():
        numbers.append(n_samples[question_id])
        n_samples[question_id] += 1
    at = table.column_names.index("sample")
    numbered = table.set_column(at, SAMPLES.field("sample"), pa.array(numbers, pa.int32()))
    return numbered, n_kept, len(logged)


def _read_compacted(path: Path, wanted: Collection[str]) -> pa.Table:
    """Read the decisions of a table; a column that it lacks is null."""
    known = _read_schema(path).names
    names = [name for name in DECISIONS.names if name in wanted and name in known]
    try:
        if "id" in names:
            table = read_table(path, names)
            return table.select(names).cast(pa.schema([DECISIONS.field(name) for name in names]))
    except (pa.ArrowException, ValueError):
        pass
    raise DataError(f"{path} holds no decisions: move it out of the directory")


def _read_uncompacted(path: Path) -> pa.Table:
    """Read the decisions of a file of lines."""
    try:
        return _decisions(list(read_records(path)))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} holds no decisions ({reason}): move it away") from None


def check_format(log: Path) -> None:
    """Raise DataError for a log, or one of its files, that another version of the format wrote.

    A file that is not part of a log is not checked.
    """
    files = find_files(log)
    if log.suffix == ".parquet" and log.is_file():
        files = [log] if "decision_id" in _read_schema(log).names else []
    for path in files:
        if (version := _read_format(path)) != FORMAT:
            raise DataError(
                f"{path} has log format {version}, and this version reads {FORMAT}: "
                "read it with the version that wrote it, or move it out of the directory"
            )


def _read_format(path: Path) -> int:
    """Format version of a file; files of format 1 do not name one."""
    if path.suffix == ".parquet":
        version: Any = (_read_schema(path).metadata or {}).get(_FORMAT_KEY, b"1").decode("latin-1")
        return int(version) if version.isdecimal() else 0
    try:
        version = next(read_records(path), {"format": FORMAT}).get("format", 1)
    except FileNotFoundError:  # it was just renamed or compacted
        return FORMAT
    return version if isinstance(version, int) else 0


def _read_schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read ({reason})") from None


def _is_locked(path: Path) -> bool:
    """Whether the process that writes a file still runs."""
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also if another user owns it, or it was just renamed
        return True
    return False


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of lines; a line that is cut off, or is none, is passed over."""
    with check_regular(path).open("rb") as file:
        for line in file:
            check_json(line, str(path))
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # cut off when the process was killed, or not ours
            if isinstance(record, dict):
                yield record


def _record_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the decisions of a file in batches of limited size."""
    batch: list[dict[str, Any]] = []
    n_values = 0
    for record in read_records(path):
        batch.append(record)
        n_values += 1 + len(record.get("samples", ()))
        if n_values >= BATCH_VALUES:
            yield batch
            batch, n_values = [], 0
    if batch:
        yield batch


def _decisions(records: list[dict[str, Any]]) -> pa.Table:
    rows = [{name: record.get(name) for name in DECISIONS.names} for record in records]
    return pa.Table.from_pylist(rows, schema=DECISIONS)


def _samples(records: list[dict[str, Any]], n_samples: Counter[str]) -> pa.Table:
    """One row per sample; those of a repeated question are numbered on from ``n_samples``."""
    rows: list[dict[str, Any]] = []
    for record in records:
        question_id = f"{record['key']:016x}"
        for sample in record.get("samples", ()):
            number = n_samples[question_id]
            n_samples[question_id] += 1
            row = {column: sample.get(column) for column in SAMPLES.names}
            rows.append(
                row
                | {
                    "question_id": question_id,
                    "question": record.get("question"),
                    "model": record.get("upstream_model"),
                    "sample": number,
                    "decision_id": record.get("id"),
                }
            )
    return pa.Table.from_pylist(rows, schema=SAMPLES)


@contextmanager
def _open_table(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Open a table for writing; it gets its name only once it is complete."""
    temporary = path.with_suffix(".part")
    schema = schema.with_metadata({_FORMAT_KEY: str(FORMAT).encode()})
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        yield writer
    temporary.replace(path)


if __name__ == "__main__":
    os.nice(19)
    DecisionLog(Path(sys.argv[1]), **json.loads(sys.argv[2])).compact()
