"""Bundle files: read the files of a bundle that somebody else may have written.

Files are regular files in the directory of the bundle, and their sizes are checked before memory is
allocated for them: those of arrays by their headers and by those of the archive. This module does
not know what the files mean.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adacompute.core.errors import BundleError, DataError
from adacompute.core.memory import check_json, check_memory
from adacompute.storage.regular_files import read_regular

FILE = "bundle.json"
"""Names the other files with their hashes, so its own hash is the digest of the bundle."""

MAX_DOCUMENT_BYTES = 1 << 24
MAX_FILE_BYTES = 1 << 28
"""Maximum size of a model, and of all tables together after decompression."""

_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_document(path: Path, *, digest: str | None = None) -> Any:  # noqa: ANN401 - any JSON
    """Read ``bundle.json``; its SHA-256 must be the digest, if one is given."""
    file, data = path / FILE, _read_bytes(path)
    if digest is not None and (found := compute_digest(data)) != digest.lower():
        raise BundleError(
            f"{path} has the digest {found}, not {digest}: it is another bundle than the one that "
            "was pinned, so check where it comes from"
        )
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BundleError(f"{file} is damaged: run 'adacompute train' again") from None


def read_bundle_file(path: Path, name: str, digest: str) -> bytes:
    """Read a file that ``bundle.json`` names, with its SHA-256."""
    if Path(name).name != name:
        raise BundleError(f"{path / FILE} names a file outside of the bundle: {name!r}")
    try:
        data = read_regular(path / name, max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise BundleError(f"{path / name} cannot be read: {error.strerror}") from None
    except DataError as error:
        raise BundleError(str(error)) from None
    if compute_digest(data) != digest:
        raise BundleError(f"{path / name} was changed after training: run 'adacompute train' again")
    return data


def find_digest(path: Path) -> str:
    """Return the digest of a bundle, which pins all of its files."""
    return compute_digest(_read_bytes(path))


def _read_bytes(path: Path) -> bytes:
    file = path / FILE
    try:
        data = read_regular(file, max_bytes=MAX_DOCUMENT_BYTES)
        check_json(data, str(file), limit=MAX_FILE_BYTES)
    except OSError as error:
        raise BundleError(f"there is no bundle at {path}: {error.strerror}") from None
    except DataError as error:
        raise BundleError(str(error)) from None
    return data


def compute_digest(data: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays as the content of one file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack_arrays(data: bytes) -> dict[str, Any]:
    """Return the arrays of a file; BundleError if it is damaged or they would need much memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            n_bytes = sum(one.file_size for one in entries)
            check_memory(n_bytes, "the file of tables", limit=MAX_FILE_BYTES)
            return {
                one.filename.removesuffix(".npy"): _read_array(archive.read(one)) for one in entries
            }
    except DataError as error:
        raise BundleError(str(error)) from None
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        OverflowError,
        NotImplementedError,  # an unknown compression
        RuntimeError,  # an encrypted archive
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise BundleError(f"the tables of a policy are damaged ({error})") from None


def _read_array(data: bytes) -> Any:  # noqa: ANN401 - an array of any type
    """Return an array whose header promises exactly the bytes that follow it."""
    file = io.BytesIO(data)
    read_header = _READ_HEADER.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise ValueError("an array has an unknown format")
    shape, _, kind = read_header(file)
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(data) - file.tell():
        raise ValueError(f"an array of shape {shape} does not have the bytes for it")
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
