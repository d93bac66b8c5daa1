"""Bundle files: read the files of a bundle that somebody else may have written.

Files are regular files in the directory of the bundle, and their sizes are checked before memory is
allocated for them. This module does not know what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from adacompute.core.errors import BundleError, DataError
from adacompute.core.memory import check_json
from adacompute.storage.array_files import unpack_arrays
from adacompute.storage.regular_files import read_regular, write_atomically

FILE = "bundle.json"
"""Names the other files with their hashes, so its own hash is the digest of the bundle."""

TABLES = "tables.npz"
"""Tables of a sequential policy, or trees of a router."""

RUN_DIRECTORY = "run"
"""The run that a bundle was fitted to, if it is kept beside its files."""

DIGITS = 12
"""How much of its SHA-256 is in the name of a file."""

_DIGITS = f"[0-9a-f]{{{DIGITS}}}"
_OWN = re.compile(rf"tables-{_DIGITS}\.npz|\.(tables|bundle).*")
"""Names of files beside ``bundle.json``; a dot begins those that were being written."""

MAX_DOCUMENT_BYTES = 1 << 24
MAX_FILE_BYTES = 1 << 28
"""Maximum size of all tables together after decompression."""


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
        raise BundleError(f"{file} is damaged: run 'adacompute fit' again") from None


def locate_file(path: Path, name: str, digest: str) -> Path:
    """Return where a file of a bundle is: its name ends with the beginning of its SHA-256.

    So the files of a new bundle do not replace those of an old one before its ``bundle.json`` does.
    """
    if Path(name).name != name:
        raise BundleError(f"{path / FILE} names a file outside of the bundle: {name!r}")
    return path / f"{Path(name).stem}-{digest[:DIGITS]}{Path(name).suffix}"


def read_bundle_file(path: Path, name: str, digest: str) -> bytes:
    """Read a file that ``bundle.json`` names, with its SHA-256."""
    file = locate_file(path, name, digest)
    try:
        data = read_regular(file, max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None
    except DataError as error:
        raise BundleError(str(error)) from None
    if compute_digest(data) != digest:
        raise BundleError(f"{file} was changed after training: run 'adacompute fit' again")
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
    """Refuse a path that holds anything but a bundle and its run."""
    if not path.exists():
        return
    is_known = path.is_dir() and all(
        file.name in (FILE, RUN_DIRECTORY) or _OWN.fullmatch(file.name) for file in path.iterdir()
    )
    if not is_known:
        raise BundleError(f"{path} exists and contains other files than a bundle: use another path")


def write_files(path: Path, files: Mapping[str, bytes], document: bytes) -> None:
    """Write the files of a bundle into a directory; one that was there is replaced at the end.

    It is the new bundle when ``bundle.json`` is replaced, and until then the old one.
    """
    check_replaceable(path)
    path.mkdir(parents=True, exist_ok=True)
    before = set(path.iterdir())
    written = {locate_file(path, name, compute_digest(data)): data for name, data in files.items()}
    try:
        for file, data in {**written, path / FILE: document}.items():
            write_atomically(file, data)
    except BaseException:
        _remove_own(path, keep=before)
        if not before:
            path.rmdir()
        raise
    _remove_own(path, keep=set(written))


def _remove_own(path: Path, *, keep: Collection[Path]) -> None:
    """Remove the files of a bundle beside ``bundle.json`` but for some."""
    for file in path.iterdir():
        if _OWN.fullmatch(file.name) and file not in keep:
            file.unlink()
