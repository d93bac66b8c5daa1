"""Open calls: which calls were under way when a process was killed, and what they may cost.

Before a call its position and its maximum cost are written into a memory-mapped file, which needs
no system call and survives kill -9; they are cleared when the sample is in a segment. After a kill,
the calls that are left may have been billed, so their maximum counts as spent. If the file is lost,
as it may be after a power failure or on another machine, open calls are not counted.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_RECORD = struct.Struct("<qqqq")
"""Position plus 1 (0 means free), number of the arm, number of the sample, maximum cost."""


class OpenCall(NamedTuple):
    """A call that was under way: for which sample of which question, and what it may cost."""

    position: int
    arm: int
    number: int
    max_cost: int


class OpenCalls:
    """The calls that are under way, at most ``capacity`` of them.

    ``lost`` are those of a process that did not end properly, as they were when the file was
    opened. They stay in the file until ``clear_lost``.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        size = capacity * _RECORD.size
        if path.is_file():
            size = max(size, path.stat().st_size)
        with path.open("ab") as file:
            file.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        records = [_RECORD.unpack_from(self._map, i) for i in range(0, size, _RECORD.size)]
        self.lost = [OpenCall(p - 1, *rest) for p, *rest in records if p]
        self._free: list[int] = [
            i * _RECORD.size for i, record in reversed(list(enumerate(records))) if not record[0]
        ]
        self._lost_at = [i * _RECORD.size for i, record in enumerate(records) if record[0]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._map.close()

    def begin(self, call: OpenCall) -> int:
        """Record a call before it is sent; return its place in the file."""
        at = self._free.pop()
        _RECORD.pack_into(self._map, at, call.position + 1, *call[1:])
        return at

    def end(self, place: int) -> None:
        """Remove a call whose sample and cost are stored elsewhere."""
        _RECORD.pack_into(self._map, place, 0, 0, 0, 0)
        self._free.append(place)

    def clear_lost(self) -> None:
        """Remove the calls of the earlier process, after they were recorded as lost."""
        for place in self._lost_at:
            self.end(place)
        self.lost, self._lost_at = [], []
