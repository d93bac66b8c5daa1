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
from collections.abc import Awaitable, Callable

from adacompute.gateway.processes.logs import log
from adacompute.models.connection.circuit_breaker import CircuitBreaker

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
        self._breaker = CircuitBreaker(
            max_failures=MAX_FAILURES + 1,
            window=WINDOW,
            pause_s=ADMIT_INTERVAL_S,
            max_pause_s=ADMIT_INTERVAL_S,
        )
        self._checking: asyncio.Task[None] | None = None
        self._has_failed_check = False
        self._trusted_until = 0.0

    @property
    def is_failing(self) -> bool:
        """Whether most of the last requests failed, and no check has succeeded since."""
        return self._breaker.is_open

    @property
    def was_asked(self) -> bool:
        """Whether it is known of any request how it ended."""
        return bool(self._breaker.failures)

    def admits(self) -> bool:
        """Whether a request may be sent to the upstream now."""
        return not self._has_failed_check or self._breaker.start_probe()

    def record(self, *, is_failure: bool) -> None:
        """Note how a request to the upstream ended.

        Failures right after a check that succeeded are those of one client's requests.
        """
        if is_failure and time.monotonic() < self._trusted_until:
            return
        if not is_failure:
            self._has_failed_check = False
        if self._breaker.record(is_failure=is_failure):
            if self.is_failing:
                n_failures = sum(self._breaker.failures)
                log(logging.ERROR, "the upstream fails: /ready answers 503", failures=n_failures)
            else:
                self._recover()
        if self.is_failing and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check_until_it_answers())

    async def close(self) -> None:
        """Stop checking."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    def _recover(self) -> None:
        self._has_failed_check = False
        log(logging.WARNING, "the upstream answers again: /ready answers 200")

    async def _check_until_it_answers(self) -> None:
        while self.is_failing:
            answers = await self._check()
            if self.is_failing and answers:
                self._breaker.end_probe(is_failure=False)
                self._trusted_until = time.monotonic() + CHECK_INTERVAL_S
                self._recover()
            elif self.is_failing:
                self._breaker.end_probe(is_failure=True)
                self._has_failed_check = answers is False
                await asyncio.sleep(CHECK_INTERVAL_S)
