"""Concurrency: how many calls may be under way, found by trying.

It starts at a quarter of what is allowed and doubles, as long as nothing is refused and calls do
not take longer; a refusal takes a third of it away, at most once a second, and then it grows slowly
again. Calls that take more than twice as long as they did at best, because they queue somewhere,
let it shrink a little. It knows nothing of what the calls are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

BACK_OFF = 0.67
TOO_SLOW = 2.5
REST_S = 1.0
START = 16.0
"""Calls at once to begin with, where a quarter is fewer."""
CAREFUL = 0.05
"""Share by which it grows in the time of one call, after it was refused once."""


@dataclass
class AdaptiveLimiter:
    """A limit on calls under way, between 1 and ``most``; 0 lets it find where to begin."""

    most: int
    limit: float = 0.0
    running: int = 0
    growing: bool = True
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque, repr=False)
    _best_s: float = field(default=float("inf"), repr=False)
    _recent_s: float = field(default=0.0, repr=False)
    _rested: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self.limit = min(self.limit or max(START, self.most / 4), float(self.most))

    async def enter(self) -> None:
        """Wait for a place."""
        while self.running >= int(self.limit):
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            finally:
                if not place.done() or place.cancelled():
                    self._waiting = deque(p for p in self._waiting if p is not place)
        self.running += 1

    def leave(self, seconds: float | None = None) -> None:
        """Give the place back; ``seconds`` is what a call that went well took."""
        self.running -= 1
        if seconds is not None:
            self._learn(seconds)
        free = int(self.limit) - self.running
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    def trouble(self) -> None:
        """Shrink: the other side refused a call or let it hang."""
        self.growing = False
        now = time.monotonic()
        if now - self._rested > REST_S:
            self._rested = now
            self.limit = max(1.0, self.limit * BACK_OFF)

    def _learn(self, seconds: float) -> None:
        weight = 1.0 / max(8.0, self.limit)
        self._recent_s += weight * (seconds - self._recent_s) if self._recent_s else seconds
        self._best_s = min(self._best_s * (1 + 1e-4), self._recent_s)  # what was best may not last
        if self._recent_s > TOO_SLOW * self._best_s:
            self.growing = False
            self.limit = max(1.0, self.limit * (1 - 0.1 * weight))
        else:
            step = 1.0 if self.growing else weight * max(1.0, CAREFUL * self.limit)
            self.limit = min(float(self.most), self.limit + step)
