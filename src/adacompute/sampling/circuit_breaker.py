"""Circuit breaker: stop asking something that keeps failing, and try again later.

After several failures in a row it opens, and nothing should be asked. After a pause one
probe may find out whether it works again; each failed probe doubles the pause. It only counts: it
calls nothing, and takes the time from a clock that it is given. Use it from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Counts failures in a row.

    >>> breaker = CircuitBreaker(max_failures=2, clock=lambda: 0.0)
    >>> breaker.record(is_failure=True), breaker.record(is_failure=True), breaker.is_open
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
        self._n_failures = 0
        self._max_failures = max_failures
        self._min_pause_s = self._pause_s = pause_s
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._probe_at = 0.0

    @property
    def admits(self) -> bool:
        """Whether a request may be sent now, as a probe if the breaker is open."""
        return not self.is_open or self._clock() >= self._probe_at

    def record(self, *, is_failure: bool) -> bool:
        """Count how a request ended; return whether that opens or closes the breaker."""
        self._n_failures = self._n_failures + 1 if is_failure else 0
        was_open, self.is_open = self.is_open, self._n_failures >= self._max_failures
        if self.is_open and not was_open:
            self._probe_at = self._clock() + self._pause_s
        return self.is_open != was_open

    def start_probe(self) -> bool:
        """Return whether a probe should be made now; one that never ends delays the next."""
        if not self.is_open or not self.admits:
            return False
        self._probe_at = self._clock() + self._pause_s
        return True

    def end_probe(self, *, is_failure: bool) -> bool:
        """Count the result of a probe; return whether it closes the breaker."""
        if is_failure:
            self._pause_s = min(2 * self._pause_s, self._max_pause_s)
            self._probe_at = self._clock() + self._pause_s
            return False
        was_open, self.is_open, self._pause_s = self.is_open, False, self._min_pause_s
        self._n_failures = 0
        return was_open
