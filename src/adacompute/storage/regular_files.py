"""Regular files: read and write files of a directory that others may write to.

A symbolic link could lead out of the directory, and a pipe or a device would never end, so only
regular files are read, up to a size. This module does not know what the files contain.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.core.errors import DataError
from adacompute.core.memory import check_json, check_memory, check_parquet

MAX_JSON_BYTES, MAX_JSON_MEMORY_BYTES = 1 << 26, 1 << 30
"""Maximum size of a JSON file, and of what it becomes in memory."""


def check_regular(path: Path) -> Path:
    """Return the path of a file; raise DataError if it is a symbolic link or no regular file.

    A path at which there is nothing, or a directory, is returned as well.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "no regular file"
    raise DataError(f"{path} is {kind}, and only regular files are read: copy the file there")


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file of at most this size; OSError if it cannot be read."""
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_memory(size, str(path), limit=max_bytes)
        return file.read(size)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; DataError if it cannot be parsed."""
    try:
        data = read_regular(path, max_bytes=MAX_JSON_BYTES)
        check_json(data, str(path), limit=MAX_JSON_MEMORY_BYTES)
        document = json.loads(data.decode("utf-8"))
    except DataError:
        raise
    except (OSError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(f"{path} is damaged: remove it to run its stage again")
    return document


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file; DataError if that fails or would need too much memory."""
    check_regular(path)
    try:
        with pq.ParquetFile(path) as file:
            check_parquet(file.metadata, columns or file.schema_arrow.names, str(path))
            return file.read(columns)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read ({reason})") from None


@contextmanager
def name_in_error(path: Path) -> Iterator[None]:
    """Let an error name the file that was to be written: that of a full disk names none."""
    try:
        yield
    except OSError as error:
        # A new error, because a name that is set later does not reach another process.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


@contextmanager
def write_when_complete(path: Path) -> Iterator[Path]:
    """Yield where to write a file in parts; it is there under its name when the block ends."""
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    partial.replace(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old or the complete new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with name_in_error(path):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with name_in_error(path), os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file, completely or not at all; when this returns, it is on the disk."""
    content = pa.BufferOutputStream()
    pq.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue())
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
