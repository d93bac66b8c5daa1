"""Result files: arrays that stages keep in a run directory, so that they are computed once.

    kept/HASH.results    one result: a line with the format and its hash, and then the arrays

A file that is damaged or of another version is as good as none, and is written again. Files are
written atomically, without pickled objects, and the oldest are removed when there are too many
bytes. This module knows nothing of what the arrays mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adacompute.core.errors import DataError
from adacompute.storage.array_files import pack_arrays, unpack_arrays
from adacompute.storage.manifest import hash_bytes
from adacompute.storage.regular_files import read_regular, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

DIRECTORY, SUFFIX = "kept", ".results"
MAX_BYTES = 256_000_000
"""Bytes of all files of a run."""

MAX_SHARE = 0.25
"""Share of these bytes that one result may take; a larger one is not kept."""


@dataclass(frozen=True)
class ResultFiles:
    """Arrays under keys in a directory; ``version`` is that of the code that computes them."""

    directory: Path
    version: str
    max_bytes: int = MAX_BYTES

    def read(self, key: str) -> dict[str, np.ndarray] | None:
        """Return the arrays of a key; None if there is no readable file of this version."""
        try:
            data = read_regular(self._file(key), max_bytes=self.max_bytes)
            head, _, content = data.partition(b"\n")
            if head != self._head(key, content):
                return None
            return unpack_arrays(content, "a file of kept results", limit=self.max_bytes)
        except (OSError, DataError):
            return None

    def write(self, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays under a key, unless they are too large or the disk is full."""
        size = sum(array.nbytes for array in arrays.values())
        if size > MAX_SHARE * self.max_bytes:
            return
        content = pack_arrays(arrays, compress=False)
        try:
            self._make_room(len(content))
            write_atomically(self._file(key), self._head(key, content) + b"\n" + content)
        except OSError:
            return  # it will be computed again

    def _file(self, key: str) -> Path:
        return self.directory / f"{hash_bytes(key.encode())}{SUFFIX}"

    def _head(self, key: str, content: bytes) -> bytes:
        """Return the first line of a file, which fits this key, version and content alone."""
        return hash_bytes(f"{self.version}\n{key}\n{hash_bytes(content)}".encode()).encode()

    def _make_room(self, size: int) -> None:
        """Remove the oldest files until there is room for another one."""
        found = [(path.stat(), path) for path in self.directory.glob(f"*{SUFFIX}")]
        total = size + sum(stat.st_size for stat, _ in found)
        for stat, path in sorted(found, key=lambda one: one[0].st_mtime_ns):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size
