"""Leases: what a replica may still spend under one counter without asking, and how much to ask for.

A lease is used by reservations and falls back to the register when it is not needed. Everything
here is local and takes no time; ``meter`` does the I/O. A replica asks for about two seconds of its
recent spending, and for twice as much each time that it runs out before the next refresh.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from adacompute.spending.accounts import CapAccount, LeaseReply
from adacompute.spending.counters import Counter
from adacompute.spending.replica_file import Row

LeaseStatus = Literal["granted", "refused", "recovering", "unavailable"]

LEASE_S = 2.0
"""Duration of recent spending that a lease is meant to last."""


FIRST_CALLS = 32
"""Calls that a first lease is meant for."""


class Lease:
    """The lease of one counter.

    ``usable`` is the part of the grants that is durable on this replica's disk. ``account`` is the
    account as last seen, and ``text`` the same as JSON.
    """

    __slots__ = (
        "_low",
        "_peak",
        "_spent_before",
        "_step",
        "_used_before",
        "account",
        "copied_at",
        "is_active",
        "is_changed",
        "is_extending",
        "lock",
        "min_refused",
        "rate",
        "row",
        "status",
        "text",
        "usable",
    )

    def __init__(self, row: Row, account: CapAccount | None = None) -> None:
        self.row = row
        self.usable = row.granted
        self.account = account
        self.text = account.to_json() if account else ""
        self.copied_at = 0.0
        self.lock = asyncio.Lock()
        self.status: LeaseStatus = "granted"
        self.min_refused: int | None = None
        self.is_active = False
        self.is_changed = True
        self.is_extending = False
        self.rate = 0.0
        self._peak = self._used_before = row.used
        self._spent_before = row.spent
        self._step = 0
        self._low = 0

    @property
    def counter(self) -> Counter:
        """The counter."""
        return self.row.counter

    @property
    def left(self) -> int:
        """What can be reserved without asking."""
        return self.usable - self.row.returned - self.row.used

    @property
    def reserved(self) -> int:
        """What is reserved for open calls."""
        return self.row.used - self.row.spent

    @property
    def is_low(self) -> bool:
        """Whether to ask for more before this runs out."""
        return self.left < self._low and not self.is_extending and self.min_refused is None

    def take(self, amount: int) -> bool:
        """Reserve an amount; False, reserving nothing, if it is more than is left."""
        row = self.row
        used = row.used + amount
        if used > self.usable - row.returned:
            return False
        row.set_used(used)
        self.is_active = self.is_changed = True
        self._peak = max(self._peak, used)
        return True

    def release(self, amount: int) -> None:
        """Undo a reservation."""
        self.row.set_used(self.row.used - amount)

    def settle(self, amount: int, actual: int) -> int:
        """Replace a reservation by what was spent, and return the part that was not reserved.

        An overrun that the lease does not cover counts as granted: it was spent.
        """
        row = self.row
        row.set_used(row.used + actual - amount)
        row.set_spent(row.spent + actual)
        self.is_active = self.is_changed = True
        if self.left < 0 and actual > amount:
            self.usable -= self.left
            row.set_granted(max(row.granted, self.usable))
        return max(0, actual - amount)

    def set_limit(self, counter: Counter) -> None:
        """Change the limit; under a lower one, everything that is left is given back."""
        if counter.limit < self.counter.limit:
            self.give_back_all()
        self.row.set_limit(counter)
        self.min_refused = None

    def give_back(self, amount: int) -> None:
        """Reduce the lease; the next message to the register says so."""
        if amount > 0:
            self.row.set_returned(self.row.returned + amount)
            self.is_changed = True

    def give_back_all(self) -> None:
        """Keep only what is used; grants that are not synced yet are given back too."""
        self.give_back(self.row.granted - self.row.returned - self.row.used)

    def is_refused(self, minimum: int) -> bool:
        """Whether as much was refused since the last refresh."""
        return self.min_refused is not None and minimum >= self.min_refused

    def wanted(self, minimum: int) -> int:
        """How much to ask for if at least ``minimum`` is needed; it doubles with each call."""
        self._step = max(2 * self._step, FIRST_CALLS * minimum, int(LEASE_S * self.rate))
        return self._step

    def shortage(self) -> int:
        """How much to ask for at a refresh, before it is needed."""
        return max(0, int(LEASE_S * self.rate) - self.left)

    def adopt(
        self, reply: LeaseReply, replica: str, *, limit: int, minimum: int, wanted: int
    ) -> None:
        """Take over the account, and what it says of this replica.

        The account may know of grants whose reply was lost. Grants are usable once ``confirm`` is
        called, after a sync.
        """
        self._keep(reply.account)
        self.status = reply.status
        own = reply.account.entries[replica]
        row = self.row
        if row.is_stale and reply.status != "recovering":
            row.set_held_spent(own.returned)
        row.set_granted(max(row.granted, own.granted))
        row.set_returned(max(row.returned, own.returned))
        if own.spent > row.spent:  # the row was freed at the end of the period, and is used again
            row.set_used(row.used + own.spent - row.spent)
            row.set_spent(own.spent)
        if reply.status == "refused":
            self.min_refused = minimum
        elif reply.status == "recovering":
            self.set_recovering()
        if wanted:  # near the cap, asking early would cost a round trip per call
            self._low = wanted // 2 if reply.amount >= wanted else 0
        if limit > self.counter.limit:  # it was lowered in the meantime
            self.give_back_all()

    def copy(self, account: CapAccount, server: str) -> bool:
        """Keep a newer copy of the account; False if it is an older one, or not complete."""
        is_complete = account.recovery is None and account.server == server
        if not is_complete or (self.account is not None and self.account.number > account.number):
            return False
        self._keep(account)
        return True

    def _keep(self, account: CapAccount) -> None:
        if account != self.account:
            self.account, self.text = account, account.to_json()
        self.copied_at = time.monotonic()

    def set_recovering(self) -> None:
        """Refuse everything until the next refresh, and keep what is left."""
        self.status, self.min_refused = "recovering", 0

    def confirm(self, granted: int) -> None:
        """Make grants usable that are durable now."""
        self.usable = max(self.usable, granted)

    def measure(self, elapsed_s: float) -> None:
        """Update the rate of spending, and give back what it does not need; once per refresh."""
        row = self.row
        self.rate, needed = 0.0, row.granted if self.status == "recovering" else 0
        if self.is_active:
            grown = max(row.used - self._used_before, row.spent - self._spent_before, 0)
            self.rate = grown / elapsed_s
            needed = max(needed, self._peak + int(LEASE_S * self.rate))
        self.give_back(min(self.left, self.usable - row.returned - needed))
        self._peak = self._used_before = row.used
        self._spent_before = row.spent
        self._step = 0
        self._low = int(self.rate)
        self.min_refused = None
        self.is_active = False
