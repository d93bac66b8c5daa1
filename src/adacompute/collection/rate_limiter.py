"""Pace: limits of requests and tokens a minute, as providers set them; the only door to aiolimiter.

Tokens are charged by what a call is expected to use before it starts. It knows nothing of calls.
"""

from __future__ import annotations

from typing import Any

from adacompute.core.errors import require

MINUTE_S = 60.0


class RateLimiter:
    """So many requests and so many tokens a minute; None is no limit."""

    def __init__(self, *, requests: int | None = None, tokens: int | None = None) -> None:
        limiter = require("aiolimiter", extra="serve").AsyncLimiter
        self._most = tokens or 0
        self._requests: Any = None if requests is None else limiter(requests, MINUTE_S)
        self._tokens: Any = None if tokens is None else limiter(tokens, MINUTE_S)

    async def wait(self, tokens: int) -> None:
        """Wait until one request of so many tokens may start."""
        if self._requests is not None:
            await self._requests.acquire()
        if self._tokens is not None:  # a call larger than a minute's worth waits for a whole minute
            await self._tokens.acquire(max(1, min(tokens, self._most)))
