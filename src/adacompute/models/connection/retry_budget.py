"""Retry budget: how many retries calls may make together, as a share of the calls.

Retries of a few calls help; retries of all calls keep an overloaded server overloaded. Every call
adds its share of a retry, every retry takes one, and a reserve allows the first retries. It only
counts: it sends nothing and does not know why a call failed. Use it from one thread.
"""

from __future__ import annotations

from adacompute.core.errors import ConfigError

RESERVE = 100
"""Retries that are allowed before the share limits them, and the most that calls can save up."""


class RetryBudget:
    """Counts calls and retries.

    >>> budget = RetryBudget(0.5, reserve=1)
    >>> budget.take(), budget.take()
    (True, False)
    >>> budget.record_call(), budget.record_call(), budget.take()
    (None, None, True)
    """

    def __init__(self, share: float, *, reserve: int = RESERVE) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"a share of retries must be from 0 to 1, not {share}")
        self._share = share
        self._reserve = self._available = float(reserve)

    def record_call(self) -> None:
        """Count the first attempt of a call."""
        self._available = min(self._reserve, self._available + self._share)

    def take(self) -> bool:
        """Take one retry; return whether there was one left."""
        if self._available < 1:
            return False
        self._available -= 1
        return True
