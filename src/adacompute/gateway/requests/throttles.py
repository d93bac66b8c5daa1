"""Throttles: how many requests of a client or for a model are in flight, and how many per minute.

The workers of a gateway count together, in a file that all of them map into memory. Each worker
writes only its own row and adds up all rows, so that no lock is needed; two workers that look at
the same instant may admit one request too many. A throttle knows nothing of requests.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MINUTE_S = 60.0
_CELL = 4
"""Numbers per throttle and worker: in flight, the current minute, requests in it and before it."""

_BYTES = 8


@dataclass(frozen=True)
class ThrottleLimits:
    """The limits of a throttle; None means none."""

    max_concurrency: int | None = None
    requests_per_minute: int | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing needs to be counted."""
        return self.max_concurrency is None and self.requests_per_minute is None


class SharedCounts:
    """The numbers of all workers; ``slot`` is the row of this one. Without a file, it is alone."""

    def __init__(self, n_throttles: int, path: Path | None = None, *, slot: int = 0) -> None:
        self._row_size = n_throttles * _CELL
        if path is None:
            self.numbers = memoryview(bytearray(self._row_size * _BYTES)).cast("d")
        else:
            with path.open("r+b") as file:
                self.numbers = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self.own = slot * self._row_size
        for index in range(self.own, self.own + self._row_size):
            self.numbers[index] = 0.0  # a worker that died in this slot has left its numbers

    def cells(self, throttle: int) -> range:
        """Where the cells of a throttle begin, one per worker."""
        return range(throttle * _CELL, len(self.numbers), max(1, self._row_size))


def make_counts_file(path: Path, *, n_throttles: int, n_workers: int) -> Path:
    """Make the file that the workers of a gateway count in."""
    path.write_bytes(bytes(max(1, n_throttles * n_workers * _CELL) * _BYTES))
    return path


class Throttle:
    """Counts what is in flight and what was admitted in the last minute."""

    def __init__(self, limits: ThrottleLimits, counts: SharedCounts, index: int) -> None:
        self.limits = limits
        self._numbers = counts.numbers
        self._cells: Sequence[int] = counts.cells(index)
        self._own = counts.own + index * _CELL

    def rejection(self) -> str | None:
        """Return which limit is reached, by the name of its setting; None if none is."""
        limits, numbers = self.limits, self._numbers
        if limits.max_concurrency is not None:
            n_in_flight = sum(numbers[cell] for cell in self._cells)
            if n_in_flight >= limits.max_concurrency:
                return "max_concurrency"
        rate = limits.requests_per_minute
        if rate is not None and self._n_last_minute(time.time()) >= rate:
            return "requests_per_minute"
        return None

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request while it is served."""
        if self.limits.is_unlimited:
            yield
            return
        numbers, own = self._numbers, self._own
        numbers[own] += 1
        self._count_request(time.time())
        try:
            yield
        finally:
            numbers[own] -= 1

    def _count_request(self, now: float) -> None:
        numbers, own, minute = self._numbers, self._own, now // MINUTE_S
        if numbers[own + 1] != minute:
            is_next = numbers[own + 1] == minute - 1
            numbers[own + 3] = numbers[own + 2] if is_next else 0.0
            numbers[own + 1], numbers[own + 2] = minute, 0.0
        numbers[own + 2] += 1

    def _n_last_minute(self, now: float) -> float:
        """Requests of the last 60 seconds, as if those of the minute before had come evenly."""
        numbers = self._numbers
        minute, passed_s = divmod(now, MINUTE_S)
        left = 1 - passed_s / MINUTE_S
        total = 0.0
        for cell in self._cells:
            if numbers[cell + 1] == minute:
                total += numbers[cell + 2] + left * numbers[cell + 3]
            elif numbers[cell + 1] == minute - 1:
                total += left * numbers[cell + 2]
        return total
