"""Records: read JSON documents, JSON lines and rows of Parquet files, and access their values.

An invalid file raises a DataError of one sentence that names the file and, if possible, the line.
Values of the wrong type count as absent, because logs change between versions. This module does not
interpret the records.
"""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.memory import check_json, check_memory, check_parquet

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


MAX_LINE_BYTES = 1 << 28
"""Longer lines of JSON are rejected."""


class JsonNumber(str):
    """A number as it is written in a JSON text, distinguished from a string by its class."""

    __slots__ = ()


_PLAIN = json.JSONDecoder()
_EXACT = json.JSONDecoder(
    parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=lambda _: None
)


def parse_json(data: bytes, name: str, *, exact: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Parse a document; ``exact`` returns numbers as ``JsonNumber`` and NaN as None."""
    check_json(data, name)
    try:
        return (_EXACT if exact else _PLAIN).decode(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise DataError(f"{name} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{name} cannot be read as JSON: {first_line(error)}") from None


def read_bytes(path: Path) -> bytes:
    """Read a file; DataError if that fails."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        check_memory(path.stat().st_size, str(path))
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_records(path: Path, *, exact: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read JSON lines, each with its line number from 1; empty lines are skipped."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES), b""), 1):
                if len(line) == MAX_LINE_BYTES:
                    raise DataError(
                        f"line {number} of {path} has {MAX_LINE_BYTES} bytes or more, above the "
                        "limit: is it a file of lines?"
                    )
                if not line.strip():
                    continue
                location = f"line {number} of {path}"
                record = parse_json(line, location, exact=exact)
                if not isinstance(record, dict):
                    raise DataError(f"{location} is not a JSON object but {str(record)[:50]!r}")
                yield number, record
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_located(path: Path, columns: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read JSON lines, a JSON list or a Parquet file, each record with its location in words."""
    if path.suffix.lower() == ".json":
        document = parse_json(read_bytes(path), str(path))
        if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
            raise DataError(f"{path} is not a list of records")
        yield from ((f"record {i} of {path}", row) for i, row in enumerate(document, 1))
    elif path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            rows = read_parquet(file, columns, path).to_pylist()
        yield from ((f"row {i} of {path}", row) for i, row in enumerate(rows, 1))
    else:
        yield from ((f"line {line} of {path}", row) for line, row in read_records(path))


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; DataError if it cannot be read."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def read_parquet(file: pq.ParquetFile, columns: Collection[str], path: Path) -> pa.Table:
    """Read those of some columns that a file has; DataError if they would need too much memory."""
    names = [name for name in file.schema_arrow.names if name in columns]
    check_parquet(file.metadata, names, str(path))
    return file.read(columns=names)


def read_keys(path: Path) -> set[str]:
    """Return the keys of a file's first record, to recognise its format."""
    match path.suffix.lower():
        case ".parquet":
            with open_parquet(path) as file:
                return set(file.schema_arrow.names)
        case ".json":
            document = parse_json(read_bytes(path), str(path))
            record = document[0] if isinstance(document, list) and document else document
            return set(record) if isinstance(record, dict) else set()
        case ".jsonl" | ".ndjson":
            return set(next((record for _, record in read_records(path)), ()))
        case ".csv":
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
                return set(next(csv.reader(lines), ()))
    return set()


def find_split(path: Path) -> str:
    """Return ``-test`` or ``-train`` if the file name contains it, else an empty string."""
    return next((f"-{split}" for split in ("test", "train") if split in path.name.lower()), "")


def get_in(record: Any, *keys: str | int) -> Any:  # noqa: ANN401 - any JSON
    """Return the value at a path of keys and indices; None if there is none.

    >>> get_in({"output": {"choices": [{"text": "4"}]}}, "output", "choices", 0, "text")
    '4'
    """
    for key in keys:
        if isinstance(key, int):
            exists = isinstance(record, list) and len(record) > key
        else:
            exists = isinstance(record, dict) and key in record
        if not exists:
            return None
        record = record[key]
    return record


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def as_text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return a string, or a number as a string, else None; lone surrogates become ``?``."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if as_number(value) is None else str(value)


def as_number(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Return a number, else None; booleans and NaN are not numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value == value else None  # noqa: PLR0124 - NaN is not itself
