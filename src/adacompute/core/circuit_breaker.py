"""Circuit breaker: stop asking something that keeps failing, and try again later.

After some failures in a row it opens, and nothing should be asked. After a pause one probe may find
out whether it works again; each failed probe doubles the pause. It only counts: it calls nothing,
and takes the time from a clock that it is given. Use it from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Counts failures in a row.

    >>> breaker = CircuitBreaker(max_failures=2, clock=lambda: 0.0)
    >>> breaker.record_failure(), breaker.record_failure(), breaker.is_open
    (False, True, True)
    """

    def __init__(
        self,
        *,
        max_failures: int = 3,
        pause_s: float = 1.0,
        max_pause_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_open = False
        self._max_failures = max_failures
        self._min_pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._n_failures = 0
        self._pause_s = pause_s
        self._probe_at = 0.0
        self._is_probing = False

    def record_success(self) -> bool:
        """Count a success; return whether it closes the breaker."""
        was_open, self.is_open, self._is_probing = self.is_open, False, False
        self._n_failures, self._pause_s = 0, self._min_pause_s
        return was_open

    def record_failure(self) -> bool:
        """Count a failure; return whether it opens the breaker."""
        self._n_failures += 1
        if self.is_open or self._n_failures < self._max_failures:
            return False
        self.is_open = True
        self._probe_at = self._clock() + self._pause_s
        return True

    def start_probe(self) -> bool:
        """Return whether a probe should be made now; end it with the next method."""
        if not self.is_open or self._is_probing or self._clock() < self._probe_at:
            return False
        self._is_probing = True
        return True

    def end_probe(self, *, is_success: bool) -> bool:
        """Count the result of a probe; return whether it closes the breaker."""
        if is_success:
            return self.record_success()
        self._is_probing = False
        self._pause_s = min(2 * self._pause_s, self._max_pause_s)
        self._probe_at = self._clock() + self._pause_s
        return False
