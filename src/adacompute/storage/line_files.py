"""Line files: small files of JSON lines that any process appends to, and that lose old lines.

A line is appended under a lock of the file, so that a process that replaces the file loses none.
What the lines mean is not known here.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def append_line(path: Path, record: Mapping[str, Any], max_bytes: int) -> None:
    """Append a record; OSError if the file is full or cannot be written.

    A new file can be read only by its owner.
    """
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    with _locked(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # end a line that was cut off
            line = b"\n" + line
        if size + len(line) > max_bytes or os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def remove_lines(path: Path, is_removed: Callable[[bytes], bool]) -> None:
    """Replace a file by one without some of its lines.

    Lines are judged while others append; only what came last waits for the lock. A file that was
    replaced or taken away meanwhile is left to those who did so.
    """
    temporary = path.with_suffix(".part")
    kept = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with os.fdopen(_open(path), "rb") as lines, os.fdopen(kept, "wb") as file:
        while (line := lines.readline()).endswith(b"\n"):
            if not is_removed(line):
                file.write(line)
        with _locked(path) as descriptor:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(lines.fileno())):
                temporary.unlink()
                return
            lines.seek(-len(line), os.SEEK_CUR)
            file.writelines(line for line in lines if not is_removed(line))
            file.flush()
            temporary.replace(path)


def _open(path: Path) -> int:
    """Open a file to read and append, and no symbolic link; a new one is its owner's alone."""
    return os.open(path, os.O_APPEND | os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open and lock a file; another one that has taken its place meanwhile is opened instead."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                yield descriptor
                return
        finally:
            os.close(descriptor)
