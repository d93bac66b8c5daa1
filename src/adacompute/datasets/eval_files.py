"""Eval files: the documents in an ``.eval`` archive of Inspect AI.

The archive is a zip with ``header.json`` (or, of a run that was cut short, ``_journal/start.json``)
and a document for each question and epoch: ``samples/ID_epoch_N.json``, or for samples written in
chunks ``samples/ID_epoch_N/sample.json`` with its metadata and long texts beside it. Older versions
deflate, newer ones compress by Zstandard, which the standard library reads from Python 3.14 on. A
name that occurs twice means its last document. It knows nothing of what the documents say.
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
from adacompute.datasets.records import parse_json, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_DOCUMENT = 1 << 30
"""Larger documents are refused."""

_ZSTANDARD = 93
_HEADER = struct.Struct("<26x2H")
_SAMPLE = re.compile(r"samples/.+_epoch_[0-9]+(?:\.json|/sample\.json)")
_CHUNK = re.compile(r"/attachments/([0-9]+)\.json")
_STARTS = ("header.json", "_journal/start.json")
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    pa.ArrowException,
    OSError,
    EOFError,
    RuntimeError,  # an encrypted archive, or one compressed in a way that is not known
    ValueError,
)


def read_header(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Read what an archive says of its run."""
    with _opened(path) as archive:
        names = set(archive.namelist())
        start = next((name for name in _STARTS if name in names), None)
        if start is None:
            raise DataError(f"{path} is no log of Inspect: it holds no {_STARTS[0]}")
        return _document(path, archive, start)


def read_sample_documents(path: Path) -> Iterator[Any]:
    """Read the samples of an archive one by one, for a sample may be large."""
    with _opened(path) as archive:
        names = list(dict.fromkeys(archive.namelist()))
        for name in names:
            if not _SAMPLE.fullmatch(name):
                continue
            document = _document(path, archive, name)
            if name.endswith("/sample.json") and isinstance(document, dict):
                folder = name.removesuffix("/sample.json")
                beside = [other for other in names if other.startswith(f"{folder}/")]
                document |= _beside(path, archive, folder, beside)
            yield document


def _beside(path: Path, archive: zipfile.ZipFile, folder: str, names: list[str]) -> dict[str, Any]:
    """Read what a sample in chunks keeps beside it: its metadata and its long texts."""
    found: dict[str, Any] = {}
    if f"{folder}/metadata.json" in names:
        found["metadata"] = _document(path, archive, f"{folder}/metadata.json")
    texts: dict[str, Any] = {}
    for name in names:
        if chunk := _CHUNK.fullmatch(name, len(folder)):
            content = _document(path, archive, name)
            listed = content if isinstance(content, list) else []
            texts |= {str(i): text for i, text in enumerate(listed, int(chunk[1]))}
    return found | {"attachments": texts}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{path} cannot be read as an Inspect log: {reason_of(error)}") from None


def _document(path: Path, archive: zipfile.ZipFile, name: str) -> Any:  # noqa: ANN401 - any JSON
    entry = archive.getinfo(name)
    if entry.file_size > MAX_DOCUMENT:
        raise DataError(
            f"{name} in {path} is said to be {entry.file_size} bytes long, "
            f"above the {MAX_DOCUMENT} that are read"
        )
    data = _unpack(archive, entry) if entry.compress_type == _ZSTANDARD else archive.read(entry)
    return parse_json(data, f"{name} in {path}")


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Read what the standard library cannot: an entry compressed by Zstandard."""
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
