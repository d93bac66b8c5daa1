"""Memory register: a register in this process, which tests and simulations make fail.

It behaves as a server does that is restarted with its data, without them, or with old ones.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from itertools import count

from adacompute.spending.registers import PAGE_SIZE, Changes, Reading, RegisterError

Data = tuple[int, dict[str, tuple[str, int]]]
"""The number of the last change, and values with the number of their last change, by key."""

EMPTY: Data = (0, {})
_IDENTITIES = count()


class MemoryRegister:
    """The register of one process.

    While ``is_away`` is set, every call fails. ``n_calls`` counts calls.
    """

    def __init__(self, *, is_local: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.is_local = is_local
        self.is_away = False
        self.n_calls = 0
        self.number = 0
        self.values: dict[str, tuple[str, int]] = {}
        self._clock = clock
        self._expiries: dict[str, float] = {}
        self._next_expiries: list[tuple[float, str]] = []
        self._server = _make_identity()

    def restart(self, copy: Data | None = None) -> None:
        """Restart the server: with its data, or with those of ``copy``, such as ``EMPTY``."""
        self.is_away, self._server = False, _make_identity()
        if copy is not None:
            self.number, self.values = copy[0], dict(copy[1])

    def copy(self) -> Data:
        """Return the data of the server, for ``restart``."""
        return self.number, dict(self.values)

    async def read(self, key: str) -> Reading:
        """Return the value of a key."""
        self._call()
        value, _ = self.values.get(key, (None, 0))
        return Reading(value, self._server, self._clock())

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        """Replace a value, unless it or the server has changed since it was read."""
        del durable
        self._call()
        value, _ = self.values.get(key, (None, 0))
        if value != old.value or old.server != self._server:
            return False
        self.number += 1
        self.values.pop(key, None)
        self.values[key] = new, self.number  # the last change is last
        if self._expiries.get(key, math.inf) != expires_at:
            self._expiries[key] = expires_at
            heapq.heappush(self._next_expiries, (expires_at, key))
        self._delete_expired()
        return True

    async def changes(self, after: int) -> Changes:
        """Return values whose last change has a number above ``after``, one page."""
        self._call()
        found = []
        for key in reversed(self.values):
            value, number = self.values[key]
            if number <= after:
                break
            found.append((key, value, number))
        found, is_last = found[::-1][:PAGE_SIZE], len(found) <= PAGE_SIZE
        last = self.number if is_last else found[-1][2]
        values = {key: value for key, value, _ in found}
        return Changes(values, last, self._server, self._clock(), is_last)

    async def renew(self, server: str) -> None:
        """Give the server another identity, if it still has this one."""
        self._call()
        if self._server == server:
            self._server = _make_identity()

    async def check(self) -> str | None:
        """Return None."""
        return None

    async def close(self) -> None:
        """Do nothing."""

    def _delete_expired(self) -> None:
        while self._next_expiries and self._next_expiries[0][0] <= self._clock():
            expires_at, key = heapq.heappop(self._next_expiries)
            if self._expiries.get(key) == expires_at:
                self.values.pop(key, None)

    def _call(self) -> None:
        self.n_calls += 1
        if self.is_away:
            raise RegisterError("the register does not answer")


def _make_identity() -> str:
    return f"memory-{next(_IDENTITIES)}"
