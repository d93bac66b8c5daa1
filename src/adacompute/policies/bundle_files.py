"""Bundle files: read the files of a bundle that somebody else may have written.

Files are regular files in the directory of the bundle, and their sizes are checked before memory is
allocated for them. This module does not know what the files mean.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from adacompute.core.errors import BundleError, DataError
from adacompute.core.memory import check_json
from adacompute.storage.array_files import unpack_arrays
from adacompute.storage.regular_files import read_regular

FILE = "bundle.json"
"""Names the other files with their hashes, so its own hash is the digest of the bundle."""

TABLES = "tables.npz"
"""Tables of a sequential policy."""

MAX_DOCUMENT_BYTES = 1 << 24
MAX_FILE_BYTES = 1 << 28
"""Maximum size of a model, and of all tables together after decompression."""


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
        raise BundleError(f"{file} is damaged: run 'adacompute research train' again") from None


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
        raise BundleError(
            f"{path / name} was changed after training: run 'adacompute research train' again"
        )
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


def unpack_tables(data: bytes) -> dict[str, Any]:
    """Return the tables of a policy; BundleError if they are damaged or would need much memory."""
    try:
        return unpack_arrays(data, "the file of tables", limit=MAX_FILE_BYTES)
    except DataError as error:
        raise BundleError(str(error)) from None


def check_replaceable(path: Path) -> None:
    """Refuse a path that holds anything but a bundle, because a new bundle would replace it."""
    if not path.exists():
        return
    is_bundle = (path / FILE).is_file() and all(
        file.name in (FILE, TABLES) or file.match("model-*.onnx") for file in path.iterdir()
    )
    if not is_bundle:
        raise BundleError(f"{path} exists and contains other files than a bundle: use another path")
