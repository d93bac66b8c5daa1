"""Accounts: how much of a cap each replica may spend, as values that can be merged.

Replicas are processes that spend under one cap. A replica takes a lease from the account of the
cap: an amount that it may spend without asking again. What it does not need it gives back. The
account has one entry per replica, of amounts that only grow, so a repeated message changes nothing
and entries from several copies of the account are merged by their maximum.

Everything that a replica was granted and did not give back counts as spent. So the amounts of all
entries together never exceed the cap, and a replica that dies takes its lease with it.

All replicas keep copies of all accounts, at most ``COPY_S`` old. A replica is granted at most what
the copies of others already say that it may be granted: its ceiling. So if the store loses its data
and the replica disappears, the others still know a bound on what it holds, and count that. This
module does no I/O; time is an argument.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from adacompute.spending.registers import read_value

COPY_S = 1.5
"""Maximum age of a replica's copies of the accounts: it reads changes twice per second."""

ALIVE_S = 60.0
"""A replica that was not seen for so long is gone."""

LEASE_SHARE = 4
"""All leases together are granted at most one part in so many of what is left of a cap."""

CEILING_SHARE = 16
"""A first ceiling, before others know that a replica uses a cap, is one part in so many of it."""

CEILING_CALLS = 32
"""A ceiling is at least so many calls above what is granted, however little is left of a cap."""

MAX_AMOUNT = 2**63
"""Amounts are less than this, so that they fit in a replica file."""

OPERATOR = "operator"
"""Name of the entry that an operator sets."""

Status = Literal["granted", "refused", "waiting"]


@dataclass(frozen=True)
class Entry:
    """What one replica was granted, gave back and spent, in total, and its ceiling.

    ``next_ceiling`` takes the place of ``ceiling`` once all copies contain it: ``COPY_S`` after
    ``raised_at``.
    """

    granted: int = 0
    returned: int = 0
    spent: int = 0
    ceiling: int = 0
    next_ceiling: int = 0
    raised_at: float = 0.0

    @property
    def held(self) -> int:
        """What counts against the cap."""
        return self.granted - self.returned

    def merge(self, other: Entry) -> Entry:
        """Return the later of two entries of one replica."""
        return Entry(
            max(self.granted, other.granted),
            max(self.returned, other.returned),
            max(self.spent, other.spent),
            max(self.ceiling, other.ceiling),
            max(self.next_ceiling, other.next_ceiling),
            max(self.raised_at, other.raised_at),
        )

    def raise_ceiling(self, room: int, now: float) -> Entry:
        """Announce a ceiling that is ``room`` above what is granted, if all know the last one."""
        if self.next_ceiling > self.ceiling and abs(now - self.raised_at) < COPY_S:
            return self
        ceiling = max(self.next_ceiling, self.granted + room)
        return replace(
            self, ceiling=self.next_ceiling, next_ceiling=ceiling, raised_at=round(now, 3)
        )

    def give_back(self) -> Entry:
        """Give back everything that is not spent."""
        return replace(self, returned=max(self.returned, self.granted - self.spent))

    def count_ceiling(self) -> Entry:
        """Count as granted what may have been granted; the replica gives it back if it returns."""
        return replace(self, granted=max(self.granted, self.next_ceiling))


@dataclass(frozen=True)
class CapAccount:
    """The entries of one cap, and its limit when a lease was granted last."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    limit: int = 0

    @cached_property
    def held(self) -> int:
        """What counts against the cap: everything that was spent or leased."""
        return sum([entry.granted - entry.returned for entry in self.entries.values()])

    @cached_property
    def spent(self) -> int:
        """What replicas said that they spent."""
        return sum([entry.spent for entry in self.entries.values()])

    def merge(self, entries: Mapping[str, Entry]) -> CapAccount:
        """Return the account with other entries merged into it."""
        merged = dict(self.entries)
        for name, entry in entries.items():
            merged[name] = merged[name].merge(entry) if name in merged else entry
        return replace(self, entries=merged)

    def contains(self, other: CapAccount) -> bool:
        """Whether every grant and ceiling of another copy is in this one."""
        nothing = Entry()
        pairs = ((entry, self.entries.get(name, nothing)) for name, entry in other.entries.items())
        return all(
            entry.granted <= stored.granted and entry.next_ceiling <= stored.next_ceiling
            for entry, stored in pairs
        )

    def count_silent(self, silent: Iterable[str]) -> CapAccount:
        """Count what replicas may hold that do not report what they hold.

        One without an entry may have begun to use the cap just before.
        """
        first = Entry(next_ceiling=self.limit // CEILING_SHARE)
        return self.merge({name: self.entries.get(name, first).count_ceiling() for name in silent})

    def set_spent(self, spent: int) -> CapAccount:
        """Return an account in which at least ``spent`` is spent; leases count in addition."""
        more = max(0, spent - self.spent)
        before = self.entries.get(OPERATOR, Entry())
        entry = Entry(before.granted + more, before.returned, before.spent + more)
        return self.merge({OPERATOR: entry})

    def to_json(self) -> str:
        """Write the account as a line of JSON."""
        entries = {name: list(vars(one).values()) for name, one in self.entries.items()}
        return json.dumps({"entries": entries, "limit": self.limit}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | None) -> CapAccount:
        """Read an account, an empty one without a text; DataError if the text is none."""
        return CapAccount() if text is None else _read_account(text)


@dataclass(frozen=True)
class LeaseRequest:
    """What a replica sends: its own entry, who else there is, and what it needs.

    ``minimum`` is the least that is of use; 0 asks for nothing. ``wanted`` is what it would like,
    and ``largest`` the maximum of its recent calls. ``n_replicas`` is the number of replicas that
    run. ``silent`` are those that did not report when the server had restarted: they may have used
    a cap that nobody else knows.
    """

    replica: str
    entry: Entry
    limit: int
    minimum: int = 0
    wanted: int = 0
    largest: int = 0
    n_replicas: int = 1
    silent: Collection[str] = ()


@dataclass(frozen=True)
class LeaseReply:
    """The account after a request, and what became of the request."""

    account: CapAccount
    status: Status
    amount: int = 0


def exchange(stored: CapAccount, request: LeaseRequest, *, now: float) -> LeaseReply:
    """Merge what a replica sent into the stored account, and grant a lease if it asks for one.

    ``now`` is the clock of the server that keeps the account.

    >>> request = LeaseRequest("a", Entry(), limit=40, minimum=4, wanted=20)
    >>> reply = exchange(CapAccount(), request, now=0.0)
    >>> reply.status, reply.amount, reply.account.held
    ('granted', 10, 10)
    """
    limit, name, minimum = request.limit, request.replica, request.minimum
    account = replace(stored, limit=limit)
    if not stored.entries:
        account = account.count_silent(request.silent)
    first = limit // CEILING_SHARE
    own = account.entries.get(name, Entry(ceiling=first, next_ceiling=first, raised_at=now))
    own = own.merge(request.entry)
    account = account.merge({name: own})
    free, n_replicas = limit - account.held, request.n_replicas
    if minimum > free:
        return LeaseReply(account, "refused")
    if minimum == 0:
        return LeaseReply(account, "granted")
    room = max(first // n_replicas, min(2 * request.wanted, free // n_replicas))
    room = min(limit, max(room, CEILING_CALLS * max(minimum, request.largest)))
    own = own.raise_ceiling(room, now)
    allowed = own.ceiling - own.granted if n_replicas > 1 else free
    if minimum > allowed:
        return LeaseReply(account.merge({name: own}), "waiting")
    amount = max(minimum, min(request.wanted, free // (LEASE_SHARE * n_replicas), allowed))
    granted = replace(own, granted=own.granted + amount)
    return LeaseReply(account.merge({name: granted}), "granted", amount)


@lru_cache(maxsize=256)
def _read_account(text: str) -> CapAccount:
    """Read an account; its text is often read several times in a row."""
    return read_value(text, _build_account, "an account of a cap")


def _build_account(found: Any) -> CapAccount:  # noqa: ANN401 - JSON of others
    entries = {name: _read_entry(*numbers) for name, numbers in found["entries"].items()}
    return CapAccount(entries, _read_amount(found["limit"]))


def _read_entry(
    granted: int, returned: int, spent: int, ceiling: int, next_ceiling: int, raised_at: float
) -> Entry:
    if not abs(raised_at) < math.inf:
        raise ValueError("times must be finite")
    for amount in (granted, returned, spent, ceiling, next_ceiling):
        _read_amount(amount)
    return Entry(granted, returned, spent, ceiling, next_ceiling, float(raised_at))


def _read_amount(amount: int) -> int:
    if type(amount) is not int or not 0 <= amount < MAX_AMOUNT:
        raise ValueError(f"amounts must be whole numbers from 0 to {MAX_AMOUNT}, not {amount}")
    return amount
