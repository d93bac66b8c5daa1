"""Eval files: the JSON documents in an ``.eval`` archive of Inspect AI.

The archive is a zip file with ``header.json`` (or ``_journal/start.json`` if the run was
interrupted) and one document per question and epoch: ``samples/ID_epoch_N.json``, or for samples
written in chunks ``samples/ID_epoch_N/sample.json`` with metadata and long texts beside it. Older
versions use deflate, newer ones Zstandard, which the standard library reads from Python 3.14 on. If
a name occurs twice, the last document counts. This module does not interpret the documents.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.datasets.records import first_line, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_DOCUMENT_BYTES = 1 << 28
"""Larger documents are rejected."""

_ZSTANDARD = 93
_HEADER = struct.Struct("<26x2H")
_SAMPLE = re.compile(r"samples/.+_epoch_[0-9]+(?:\.json|/sample\.json)")
_CHUNK = re.compile(r"/attachments/([0-9]+)\.json")
_HEADERS = ("header.json", "_journal/start.json")
_READ_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pa.ArrowException,
    OSError,
    EOFError,
    RuntimeError,  # an encrypted archive, or an unknown compression
    ValueError,
)


def read_header(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Read the header of an archive, which describes its run."""
    with _open_archive(path) as archive:
        names = set(archive.namelist())
        header = next((name for name in _HEADERS if name in names), None)
        if header is None:
            raise DataError(f"{path} is not an Inspect log: it has no {_HEADERS[0]}")
        return _read_document(path, archive, header)


def read_sample_documents(path: Path) -> Iterator[Any]:
    """Read the samples of an archive one at a time, because they may be large."""
    with _open_archive(path) as archive:
        names = list(dict.fromkeys(archive.namelist()))
        for name in names:
            if not _SAMPLE.fullmatch(name):
                continue
            document = _read_document(path, archive, name)
            if name.endswith("/sample.json") and isinstance(document, dict):
                folder = name.removesuffix("/sample.json")
                siblings = [other for other in names if other.startswith(f"{folder}/")]
                document |= _read_siblings(path, archive, folder, siblings)
            yield document


def _read_siblings(
    path: Path, archive: zipfile.ZipFile, folder: str, names: list[str]
) -> dict[str, Any]:
    """Read the metadata and long texts beside a sample that was written in chunks."""
    found: dict[str, Any] = {}
    if f"{folder}/metadata.json" in names:
        found["metadata"] = _read_document(path, archive, f"{folder}/metadata.json")
    texts: dict[str, Any] = {}
    for name in names:
        if chunk := _CHUNK.fullmatch(name, len(folder)):
            content = _read_document(path, archive, name)
            chunk_texts = content if isinstance(content, list) else []
            texts |= {str(i): text for i, text in enumerate(chunk_texts, int(chunk[1]))}
    return found | {"attachments": texts}


@contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DataError:
        raise
    except _READ_ERRORS as error:
        raise DataError(f"{path} cannot be read as an Inspect log: {first_line(error)}") from None


def _read_document(path: Path, archive: zipfile.ZipFile, name: str) -> Any:  # noqa: ANN401 - any JSON
    entry = archive.getinfo(name)
    if entry.file_size > MAX_DOCUMENT_BYTES:
        raise DataError(
            f"{name} in {path} has {entry.file_size} bytes, above the limit of {MAX_DOCUMENT_BYTES}"
        )
    is_zstandard = entry.compress_type == _ZSTANDARD
    data = _read_zstandard(archive, entry) if is_zstandard else archive.read(entry)
    return parse_json(data, f"{name} in {path}")


def _read_zstandard(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Read an entry compressed with Zstandard, which the standard library cannot."""
    file = archive.fp
    if file is None:
        raise zipfile.BadZipFile("it is closed")
    file.seek(entry.header_offset)
    name_size, extra_size = _HEADER.unpack(file.read(_HEADER.size))
    file.seek(name_size + extra_size, 1)
    packed = file.read(entry.compress_size)
    data: bytes = pa.Codec("zstd").decompress(packed, entry.file_size, asbytes=True)
    if zlib.crc32(data) != entry.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {entry.filename!r}")
    return data
