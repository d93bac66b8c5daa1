"""Formats: files of Parquet, JSON lines or CSV, read as ids and texts from any row on.

A file of lines is indexed once: its rows are counted, and the position of every 65,536th row is
kept, so that a reader can start near any row. A line that cannot be parsed is a row without a text;
it never stops the others. Blank lines are no rows. A CSV file is read as a whole. This module does
not know what the texts are for.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json as pj
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.datasets.layout import split_chat
from adacompute.datasets.records import example_types, first_line
from adacompute.datasets.text_rows import csv_options

PARQUET, JSON_LINES, CSV = "parquet", "jsonl", "csv"

Piece = tuple[pa.Array, pa.Array]
"""Ids and texts of consecutive rows."""

EXAMPLE_LINES = 100
"""Rows in which the columns of a file of lines are looked for."""

READ_ROWS = 1 << 14
"""Rows that are decoded at once."""

BUFFER_BYTES = 1 << 20
"""Bytes of a Parquet column that are read at once, so that large row groups stay on disk."""

INDEX_STEP = 1 << 16
"""Rows between two positions in the index."""

CHUNK_BYTES = 1 << 22
"""Bytes that are read and parsed at once; longer lines are read as a whole."""

_WHITE_SPACE = b" \t\r\n\v\f"


class LineIndex(NamedTuple):
    """Number of rows, and the byte at which rows 0, INDEX_STEP, 2 · INDEX_STEP, … begin."""

    n_rows: int
    starts: tuple[int, ...]


def index_lines(stream: Any) -> LineIndex:  # noqa: ANN401 - pyarrow has no types
    """Count the rows of a stream, and keep where some of them begin."""
    n_rows, at, starts = 0, 0, []
    for chunk in _chunks(stream):
        begin = _row_starts(chunk)
        first = -n_rows % INDEX_STEP
        starts += (begin[first::INDEX_STEP] + at).tolist()
        n_rows, at = n_rows + len(begin), at + len(chunk)
    return LineIndex(n_rows, tuple(starts))


def read_examples(stream: Any, kind: str, path: str) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Return the columns of a file, those of lists with a list."""
    if kind == PARQUET:
        return example_types(open_parquet(stream, path).schema_arrow)
    if kind == CSV:
        with _csv_errors(path), pa.csv.open_csv(stream, **csv_options()) as file:
            return dict.fromkeys(file.schema.names)
    lines = (line for chunk in _chunks(stream) for line in chunk.split(b"\n"))
    rows = [_parse_row(line) for line in islice(lines, EXAMPLE_LINES)]
    return {name: value for row in reversed(rows) for name, value in row.items()}


def read_lines(
    stream: Any,  # noqa: ANN401 - pyarrow has no types
    *,
    text_column: str,
    id_column: str,
) -> Iterator[Piece]:
    """Yield the ids and texts of the rows of a stream, as string arrays.

    An id is null if the row has none, a text if it is missing or cannot be used.
    """
    for chunk in _chunks(stream):
        n_rows = len(_row_starts(chunk))
        if n_rows:
            found = _parse_fast(chunk, text_column, id_column)
            if found is None or len(found[0]) != n_rows:
                found = _parse_rows(chunk, text_column, id_column)
            yield found


def _chunks(stream: Any) -> Iterator[bytes]:  # noqa: ANN401 - pyarrow has no types
    """Yield whole lines, about ``CHUNK_BYTES`` at once."""
    parts: list[bytes] = []
    while data := stream.read(CHUNK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts = []
        parts.append(data[end:])
    if last := b"".join(parts):
        yield last


def _row_starts(chunk: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where the rows of a chunk begin; blank lines are no rows."""
    data = np.frombuffer(chunk, dtype=np.uint8)
    newline = np.flatnonzero(data == ord("\n"))
    ends = newline if chunk.endswith(b"\n") else np.append(newline, len(data))
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    # An object begins with a brace; only lines that begin with something else may be blank.
    unusual = np.flatnonzero(data[np.minimum(starts, len(data) - 1)] != ord("{"))
    blank = [i for i in unusual.tolist() if not chunk[starts[i] : ends[i]].strip(_WHITE_SPACE)]
    return np.delete(starts, blank) if blank else starts


def _parse_fast(chunk: bytes, text_column: str, id_column: str) -> Piece | None:
    """Parse all rows at once; None if one of them is unusual."""
    schema = pa.schema([(id_column, pa.string()), (text_column, pa.string())])
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    block = pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1)
    try:
        table = pj.read_json(io.BytesIO(chunk), read_options=block, parse_options=options)
    except pa.ArrowInvalid:
        return None
    columns = [table[name].combine_chunks() for name in (id_column, text_column)]
    return columns[0], columns[1]


def _parse_rows(chunk: bytes, text_column: str, id_column: str) -> Piece:
    """Parse one row after another."""
    ids, texts = [], []
    for line in chunk.split(b"\n"):
        if line.strip(_WHITE_SPACE):
            row = _parse_row(line)
            ids.append(_as_id(row.get(id_column)))
            value = row.get(text_column)
            texts.append(last_question(value) if isinstance(value, list) else _as_text(value))
    return pa.array(ids, pa.string()), pa.array(texts, pa.string())


def _parse_row(line: bytes) -> dict[str, Any]:
    """Return the object of a line, empty if there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _as_id(value: object) -> str | None:
    """Return an id as text; None if it is neither a text nor a whole number."""
    if isinstance(value, bool):
        return None
    return _as_text(str(value) if isinstance(value, int) else value)


def _as_text(value: object) -> str | None:
    """Return a text that can be encoded; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def last_question(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return the last message of the user in a chat; None if there is none."""
    try:
        return None if value is None else _as_text(split_chat(value)["question"])
    except ValueError:
        return None


def read_csv(stream: Any, path: str, columns: tuple[str, str]) -> pa.Table:  # noqa: ANN401 - as above
    """Read the texts and the ids of a CSV file, null if it has no such columns."""
    with _csv_errors(path):
        return pa.csv.read_csv(stream, **csv_options(columns))


@contextmanager
def _csv_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} cannot be read as CSV: {first_line(error)}") from None


def open_parquet(stream: Any, path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Read the footer of a Parquet file."""
    try:
        return pq.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no Parquet file: {error}") from None


def row_groups(document: Any) -> tuple[int, ...]:  # noqa: ANN401 - pyarrow has no types
    """Return the rows at which the row groups of a Parquet file begin."""
    sizes = [document.metadata.row_group(i).num_rows for i in range(document.num_row_groups)]
    return tuple(accumulate([0, *sizes[:-1]])) if sizes else ()


def read_parquet(
    stream: Any,  # noqa: ANN401 - pyarrow has no types
    path: str,
    first: int,
    *,
    text_column: str,
    id_column: str,
) -> Iterator[Piece]:
    """Yield the rows of a Parquet file from one on."""
    document = open_parquet(stream, path)
    columns = [name for name in (id_column, text_column) if name in document.schema_arrow.names]
    begins = row_groups(document)
    group = bisect_right(begins, first) - 1
    skip, groups = first - begins[group], list(range(group, len(begins)))
    for batch in document.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
        piece = batch.slice(min(skip, len(batch)))
        skip = max(0, skip - len(batch))
        if len(piece):
            yield as_strings(piece, id_column, path), as_strings(piece, text_column, path)


def as_strings(batch: pa.RecordBatch, name: str, path: str) -> pa.Array:
    """Return a column as strings; all are null if there is no such column."""
    if name not in batch.schema.names:
        return pa.nulls(len(batch), pa.string())
    column = batch.column(name)
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
        return pa.array(map(last_question, column.to_pylist()), pa.string())
    if pa.types.is_string(column.type):
        return _valid_strings(column)
    try:
        return _valid_strings(column.cast(pa.string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
            return _valid_strings(column.cast(pa.binary()), is_checked=False)
        raise DataError(
            f"the column {name!r} of {path} has type {column.type}, it must hold strings"
        ) from None


def _valid_strings(column: pa.Array, *, is_checked: bool = True) -> pa.Array:
    """Return strings, null where bytes are not UTF-8: Parquet files may contain any bytes."""
    if is_checked:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            column = column.view(pa.binary())
        else:
            return column
    return pa.array([_decode(one) for one in column.to_pylist()], pa.string())


def _decode(data: bytes | None) -> str | None:
    """Decode UTF-8; None if it is not valid."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
