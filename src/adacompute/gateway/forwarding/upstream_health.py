"""Upstream health: whether the upstream has failed repeatedly, and when it answers again.

When nine of the last ten requests failed, the gateway is not ready. It then checks the upstream
itself every few seconds, until a check succeeds or enough requests do. While checks fail too,
requests are not admitted, except for one every few seconds that finds out whether the upstream
fails for the check alone. A client whose own requests fail does not keep others out, because the
check succeeds, and for some seconds after that failures do not count. It knows nothing of models or
clients.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from adacompute.gateway.processes.logs import log

WINDOW, MAX_FAILURES = 10, 8
"""Requests that count, and how many of them may fail."""

CHECK_INTERVAL_S = 10.0
"""Seconds between two checks."""

ADMIT_INTERVAL_S = 2.0
"""Seconds between two requests that are admitted while checks fail."""

Check = Callable[[], Awaitable[bool | None]]
"""Returns whether the upstream answers; None if that cannot be found out."""


class UpstreamHealth:
    """A circuit breaker that opens when most of the last requests failed."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._failures: deque[bool] = deque(maxlen=WINDOW)
        self._checking: asyncio.Task[None] | None = None
        self._has_failed_check = False
        self._admitted_at = self._trusted_until = 0.0
        self.is_failing = False

    @property
    def was_asked(self) -> bool:
        """Whether it is known of any request how it ended."""
        return self.is_failing or bool(self._failures)

    def admits(self) -> bool:
        """Whether a request may be sent to the upstream now."""
        if not self._has_failed_check:
            return True
        now = time.monotonic()
        if now - self._admitted_at < ADMIT_INTERVAL_S:
            return False
        self._admitted_at = now
        return True

    def record(self, *, is_failure: bool) -> None:
        """Note how a request to the upstream ended.

        Failures right after a check that succeeded are those of one client's requests.
        """
        if is_failure and time.monotonic() < self._trusted_until:
            return
        self._failures.append(is_failure)
        if not is_failure:
            self._has_failed_check = False
        n_failures = sum(self._failures)
        if self.is_failing and n_failures <= MAX_FAILURES:
            self._recover()
        elif not self.is_failing and n_failures > MAX_FAILURES:
            self.is_failing = True
            log(logging.ERROR, "the upstream fails: /ready answers 503", failures=n_failures)
        if self.is_failing and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check_until_it_answers())

    async def close(self) -> None:
        """Stop checking."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    def _recover(self) -> None:
        self.is_failing = self._has_failed_check = False
        log(logging.WARNING, "the upstream answers again: /ready answers 200")

    async def _check_until_it_answers(self) -> None:
        while self.is_failing:
            answers = await self._check()
            if self.is_failing and answers:
                self._failures.clear()
                self._trusted_until = time.monotonic() + CHECK_INTERVAL_S
                self._recover()
            elif self.is_failing:
                self._admitted_at = time.monotonic()
                self._has_failed_check = answers is False
                await asyncio.sleep(CHECK_INTERVAL_S)
