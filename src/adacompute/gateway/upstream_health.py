"""Upstream health: whether the upstream has failed repeatedly, and when it answers again.

After several failures in a row, without a success between them, the gateway is not ready. The list
of models is then requested every few seconds, which costs nothing, until the upstream answers.
Requests are served meanwhile. It knows nothing of models or clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from adacompute.gateway.logs import log

MAX_FAILURES = 5
"""Failures in a row after which the gateway is not ready."""

CHECK_INTERVAL_S = 2.0


class UpstreamHealth:
    """Counts failures in a row; ``check`` returns whether the upstream answers."""

    def __init__(self, check: Callable[[], Awaitable[bool]]) -> None:
        self._check = check
        self._n_failures = 0
        self._checking: asyncio.Task[None] | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the upstream has failed repeatedly and not answered since."""
        return self._checking is not None

    def record(self, *, is_failure: bool) -> None:
        """Note how a request to the upstream ended."""
        self._n_failures = self._n_failures + 1 if is_failure else 0
        if self._n_failures >= MAX_FAILURES and self._checking is None:
            log(logging.ERROR, "the upstream fails: /ready answers 503", failures=self._n_failures)
            self._checking = asyncio.create_task(self._wait_for_recovery())

    async def close(self) -> None:
        """Stop checking."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    async def _wait_for_recovery(self) -> None:
        while self._n_failures >= MAX_FAILURES:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if await self._check():
                self._n_failures = 0
        self._checking = None
        log(logging.WARNING, "the upstream answers again: /ready answers 200")
