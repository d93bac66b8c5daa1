"""Open calls: which attempts were under way when a process was killed, and what they may cost.

Before an attempt is sent, what it is for and its maximum cost are written into a memory-mapped
file, which needs no system call and survives kill -9; they are cleared when its payment is stored.
After a kill, the attempts that are left may have been billed. If the file is lost, as it may be
after a power failure or on another machine, open attempts are not counted. It knows nothing of
limits.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

from adacompute.core.errors import DataError

_RECORD, _COST = struct.Struct("<qqqqq"), struct.Struct("<q")
_FIRST_RECORDS = 1024


class OpenCall(NamedTuple):
    """An attempt under way: its id (not 0), for which sample of which question, and its cost.

    The cost is its maximum until it has ended.
    """

    attempt: int
    position: int
    arm: int
    number: int
    cost: int


class OpenCalls:
    """The attempts that are under way; the file grows with their number.

    ``lost`` are those of a process that did not end properly, as they were when the file was
    opened. They stay in the file until ``clear_lost``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self._free: list[int] = []
        self.lost: list[OpenCall] = []
        self._lost_at: list[int] = []
        self._grow(max(_FIRST_RECORDS * _RECORD.size, path.stat().st_size if path.exists() else 0))

    def close(self) -> None:
        """Close the file; what is in it stays."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def begin(self, call: OpenCall) -> int:
        """Record an attempt before it is sent; return its place in the file."""
        if not self._free:
            self._grow(2 * len(self._get_map()))
        at = self._free.pop()
        _RECORD.pack_into(self._get_map(), at, *call)
        return at

    def set_cost(self, place: int, cost: int) -> None:
        """Replace the maximum of an attempt that has ended, and is not stored yet, by its cost."""
        _COST.pack_into(self._get_map(), place + _RECORD.size - _COST.size, cost)

    def end(self, place: int) -> None:
        """Remove an attempt whose payment is stored, or that cost nothing."""
        _RECORD.pack_into(self._get_map(), place, 0, 0, 0, 0, 0)
        self._free.append(place)

    def clear_lost(self) -> None:
        """Remove the attempts of the earlier process, after they were stored as lost."""
        for place in self._lost_at:
            self.end(place)
        self.lost, self._lost_at = [], []

    def _get_map(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"{self._path} is closed")
        return self._map

    def _grow(self, size: int) -> None:
        """Make the file larger; its space is allocated, because a full disk would end the process.

        The first time, the records that are in it are read.
        """
        before, is_first = 0, self._map is None
        if self._map is not None:
            before = len(self._map)
        try:
            with self._path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            with self._path.open("r+b") as file:
                grown = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise DataError(
                f"{self._path} cannot be written: {error.strerror}: make room and run the same "
                "command again"
            ) from None
        self.close()
        self._map = grown
        for at in reversed(range(before, size, _RECORD.size)):
            call = OpenCall(*_RECORD.unpack_from(grown, at))
            if is_first and call.attempt:
                self.lost.append(call)
                self._lost_at.append(at)
            else:
                self._free.append(at)
