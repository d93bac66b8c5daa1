"""Leases: what a replica may still spend under one counter without asking, and how much to ask for.

A lease is used by reservations and falls back to the register when it is not needed. It is meant to
last for ``lease_s`` of the recent spending, so that calls go on while the register does not answer;
it is smaller where little is left of the cap. A client that was not seen before gets a lease for a
few calls, and keeps it for ``lease_s``.
Everything here is local and takes no time; ``meter`` does the I/O.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Literal

from adacompute.spending.caps.accounts import LEASE_SHARE, CapAccount, Entry, LeaseReply
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.replica_file import Row

LeaseStatus = Literal["granted", "refused", "waiting", "recovering"]

LEASE_S = 30.0
"""Duration of recent spending that a lease is meant to last, unless configured."""

RISE_S = 5.0
"""Duration after which an estimated rate of spending has followed most of an increase."""

FIRST_CALLS = 8
"""Calls that a first lease is meant for."""

LOW_SHARE, HIGH_SHARE = 0.8, 1.5
"""Shares of the intended lease below which to ask for more, and above which to give back."""

SEND_S, NEARLY_FULL = 5.0, 0.9
"""How often what was spent is sent; at each refresh if more than this share of a cap is held."""


class Lease:
    """The lease of one counter.

    ``usable`` is the part of the grants that is durable on this replica's disk. ``account`` is the
    account as last seen, and ``largest`` the maximum of recent calls.
    """

    __slots__ = (
        "_idle_s",
        "_later",
        "_lease_s",
        "_peak",
        "_rates",
        "_sent_s",
        "_step",
        "_target",
        "_used_before",
        "account",
        "is_active",
        "is_changed",
        "is_extending",
        "largest",
        "lock",
        "min_refused",
        "row",
        "usable",
    )

    def __init__(
        self, row: Row, account: CapAccount | None = None, *, lease_s: float = LEASE_S
    ) -> None:
        self.row = row
        self.usable = row.granted
        self.account = account or CapAccount()
        self.lock = asyncio.Lock()
        self.min_refused: int | None = None
        self.is_active = False
        self.is_changed = True
        self.is_extending = False
        self._lease_s = lease_s
        self._later = (0, -math.inf)
        self._rates = (0.0, 0.0)
        self._idle_s = 0.0
        self._sent_s = math.inf
        self._used_before = row.used, row.spent
        self._peak = self.largest = self._step = self._target = 0

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
        is_low = self.left < LOW_SHARE * self._target
        return is_low and not self.is_extending and self.min_refused is None

    def take(self, amount: int) -> bool:
        """Reserve an amount; False, reserving nothing, if it is more than is left."""
        row = self.row
        used = row.used + amount
        if used > self.usable - row.returned:
            return False
        row.set_used(used)
        self.is_active = self.is_changed = True
        self._peak = max(self._peak, used - row.spent)
        self.largest = max(self.largest, amount)
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
        """Reduce the lease, at most by what is not used; the next message says so."""
        amount = min(amount, self.row.granted - self.row.returned - self.row.used)
        if amount > 0:
            self.row.set_returned(self.row.returned + amount)
            self.is_changed, self._sent_s = True, math.inf

    def give_back_all(self) -> None:
        """Keep only what is used; grants that are not synced yet are given back too."""
        self.give_back(self.row.granted)

    def is_refused(self, minimum: int) -> bool:
        """Whether as much was refused since the last refresh."""
        return self.min_refused is not None and minimum >= self.min_refused

    def ask_later(self, minimum: int, at: float) -> None:
        """Note that as much was not granted, and when to ask again."""
        self._later = minimum, at

    def was_asked(self, minimum: int, now: float) -> bool:
        """Whether as much was not granted just now: one of many calls that wait asks for all."""
        return minimum >= self._later[0] and now < self._later[1]

    def may_be_returned(self, minimum: int, others: Iterable[str]) -> bool:
        """Whether an amount fits if other replicas do not need their leases."""
        entries, nothing = self.account.entries, Entry()
        found = [entries.get(name, nothing) for name in others]
        free = self.counter.limit - self.account.held
        return free + sum(one.held - one.spent for one in found) >= minimum

    def must_send(self, *, now: bool) -> bool:
        """Whether to tell the register what has changed: ``now``, or after a while."""
        is_full = self.account.held > NEARLY_FULL * self.counter.limit
        return self.is_changed and (now or is_full or self._sent_s >= SEND_S)

    def copy(self, text: str | None, replica: str) -> None:
        """Take over a newer account; the next message gives back grants that are not known."""
        if text is not None:
            self.account = CapAccount.from_json(text)
            own = self.account.entries.get(replica, Entry())
            self.is_changed |= own.granted > self.row.granted

    def wanted(self, minimum: int) -> int:
        """How much to ask for if at least ``minimum`` is needed; it doubles with each call."""
        self._step = max(2 * self._step, FIRST_CALLS * minimum, self._target - self.left)
        return self._step

    def shortage(self) -> int:
        """How much to ask for at a refresh, before it is needed."""
        return max(0, self._target - self.left) if self.is_low else 0

    def adopt(self, reply: LeaseReply, replica: str, *, limit: int) -> None:
        """Take over the account, and what it says of this replica.

        Grants are usable once ``confirm`` is called, after a sync. Those that this replica does not
        know are given back: their reply was lost, or it was silent, and its ceiling was counted.
        """
        self.account, self._sent_s = reply.account, 0.0
        row, own = self.row, reply.account.entries[replica]
        granted = own.granted - reply.amount
        if row.is_stale:
            unknown = max(0, granted - row.granted)  # what was given back may be of these grants
            row.set_held_spent(own.returned - unknown)
        if own.spent > row.spent:  # the row was freed at the end of the period, and is used again
            row.set_used(row.used + own.spent - row.spent)
            row.set_spent(own.spent)
        known = max(row.granted - row.returned, row.used)
        row.set_granted(max(row.granted, own.granted))
        row.set_returned(max(row.returned, own.returned))
        self.give_back(granted - row.returned - known)
        if limit > self.counter.limit:  # it was lowered in the meantime
            self.give_back_all()

    def confirm(self, granted: int) -> None:
        """Make grants usable that are durable now."""
        self.usable = max(self.usable, granted)

    def measure(self, elapsed_s: float, n_replicas: int) -> None:
        """Update the rate of spending, and give back what it does not need; once per refresh."""
        row = self.row
        used, spent = self._used_before
        rate = max(row.used - used, row.spent - spent, 0) / elapsed_s
        self._used_before = row.used, row.spent
        shares = (-math.expm1(-elapsed_s / duration) for duration in (RISE_S, self._lease_s))
        self._rates = tuple(  # type: ignore[assignment]  # of two
            old + share * (rate - old) for old, share in zip(self._rates, shares, strict=True)
        )
        self._idle_s = 0.0 if self.is_active else self._idle_s + elapsed_s
        if self._idle_s >= self._lease_s:
            self._rates, self._peak, self.largest = (0.0, 0.0), 0, 0
        self._peak = max(self.reserved, int(self._peak * math.exp(-elapsed_s / self._lease_s)))
        free = self.counter.limit - self.account.held + self.left
        needed = int(self._lease_s * max(self._rates)) + self._peak - self.reserved
        needed = max(needed, FIRST_CALLS * self.largest)
        self._target = max(0, min(needed, free // (LEASE_SHARE * n_replicas)))
        if self.left > HIGH_SHARE * self._target:
            self.give_back(self.left - self._target)
        self._sent_s += elapsed_s
        self._step, self.min_refused, self.is_active = 0, None, False
