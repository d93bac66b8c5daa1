"""Limits: how many calls may run at once, and how many may start per minute.

The adaptive limit starts at a quarter of the maximum and doubles per call time while no call is
refused and calls do not slow down. A refusal cuts it by a third, at most once per second; after
that it grows slowly. When calls take more than 2.5 times as long as they did at best, they are
queueing somewhere, and the limit shrinks a little. The rate limit is the provider's own, in
requests and tokens per minute. This is the only module that imports aiolimiter. It does not know
what the calls are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from adacompute.core.errors import needs_extra

BACK_OFF = 0.67
TOO_SLOW = 2.5
MIN_BACK_OFF_INTERVAL_S = 1.0
START = 16.0
"""Initial limit where a quarter of the maximum is less."""

SLOW_GROWTH = 0.05
"""Relative growth per call time after the first refusal."""

MINUTE_S = 60.0


class FixedLimiter:
    """A limit on concurrent calls that never changes."""

    def __init__(self, max_calls: int) -> None:
        self._slots = asyncio.Semaphore(max_calls)

    async def acquire(self) -> None:
        """Wait until another call may start."""
        await self._slots.acquire()

    def release(self, latency_s: float | None = None) -> None:
        """End a call."""
        del latency_s
        self._slots.release()


@dataclass
class AdaptiveLimiter:
    """A limit on concurrent calls between 1 and ``max_calls``; 0 chooses the initial limit."""

    max_calls: int
    limit: float = 0.0
    running: int = 0
    growing: bool = True
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque, repr=False)
    _best_s: float = field(default=float("inf"), repr=False)
    _recent_s: float = field(default=0.0, repr=False)
    _backed_off_at: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        self.limit = min(self.limit or max(START, self.max_calls / 4), float(self.max_calls))

    async def acquire(self) -> None:
        """Wait until another call may start."""
        while self.running >= int(self.limit):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._waiting = deque(w for w in self._waiting if w is not waiter)
        self.running += 1

    def release(self, latency_s: float | None = None) -> None:
        """End a call; ``latency_s`` is its duration if it succeeded."""
        self.running -= 1
        if latency_s is not None:
            self._learn(latency_s)
        free = int(self.limit) - self.running
        while free > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def back_off(self) -> None:
        """Lower the limit, because the server refused a call or let it time out."""
        self.growing = False
        now = time.monotonic()
        if now - self._backed_off_at > MIN_BACK_OFF_INTERVAL_S:
            self._backed_off_at = now
            self.limit = max(1.0, self.limit * BACK_OFF)

    def _learn(self, latency_s: float) -> None:
        weight = 1.0 / max(8.0, self.limit)
        self._recent_s += weight * (latency_s - self._recent_s) if self._recent_s else latency_s
        self._best_s = min(self._best_s * (1 + 1e-4), self._recent_s)  # forget an old best slowly
        if self._recent_s > TOO_SLOW * self._best_s:
            self.growing = False
            self.limit = max(1.0, self.limit * (1 - 0.1 * weight))
        else:
            step = 1.0 if self.growing else weight * max(1.0, SLOW_GROWTH * self.limit)
            self.limit = min(float(self.max_calls), self.limit + step)


class RateLimiter:
    """A limit on requests and tokens per minute; None means no limit."""

    def __init__(self, *, requests: int | None = None, tokens: int | None = None) -> None:
        with needs_extra("serve"):
            from aiolimiter import AsyncLimiter

        self._max_tokens = tokens or 0
        self._requests = None if requests is None else AsyncLimiter(requests, MINUTE_S)
        self._tokens = None if tokens is None else AsyncLimiter(tokens, MINUTE_S)

    async def acquire(self, tokens: int) -> None:
        """Wait until a request that is expected to use so many tokens may start."""
        if self._requests is not None:
            await self._requests.acquire()
        if self._tokens is not None:  # a request above the limit waits for a full minute's tokens
            await self._tokens.acquire(max(1, min(tokens, self._max_tokens)))
