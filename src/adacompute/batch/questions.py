"""Questions: files of questions, read in a fixed order as blocks.

A source is a list of Parquet or JSON Lines files, local or on any filesystem that pyarrow or fsspec
can open. Files are sorted by their path, so each row has one position in the whole source. Rows are
counted when the source is opened: from the footers of Parquet files, by one pass over JSON lines.
Blocks are read one after another and may start anywhere; memory does not grow with the number of
rows. A row without a usable text is part of its block, with None as its text.

This module knows nothing of policies, prices or samples.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from adacompute.batch.json_lines import INDEX_STEP, index_lines, read_lines
from adacompute.core.errors import ConfigError, DataError

TEXT_COLUMN, ID_COLUMN = "question", "question_id"
PARQUET, JSON_LINES = "parquet", "jsonl"
SUFFIXES = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".jsonl.gz": JSON_LINES,
    ".ndjson.gz": JSON_LINES,
}
"""Formats by how the name of a file ends."""

_NAMES = "its name must end in .parquet, .jsonl or .jsonl.gz"

READ_ROWS = 1 << 14
"""Rows that are decoded at once."""

BUFFER_BYTES = 1 << 20
"""Bytes of a Parquet column that are read at once, so that large row groups stay on disk."""

OPENERS = 16
"""Files that are opened at the same time to count their rows."""


@dataclass(frozen=True)
class QuestionFile:
    """One file of questions: its rows are ``first_position`` and the following ``n_rows`` − 1.

    ``starts`` are the bytes at which every 65,536th row of an uncompressed file of lines begins,
    and ``groups`` are the rows at which the row groups of a Parquet file begin.
    """

    path: str
    format: str
    n_bytes: int
    n_rows: int
    first_position: int = 0
    starts: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class QuestionSource:
    """Files of questions in a fixed order, and the columns that hold texts and ids."""

    files: tuple[QuestionFile, ...]
    n_questions: int
    text_column: str = TEXT_COLUMN
    id_column: str = ID_COLUMN

    @property
    def columns(self) -> tuple[str, str]:
        """The columns that hold texts and ids."""
        return self.text_column, self.id_column

    @property
    def fingerprint(self) -> str:
        """Hash of the paths, sizes and rows of the files, to recognise the same source again."""
        known = [[file.path, file.n_bytes, file.n_rows, file.first_position] for file in self.files]
        document = json.dumps([known, self.text_column, self.id_column])
        return hashlib.blake2b(document.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class QuestionBlock:
    """Consecutive questions: the position of the first one, their ids and their texts.

    A text is None where the row has no usable text. Rows without an id get their position as id.
    """

    position: int
    ids: list[str]
    texts: list[str | None]

    def __len__(self) -> int:
        return len(self.ids)


class QuestionArrays(NamedTuple):
    """A block of questions as Arrow arrays of strings; a text that cannot be used is null."""

    position: int
    ids: pa.Array
    texts: pa.Array


def open_questions(
    paths: Sequence[str], *, text_column: str = TEXT_COLUMN, id_column: str = ID_COLUMN
) -> QuestionSource:
    """Find the files of questions in files, directories and globs, and count their rows."""
    found: dict[str, None] = {}
    for path in paths:
        found |= dict.fromkeys(_find_files(str(path)))
    if not found:
        raise DataError(f"there are no Parquet or JSON Lines files in {', '.join(map(str, paths))}")
    with ThreadPoolExecutor(OPENERS) as pool:
        counted = list(pool.map(lambda path: _count_rows(path, text_column), sorted(found)))
    files, position = [], 0
    for file in counted:
        files.append(replace(file, first_position=position))
        position += file.n_rows
    if position == 0:
        raise DataError(f"there are no questions in {', '.join(map(str, paths))}")
    return QuestionSource(tuple(files), position, text_column, id_column)


def read_blocks(
    source: QuestionSource, *, block_size: int, start: int = 0, stop: int | None = None
) -> Iterator[QuestionBlock]:
    """Read questions ``start`` to ``stop`` − 1; blocks end at multiples of the block size."""
    for block in read_arrays(source, block_size=block_size, start=start, stop=stop):
        yield QuestionBlock(block.position, block.ids.to_pylist(), block.texts.to_pylist())


def read_arrays(
    source: QuestionSource, *, block_size: int, start: int = 0, stop: int | None = None
) -> Iterator[QuestionArrays]:
    """Read the same blocks as ``read_blocks`` as Arrow arrays."""
    if block_size < 1:
        raise ConfigError(f"block_size must be at least 1, got {block_size}")
    stop = source.n_questions if stop is None else min(stop, source.n_questions)
    position, parts = start, list[tuple[pa.Array, pa.Array]]()
    for ids, texts in _read_rows(source, start, stop):
        used = 0
        while used < len(ids):
            n_waiting = sum(len(one) for one, _ in parts)
            room = block_size - (position + n_waiting) % block_size
            parts.append((ids.slice(used, room), texts.slice(used, room)))
            used += len(parts[-1][0])
            n_waiting += len(parts[-1][0])
            if (position + n_waiting) % block_size == 0:
                yield _join(position, parts)
                position, parts = position + n_waiting, []
    if parts:
        yield _join(position, parts)


def _join(position: int, parts: list[tuple[pa.Array, pa.Array]]) -> QuestionArrays:
    """Return a block from its parts."""
    if len(parts) == 1:
        return QuestionArrays(position, *parts[0])
    ids, texts = (pa.concat_arrays(column) for column in zip(*parts, strict=True))
    return QuestionArrays(position, ids, texts)


def _read_rows(
    source: QuestionSource, start: int, stop: int
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield ids and texts of consecutive rows, in pieces of any size."""
    for file in source.files:
        first = max(0, start - file.first_position)
        last = min(file.n_rows, stop - file.first_position)
        if first >= last:
            continue
        reader = _read_parquet if file.format == PARQUET else _read_json_lines
        row = first
        for ids, texts in _limit(reader(source, file, first), last - first):
            yield _fill_ids(ids, file.first_position + row), _clean_texts(texts)
            row += len(ids)
        if row < last:
            raise DataError(
                f"{file.path} has {row} rows instead of {file.n_rows}: it was changed meanwhile"
            )


def _limit(
    pieces: Iterable[tuple[pa.Array, pa.Array]], n_rows: int
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the first rows of pieces."""
    for ids, texts in pieces:
        if n_rows <= 0:
            return
        yield ids.slice(0, n_rows), texts.slice(0, n_rows)
        n_rows -= len(ids)


def _read_parquet(
    source: QuestionSource, file: QuestionFile, first: int
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the rows of a Parquet file from one on."""
    with _open(file.path) as stream:
        document = _open_parquet(stream, file.path)
        names = document.schema_arrow.names
        columns = [name for name in (source.id_column, source.text_column) if name in names]
        begins = _row_groups(document)
        group = bisect_right(begins, first) - 1
        skip, groups = first - begins[group], list(range(group, len(begins)))
        for batch in document.iter_batches(READ_ROWS, row_groups=groups, columns=columns):
            piece = batch.slice(min(skip, len(batch)))
            skip = max(0, skip - len(batch))
            if len(piece):
                ids = _as_strings(piece, source.id_column, file.path)
                yield ids, _as_strings(piece, source.text_column, file.path)


def _as_strings(batch: pa.RecordBatch, name: str, path: str) -> pa.Array:
    """Return a column as strings; all are null if there is no such column."""
    if name not in batch.schema.names:
        return pa.nulls(len(batch), pa.string())
    column = batch.column(name)
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


def _read_json_lines(
    source: QuestionSource, file: QuestionFile, first: int
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the rows of a file of lines from one on."""
    with _open(file.path) as stream:
        skip = first
        if file.starts:
            stream.seek(file.starts[first // INDEX_STEP])
            skip = first % INDEX_STEP
        pieces = read_lines(stream, text_column=source.text_column, id_column=source.id_column)
        for ids, texts in pieces:
            if skip < len(ids):
                yield ids.slice(skip), texts.slice(skip)
            skip = max(0, skip - len(ids))


def _fill_ids(ids: pa.Array, position: int) -> pa.Array:
    """Replace missing ids by positions."""
    if ids.null_count == 0:
        return ids
    numbers = pa.array(range(position, position + len(ids)), pa.int64()).cast(pa.string())
    return pc.coalesce(ids, numbers)


def _clean_texts(texts: pa.Array) -> pa.Array:
    """Replace empty texts by null."""
    empty = pc.equal(pc.binary_length(texts), 0)
    return (
        pc.if_else(empty, pa.scalar(None, pa.string()), texts) if pc.any(empty).as_py() else texts
    )


def _format_of(path: str) -> str | None:
    """Return the format of a file by its name; None if it holds no questions."""
    name = path.rsplit("/", 1)[-1].lower()
    if name.startswith(("_", ".")):
        return None
    return next((found for end, found in SUFFIXES.items() if name.endswith(end)), None)


def _find_files(path: str) -> list[str]:
    """Return the paths of the files of questions that a path, directory or glob means."""
    scheme, query, signs = "", "", "*?["
    if "://" in path:  # a question mark begins the options of an address
        path, mark, options = path.partition("?")
        scheme, query, signs = path.partition("://")[0] + "://", mark + options, "*["
    fixed = path[: min([path.index(sign) for sign in signs if sign in path], default=len(path))]
    base = path if fixed == path else fixed.rpartition("/")[0] or (path[:1] == "/" and "/") or "."
    system, inner = find_filesystem(base + query)
    info = system.get_file_info(inner)
    if info.type == fs.FileType.NotFound:
        raise DataError(f"{base} does not exist")
    if info.type == fs.FileType.File:
        if _format_of(path) is None:
            raise DataError(f"{path} is no file of questions: {_NAMES}")
        return [path + query if scheme else inner]
    selector = fs.FileSelector(inner, recursive=True)
    files = [one.path for one in system.get_file_info(selector) if one.is_file]
    files = [one for one in files if _format_of(one) is not None]
    if base != path:
        pattern = (
            inner.strip("/") + "/" + path[len(base) if path.startswith(base) else 0 :].lstrip("/")
        )
        files = [one for one in files if fnmatch.fnmatchcase(one.lstrip("/"), pattern)]
    return [scheme + one + query for one in files]


def find_filesystem(path: str) -> tuple[Any, str]:
    """Return the filesystem of a path, and the path on it; fsspec opens what pyarrow cannot."""
    if "://" not in path:
        return fs.LocalFileSystem(), str(Path(path).absolute())
    scheme, _, inner = path.partition("://")
    try:
        system, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        try:
            import fsspec

            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme))), inner
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{path} cannot be opened: {error}") from None
    return system, inner


def _open(path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Open a file for reading, decompressed if its name says that it is compressed."""
    system, inner = find_filesystem(path)
    if path.endswith(".gz"):
        return system.open_input_stream(inner, compression="gzip")
    return system.open_input_file(inner)


def _open_parquet(stream: Any, path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Read the footer of a Parquet file."""
    try:
        return pq.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is no Parquet file: {error}") from None


def _row_groups(document: Any) -> tuple[int, ...]:  # noqa: ANN401 - pyarrow has no types
    """Return the rows at which the row groups of a Parquet file begin."""
    sizes = [document.metadata.row_group(i).num_rows for i in range(document.num_row_groups)]
    return tuple(accumulate([0, *sizes[:-1]])) if sizes else ()


def _count_rows(path: str, text_column: str) -> QuestionFile:
    """Return a file with its number of rows."""
    kind = _format_of(path) or ""
    system, inner = find_filesystem(path)
    size = system.get_file_info(inner).size or 0
    with _open(path) as stream:
        if kind == PARQUET:
            document = _open_parquet(stream, path)
            names = document.schema_arrow.names
            if text_column not in names:
                raise DataError(
                    f"{path} has no column {text_column!r}, its columns are {', '.join(names)}: "
                    "name the column of the questions"
                )
            n_rows, groups = document.metadata.num_rows, _row_groups(document)
            return QuestionFile(path, kind, size, n_rows, groups=groups)
        index = index_lines(stream)
    starts = () if path.endswith(".gz") else index.starts
    return QuestionFile(path, kind, size, index.n_rows, starts=starts)
