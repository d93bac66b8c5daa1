"""Upstream health: whether the upstream has failed repeatedly, and when it answers again.

After several failures in a row, without a success between them, the gateway is not ready. The list
of models is then requested every few seconds, which costs nothing, until the upstream answers.
While that fails too, requests are not admitted, except for one every few seconds that finds out
whether the upstream serves requests but no list. A client whose own requests fail does not keep
others out, because the list is still answered. It knows nothing of models or clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from adacompute.gateway.processes.logs import log

CHECK_INTERVAL_S = 2.0
"""Seconds between two requests that find out whether the upstream answers again."""


class UpstreamHealth:
    """A circuit breaker; ``check`` returns whether the upstream answers.

    It opens after ``max_failures`` failures in a row.
    """

    def __init__(self, check: Callable[[], Awaitable[bool]], max_failures: int) -> None:
        self._check = check
        self._max_failures = max_failures
        self._n_failures = 0
        self._checking: asyncio.Task[None] | None = None
        self._has_failed_check = False
        self._admitted_at = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether the upstream has failed repeatedly and not answered since."""
        return self._checking is not None

    def admits(self) -> bool:
        """Whether a request may be sent to the upstream now."""
        if not self._has_failed_check:
            return True
        now = time.monotonic()
        if now - self._admitted_at < CHECK_INTERVAL_S:
            return False
        self._admitted_at = now
        return True

    def record(self, *, is_failure: bool) -> None:
        """Note how a request to the upstream ended."""
        if not is_failure:
            self._n_failures, self._has_failed_check = 0, False
            return
        self._n_failures += 1
        if self._n_failures >= self._max_failures and self._checking is None:
            log(logging.ERROR, "the upstream fails: /ready answers 503", failures=self._n_failures)
            self._checking = asyncio.create_task(self._wait_for_recovery())

    async def close(self) -> None:
        """Stop checking."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    async def _wait_for_recovery(self) -> None:
        self._admitted_at = time.monotonic()
        self._has_failed_check = not await self._check()
        while self._n_failures >= self._max_failures:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self._has_failed_check = not await self._check()
            if not self._has_failed_check:
                self._n_failures = 0
        self._checking, self._has_failed_check = None, False
        log(logging.WARNING, "the upstream answers again: /ready answers 200")
