"""Records: JSON documents and lines, rows of Parquet files, and the values in them.

Whatever is wrong with a file ends in one sentence that names the file and, where there is one, the
line. Values of the wrong kind are taken as absent, for logs change from version to version. It
knows nothing of what the records mean.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


class Spelled(str):
    """A number of a JSON text as it is spelled there, told from a string by its class."""

    __slots__ = ()


_PLAIN = json.JSONDecoder()
_EXACT = json.JSONDecoder(parse_int=Spelled, parse_float=Spelled, parse_constant=lambda _: None)


def parse_json(data: bytes, name: str, *, exact: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Parse a document; ``exact`` keeps numbers as they are spelled, and takes NaN as null."""
    try:
        return (_EXACT if exact else _PLAIN).decode(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise DataError(f"{name} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{name} cannot be read as JSON: {reason_of(error)}") from None


def read_bytes(path: Path) -> bytes:
    """Read a file, or say in one sentence why not."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_records(path: Path, *, exact: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read JSON lines, each with its number from 1 on; empty lines are left out."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"line {number} of {path}"
                record = parse_json(line, place, exact=exact)
                if not isinstance(record, dict):
                    raise DataError(f"{place} is no JSON object but {str(record)[:50]!r}")
                yield number, record
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_places(path: Path, columns: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read JSON lines, a JSON list or the rows of a Parquet file, each with its place in words."""
    if path.suffix.lower() == ".json":
        document = parse_json(read_bytes(path), str(path))
        if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
            raise DataError(f"{path} is no list of records")
        yield from ((f"record {i} of {path}", row) for i, row in enumerate(document, 1))
    elif path.suffix.lower() == ".parquet":
        with open_parquet(path) as file:
            names = [name for name in file.schema_arrow.names if name in columns]
            rows = file.read(columns=names).to_pylist()
        yield from ((f"row {i} of {path}", row) for i, row in enumerate(rows, 1))
    else:
        yield from ((f"line {line} of {path}", row) for line, row in read_records(path))


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, or say in one sentence why it cannot be read."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {reason_of(error)}") from None


def find_names(path: Path) -> set[str]:
    """Return the names in the first record of a file: a look at what it is."""
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
    return set()


def find_split(path: Path) -> str:
    """Return the split that the name of a file tells, a dash before it."""
    return next((f"-{split}" for split in ("test", "train") if split in path.name.lower()), "")


def dig(record: Any, *keys: str | int) -> Any:  # noqa: ANN401 - any JSON
    """Follow keys and places into a record; None where there is nothing.

    >>> dig({"output": {"choices": [{"text": "4"}]}}, "output", "choices", 0, "text")
    '4'
    """
    for key in keys:
        if isinstance(key, int):
            inside = isinstance(record, list) and len(record) > key
        else:
            inside = isinstance(record, dict) and key in record
        if not inside:
            return None
        record = record[key]
    return record


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says, for a sentence of ours."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def text_of(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return a string, or a number as a string; halves of surrogate pairs become question marks."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if number_of(value) is None else str(value)


def number_of(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Return a number that is one: neither true nor false, and not NaN."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value == value else None  # noqa: PLR0124 - NaN is not itself
