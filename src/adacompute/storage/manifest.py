"""Manifest: what a finished stage was given and what it made.

It is written last, so that its existence means that the stage finished; a stage whose manifest
names the same arguments and the same inputs is not run again. It knows nothing of what the
artifacts mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError

FORMAT = 2
"""Version of the files of a run directory; other versions are rejected."""


@dataclass(frozen=True)
class Manifest:
    """One finished stage: its arguments, the hashes of its inputs and outputs, its counts."""

    stage: str
    arguments: dict[str, Any]
    inputs: dict[str, str]
    outputs: dict[str, str]
    result: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest whole or not at all."""
    text = json.dumps(asdict(manifest), indent=2) + "\n"
    write_atomically(path, text.encode())


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None when the stage has not finished."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.get("format")
        if version == FORMAT:
            return _check(Manifest(**found))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is damaged: remove it to run its stage again") from None
    raise DataError(
        f"{path} has format {version!r}, and this version reads {FORMAT}: import the samples again "
        "with 'adacompute import SOURCE --run DIR', into a new directory"
    )


def _check(manifest: Manifest) -> Manifest:
    """Refuse a manifest whose parts are not what they should be."""
    hashes = [*manifest.inputs.items(), *manifest.outputs.items()]
    if not all(isinstance(part, str) for pair in hashes for part in pair):
        raise TypeError("a hash is text")
    if not isinstance(manifest.arguments, dict) or not isinstance(manifest.result, dict):
        raise TypeError("arguments and results have names")
    return manifest


def hash_path(path: Path) -> str:
    """Hash a file, or all files below a directory with their names."""
    if not path.is_dir():
        return hash_file(path)
    below = sorted(file for file in path.rglob("*") if file.is_file())
    names = [f"{file.relative_to(path)} {hash_file(file)}" for file in below]
    return hash_bytes("\n".join(names).encode("utf-8", "surrogateescape"))


def hash_file(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def hash_bytes(data: bytes) -> str:
    """Hash bytes as those of a file."""
    return hashlib.blake2b(data).hexdigest()[:32]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the whole new one, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk does not say which file was too much for it
        raise
