"""Records: read JSON documents, JSON lines and rows of Parquet files, and access their values.

An invalid file raises a DataError of one sentence that names the file and, if possible, the line.
Values of the wrong type count as absent, because logs change between versions. This module does not
interpret the records.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.memory import check_json, check_memory, check_parquet
from adacompute.core.types import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


MAX_LINE_BYTES = 1 << 28
"""Longer lines of JSON are rejected."""

SNIFFED_BYTES = 4096

COMPRESSED = frozenset({".jsonl", ".ndjson", ".csv"})
"""Files that are also read compressed, with ``.gz`` after their suffix."""


class JsonNumber(str):
    """A number as it is written in a JSON text, distinguished from a string by its class."""

    __slots__ = ()


_PLAIN = json.JSONDecoder()
_EXACT = json.JSONDecoder(
    parse_int=JsonNumber, parse_float=JsonNumber, parse_constant=lambda _: None
)


class Problems:
    """All that is wrong with a source, to be said at once.

    ``names`` are the columns of the source, which are listed if one is missing.
    """

    MAX_SHOWN = 10

    def __init__(self, source: object) -> None:
        self.source = source
        self.names: list[str] = []
        self._texts: dict[str, str] = {}

    def add(self, text: str, about: str) -> None:
        """Add a problem, unless there is one about the same column."""
        self._texts.setdefault(about, text)

    def check(self) -> None:
        """Raise DataError if there is any problem."""
        texts = list(self._texts.values())
        if not texts:
            return
        names = ", ".join(self.names)
        is_missing = any(text.startswith("no column") for text in texts)
        remedy = (
            f"; its columns are {names}: say which is which, such as --columns question=COLUMN,"
            "completion=COLUMN,correct=COLUMN (columns= in Python)"
        )
        end = remedy if is_missing else ""
        if len(texts) == 1:
            raise DataError(f"{self.source}: {texts[0]}{end}")
        shown = [f"({i}) {text}" for i, text in enumerate(texts[: self.MAX_SHOWN], 1)]
        shown += [f"and {len(texts) - len(shown)} more"] if len(texts) > len(shown) else []
        raise DataError(f"{self.source} has {len(texts)} problems: {'; '.join(shown)}{end}")


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


def read_records(path: Path, *, exact: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read JSON lines or a JSON list, each record with its place; empty lines are skipped."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    read = _read_list if format_of(path) == ".json" else _read_lines
    for where, record in read(path, exact=exact):
        if not isinstance(record, dict):
            raise DataError(f"{where} of {path} is not a JSON object but {str(record)[:50]!r}")
        yield where, record


def _read_list(path: Path, *, exact: bool) -> Iterator[tuple[str, Any]]:
    document = parse_json(read_bytes(path), str(path), exact=exact)
    if not isinstance(document, list):
        raise DataError(f"{path} is not a list of records")
    yield from ((f"record {number}", record) for number, record in enumerate(document, 1))


def _read_lines(path: Path, *, exact: bool) -> Iterator[tuple[str, Any]]:
    try:
        with gzip.open(path) if is_compressed(path) else path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES), b""), 1):
                if len(line) == MAX_LINE_BYTES:
                    raise DataError(
                        f"line {number} of {path} has {MAX_LINE_BYTES} bytes or more, above the "
                        "limit: is it a file of lines?"
                    )
                if line.strip():
                    where = f"line {number}"
                    yield where, parse_json(line, f"{where} of {path}", exact=exact)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise DataError(f"{path} cannot be read: {reason}") from None


def is_compressed(path: Path) -> bool:
    """Whether the name of a file of rows says that it is compressed."""
    return path.suffix.lower() == ".gz" and Path(path.stem).suffix.lower() in COMPRESSED


def format_of(path: Path) -> str:
    """Return the suffix of a file in small letters, without that of a compressed one.

    >>> from pathlib import Path
    >>> format_of(Path("samples.JSONL.gz"))
    '.jsonl'
    """
    return Path(path.stem if is_compressed(path) else path.name).suffix.lower()


def is_json_list(path: Path) -> bool:
    """Whether a file of JSON begins with a list."""
    with path.open("rb") as file:
        return file.read(SNIFFED_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


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


def read_examples(path: Path, n_rows: int = 1) -> dict[str, Any]:
    """Return the columns of a file, each with a value from its first rows, or None.

    Of a JSON file that is one record, they are its keys. Lists are found in CSV files too; those of
    a Parquet file are empty.
    """
    match format_of(path):
        case ".parquet":
            with open_parquet(path) as file:
                return example_types(file.schema_arrow)
        case ".json":
            document = parse_json(read_bytes(path), str(path), exact=True)
            records = document if isinstance(document, list) else [document]
        case ".jsonl" | ".ndjson":
            records = [record for _, record in islice(read_records(path, exact=True), n_rows)]
        case ".csv":
            records = _read_cells(path, n_rows)
        case _:
            records = []
    found: dict[str, Any] = {}
    for record in records[:n_rows]:
        for name, value in record.items() if isinstance(record, dict) else ():
            found[name] = value if found.get(name) is None else found[name]
    return found


def example_types(schema: pa.Schema) -> dict[str, Any]:
    """Return the columns of a table, those of lists with an empty one."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return {one.name: [] if any(is_(one.type) for is_ in lists) else None for one in schema}


def _read_cells(path: Path, n_rows: int) -> list[dict[str, Any]]:
    """Return the first rows of a CSV file, with the lists that cells spell."""
    opened = gzip.open if is_compressed(path) else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as lines:
            rows = csv.reader(lines)
            names = next(rows, [])
            records: list[dict[str, Any]] = [dict.fromkeys(names)]
            with suppress(csv.Error):
                for row in islice(rows, n_rows):
                    cells = zip(names, row, strict=False)
                    records.append({name: parse_list(cell) or cell or None for name, cell in cells})
            return records
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None


def parse_list(text: str) -> list[Any] | None:
    """Return the list that a text spells as JSON, with exact numbers; None if it spells none."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = _EXACT.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


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
        return replace_surrogates(value)
    return None if as_number(value) is None else str(value)


def as_number(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Return a number, else None; booleans and NaN are not numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and value == value else None  # noqa: PLR0124 - NaN is not itself
