"""Manifest: the record of a finished stage, its arguments, inputs and outputs.

A manifest is written last, so it exists only if the stage finished. A stage whose manifest names
the same arguments and input hashes is not run again. This module knows nothing of what the
artifacts mean.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adacompute.core.errors import DataError
from adacompute.storage.regular_files import read_json, write_atomically

FORMAT = 2
"""Version of the files of a run directory; other versions are rejected."""


@dataclass(frozen=True)
class Manifest:
    """One finished stage: its arguments, the hashes of its inputs and outputs, its result."""

    stage: str
    arguments: dict[str, Any]
    inputs: dict[str, str]
    outputs: dict[str, str]
    result: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest atomically."""
    text = json.dumps(asdict(manifest), indent=2) + "\n"
    write_atomically(path, text.encode())


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if the stage has not finished."""
    if not path.is_file():
        return None
    document = read_json(path)
    version = document.get("format")
    try:
        if version == FORMAT:
            return _check(Manifest(**document))
    except (TypeError, AttributeError):
        raise DataError(f"{path} is damaged: remove it to run its stage again") from None
    raise DataError(
        f"{path} has format {version!r}, and this version reads {FORMAT}: import the samples again "
        "with 'adacompute fit', into a new directory"
    )


def _check(manifest: Manifest) -> Manifest:
    """Return the manifest, or raise TypeError if a field has another type."""
    hashes = [*manifest.inputs.items(), *manifest.outputs.items()]
    if not all(isinstance(part, str) for pair in hashes for part in pair):
        raise TypeError("inputs and outputs must map names to hashes")
    if not isinstance(manifest.arguments, dict) or not isinstance(manifest.result, dict):
        raise TypeError("arguments and result must be JSON objects")
    if any(Path(name).name != name for name in manifest.outputs):
        raise TypeError("outputs must be files of the run directory")
    return manifest


def hash_path(path: Path) -> str:
    """Hash a file, or the names and contents of all files below a directory."""
    if not path.is_dir():
        return hash_file(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path)} {hash_file(file)}" for file in files]
    return hash_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))


def hash_file(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def hash_bytes(data: bytes) -> str:
    """Hash bytes; equal to ``hash_file`` of a file with this content."""
    return hashlib.blake2b(data).hexdigest()[:32]
