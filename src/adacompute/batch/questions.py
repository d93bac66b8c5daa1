"""Questions: files of questions, read in a fixed order as blocks.

A source is a list of Parquet, JSON Lines or CSV files, local or on any filesystem that pyarrow or
fsspec can open. The columns of the first one say which hold the texts and the ids. Files are sorted
by their path, so each row has one position in the whole source. Rows are counted when the source is
opened: from the footers of Parquet files, by one pass over the others. Blocks are read one after
another and may start anywhere; memory does not grow with the number of rows, but for CSV files,
which are read as a whole. A row without a usable text is part of its block, with None as its text.

This module knows nothing of policies, prices or samples.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import fs

from adacompute.batch.formats import (
    CSV,
    INDEX_STEP,
    JSON_LINES,
    PARQUET,
    Piece,
    index_lines,
    last_question,
    open_parquet,
    read_csv,
    read_examples,
    read_lines,
    read_parquet,
    row_groups,
)
from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.layout import find_layout, report

TEXT_COLUMN, ID_COLUMN = "question", "question_id"
SUFFIXES = {
    ".parquet": PARQUET,
    ".pq": PARQUET,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".jsonl.gz": JSON_LINES,
    ".ndjson.gz": JSON_LINES,
    ".csv": CSV,
    ".csv.gz": CSV,
}
"""Formats by how the name of a file ends."""

_NAMES = "its name must end in .parquet, .jsonl or .csv, the last two perhaps with .gz"

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
    """Files of questions in a fixed order, and the columns that hold texts and ids.

    ``is_chat`` means that the texts may be lists of chat messages: the last one of the user counts.
    """

    files: tuple[QuestionFile, ...]
    n_questions: int
    text_column: str = TEXT_COLUMN
    id_column: str = ID_COLUMN
    is_chat: bool = False

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

    @property
    def stop(self) -> int:
        """The position after the last question."""
        return self.position + len(self.ids)


def open_questions(
    paths: Sequence[str], columns: Mapping[str, str] | None = None
) -> QuestionSource:
    """Find the files of questions in files, directories and globs, and count their rows.

    ``columns`` maps our names of columns to those of the files, where they cannot be guessed.
    """
    found: dict[str, None] = {}
    for path in paths:
        found |= dict.fromkeys(_find_files(str(path)))
    if not found:
        raise DataError(
            f"there are no Parquet, JSON Lines or CSV files in {', '.join(map(str, paths))}"
        )
    names = _find_columns(min(found), columns)
    with ThreadPoolExecutor(OPENERS) as pool:
        counted = list(pool.map(lambda path: _count_rows(path, names[0]), sorted(found)))
    files, position = [], 0
    for file in counted:
        files.append(replace(file, first_position=position))
        position += file.n_rows
    if position == 0:
        raise DataError(f"there are no questions in {', '.join(map(str, paths))}")
    return QuestionSource(tuple(files), position, *names)


def _find_columns(path: str, columns: Mapping[str, str] | None) -> tuple[str, str, bool]:
    """Return the columns of texts and of ids of a file, and whether the texts may be chats."""
    with _open(path) as stream:
        layout = find_layout(read_examples(stream, _format_of(path) or "", path), columns)
    report(path, layout.describe((TEXT_COLUMN, ID_COLUMN)), ())
    ids = layout.columns.get(ID_COLUMN, (ID_COLUMN,))[0]
    if TEXT_COLUMN in layout.columns or layout.chat is None:
        return layout.columns.get(TEXT_COLUMN, (TEXT_COLUMN,))[0], ids, False
    return layout.chat, ids, True


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
    position, parts = start, list[Piece]()
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


def _join(position: int, parts: list[Piece]) -> QuestionArrays:
    """Return a block from its parts."""
    if len(parts) == 1:
        return QuestionArrays(position, *parts[0])
    ids, texts = (pa.concat_arrays(column) for column in zip(*parts, strict=True))
    return QuestionArrays(position, ids, texts)


def _read_rows(source: QuestionSource, start: int, stop: int) -> Iterator[Piece]:
    """Yield ids and texts of consecutive rows, in pieces of any size."""
    for file in source.files:
        first = max(0, start - file.first_position)
        last = min(file.n_rows, stop - file.first_position)
        if first >= last:
            continue
        row = first
        for ids, texts in _limit(_read_file(source, file, first), last - first):
            yield _fill_ids(ids, file.first_position + row), _clean_texts(source, texts)
            row += len(ids)
        if row < last:
            raise DataError(
                f"{file.path} has {row} rows instead of {file.n_rows}: it was changed meanwhile"
            )


def _limit(pieces: Iterable[Piece], n_rows: int) -> Iterator[Piece]:
    """Yield the first rows of pieces."""
    for ids, texts in pieces:
        if n_rows <= 0:
            return
        yield ids.slice(0, n_rows), texts.slice(0, n_rows)
        n_rows -= len(ids)


def _read_file(source: QuestionSource, file: QuestionFile, first: int) -> Iterator[Piece]:
    """Yield the rows of a file from one on."""
    columns = {"text_column": source.text_column, "id_column": source.id_column}
    with _open(file.path) as stream:
        if file.format == PARQUET:
            yield from read_parquet(stream, file.path, first, **columns)
            return
        if file.format == CSV:
            table = read_csv(stream, file.path, (source.id_column, source.text_column))
            ids, texts = (column.combine_chunks() for column in table.columns)
            yield ids.slice(first), texts.slice(first)
            return
        skip = first
        if file.starts:
            stream.seek(file.starts[first // INDEX_STEP])
            skip = first % INDEX_STEP
        for ids, texts in read_lines(stream, **columns):
            if skip < len(ids):
                yield ids.slice(skip), texts.slice(skip)
            skip = max(0, skip - len(ids))


def _fill_ids(ids: pa.Array, position: int) -> pa.Array:
    """Replace missing ids by positions."""
    if ids.null_count == 0:
        return ids
    numbers = pa.array(range(position, position + len(ids)), pa.int64()).cast(pa.string())
    return pc.coalesce(ids, numbers)


def _clean_texts(source: QuestionSource, texts: pa.Array) -> pa.Array:
    """Replace chats by their last questions, and empty texts by null."""
    if source.is_chat:
        texts = pa.array(map(last_question, texts.to_pylist()), pa.string())
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


def _count_rows(path: str, text_column: str) -> QuestionFile:
    """Return a file with its number of rows."""
    kind = _format_of(path) or ""
    system, inner = find_filesystem(path)
    size = system.get_file_info(inner).size or 0
    with _open(path) as stream:
        if kind == PARQUET:
            document = open_parquet(stream, path)
            names = document.schema_arrow.names
            if text_column not in names:
                raise DataError(
                    f"{path} has no column {text_column!r}, its columns are {', '.join(names)}: "
                    "name the column of the questions"
                )
            n_rows, groups = document.metadata.num_rows, row_groups(document)
            return QuestionFile(path, kind, size, n_rows, groups=groups)
        if kind == CSV:
            n_rows = len(read_csv(stream, path, (ID_COLUMN, text_column)))
            return QuestionFile(path, kind, size, n_rows)
        index = index_lines(stream)
    starts = () if path.endswith(".gz") else index.starts
    return QuestionFile(path, kind, size, index.n_rows, starts=starts)
