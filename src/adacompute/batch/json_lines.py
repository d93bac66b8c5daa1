"""JSON lines: files with one JSON object per line, read as tables from any row on.

A file is indexed once: its rows are counted, and the position of every 65,536th row is kept, so
that a reader can start near any row. A line that cannot be parsed is a row without a text; it never
stops the others. Blank lines are no rows. This module does not know what the texts are for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

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


def read_lines(
    stream: Any,  # noqa: ANN401 - pyarrow has no types
    *,
    text_column: str,
    id_column: str,
) -> Iterator[tuple[pa.Array, pa.Array]]:
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


def _parse_fast(chunk: bytes, text_column: str, id_column: str) -> tuple[pa.Array, pa.Array] | None:
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


def _parse_rows(chunk: bytes, text_column: str, id_column: str) -> tuple[pa.Array, pa.Array]:
    """Parse one row after another."""
    ids, texts = [], []
    for line in chunk.split(b"\n"):
        if line.strip(_WHITE_SPACE):
            row = _parse_row(line)
            ids.append(_as_id(row.get(id_column)))
            texts.append(_as_text(row.get(text_column)))
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
