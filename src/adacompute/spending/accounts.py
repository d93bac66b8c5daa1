"""Accounts: how much of a cap each replica may spend, as values that can be merged.

Replicas are processes that spend under one cap. A replica takes a lease from the account of the
cap: an amount that it may spend without asking again. What it does not need it gives back. The
account has one entry per replica, of amounts that only grow, so a repeated message changes nothing
and entries from several copies of the account are merged by their maximum.

Everything that a replica was granted and did not give back counts as spent. So the amounts of all
entries together never exceed the cap, and a replica that dies takes its lease with it.

A server that keeps the account may lose it: it restarts empty or from an old copy, or another
server takes over. This shows in its identity, or in a number of grants below one that a replica has
seen. Then nothing is granted until every replica that was alive has sent its copy, or until the
operator says how much was spent. This module does no I/O; time is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from adacompute.core.errors import DataError

RECOVERY_S = 3.0
"""Least duration of a recovery: replicas send their copy once per second."""

ALIVE_S = 10.0
"""A replica that sent nothing for so long before the account was lost is not waited for."""

OPERATOR = "operator"
"""Name of the entry that an operator sets."""

Status = Literal["granted", "refused", "recovering"]


@dataclass(frozen=True)
class Entry:
    """What one replica was granted, gave back and spent, in total, and when it last said so."""

    granted: int = 0
    returned: int = 0
    spent: int = 0
    seen_at: float = 0.0

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
            max(self.seen_at, other.seen_at),
        )


@dataclass(frozen=True)
class Recovery:
    """When and on which server an account was found to be lost, and who sent a copy since.

    ``lost_at`` is when the account was last known to be complete; 0 if nobody knows.
    """

    started_at: float
    server: str
    lost_at: float = 0.0
    confirmed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CapAccount:
    """The entries of one cap.

    ``number`` grows with every grant. ``server`` is the identity of the server under which the
    account is known to be complete.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    number: int = 0
    server: str = ""
    recovery: Recovery | None = None

    @property
    def held(self) -> int:
        """What counts against the cap: everything that was spent or leased."""
        return sum(entry.held for entry in self.entries.values())

    @property
    def spent(self) -> int:
        """What replicas said that they spent."""
        return sum(entry.spent for entry in self.entries.values())

    @property
    def missing(self) -> frozenset[str]:
        """Replicas whose copy a recovery waits for."""
        if self.recovery is None:
            return frozenset()
        oldest = (self.recovery.lost_at or self.recovery.started_at) - ALIVE_S
        waits = {name for name, entry in self.entries.items() if entry.seen_at >= oldest}
        return frozenset(waits - self.recovery.confirmed - {OPERATOR})

    def merge(self, entries: Mapping[str, Entry]) -> CapAccount:
        """Return the account with other entries merged into it."""
        merged = dict(self.entries)
        for name, entry in entries.items():
            merged[name] = merged[name].merge(entry) if name in merged else entry
        return replace(self, entries=merged)

    def to_json(self) -> str:
        """Write the account as a line of JSON."""
        entries = {
            name: [one.granted, one.returned, one.spent, round(one.seen_at, 3)]
            for name, one in self.entries.items()
        }
        found: dict[str, object] = {
            "entries": entries,
            "number": self.number,
            "server": self.server,
        }
        if self.recovery is not None:
            recovery = self.recovery
            confirmed = sorted(recovery.confirmed)
            times = (recovery.started_at, recovery.lost_at)
            found["recovery"] = [*times, recovery.server, *confirmed]
        return json.dumps(found, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> CapAccount:
        """Read an account; DataError if the text is none."""
        try:
            found = json.loads(text)
            recovery = found.get("recovery")
            return CapAccount(
                {name: Entry(*numbers) for name, numbers in found["entries"].items()},
                int(found["number"]),
                str(found["server"]),
                recovery
                and Recovery(recovery[0], recovery[2], recovery[1], frozenset(recovery[3:])),
            )
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise DataError(f"an account of a cap cannot be read: {error}") from None


@dataclass(frozen=True)
class LeaseRequest:
    """What a replica sends: its own entry, what it has seen, and what it needs.

    ``minimum`` is the least that is of use; 0 asks for nothing. ``wanted`` is what it would like.
    ``known`` is its copy of the account, None if it has none, and ``server`` the last server under
    which it saw a complete account of any cap. ``seen_at`` is when it last saw one, by the clock of
    that server; 0 if never.
    """

    replica: str
    entry: Entry
    limit: int
    minimum: int = 0
    wanted: int = 0
    known: CapAccount | None = None
    server: str = ""
    seen_at: float = 0.0


@dataclass(frozen=True)
class LeaseReply:
    """The account after a request, and what became of the request."""

    account: CapAccount
    status: Status
    amount: int = 0


def exchange(
    stored: CapAccount | None,
    request: LeaseRequest,
    *,
    server: str,
    now: float,
    recovery_s: float = RECOVERY_S,
) -> LeaseReply:
    """Merge what a replica sent into the stored account, and grant a lease if it asks for one.

    ``server`` and ``now`` are the identity and the clock of the server that keeps the account, and
    ``recovery_s`` is how long a recovery takes at least.

    >>> request = LeaseRequest("a", Entry(), limit=10, minimum=4, wanted=6, server="s")
    >>> reply = exchange(None, request, server="s", now=0.0)
    >>> reply.status, reply.amount, reply.account.held
    ('granted', 5, 5)
    """
    account = _recover(stored, request, server, now, recovery_s)
    own = replace(request.entry, seen_at=now)
    account = account.merge({request.replica: own})
    if account.recovery is not None:
        return LeaseReply(account, "recovering")
    free = request.limit - account.held
    if request.minimum > free:
        return LeaseReply(account, "refused")
    if request.minimum == 0:
        return LeaseReply(account, "granted")
    amount = max(request.minimum, min(request.wanted, free // (2 * _n_alive(account, now))))
    entry = account.entries[request.replica]
    granted = replace(entry, granted=entry.granted + amount)
    account = replace(account.merge({request.replica: granted}), number=account.number + 1)
    return LeaseReply(account, "granted", amount)


def set_spent(stored: CapAccount | None, spent: int, *, server: str, now: float) -> CapAccount:
    """Return an account in which at least ``spent`` is spent, and which is complete.

    This is how an operator ends a recovery that waits for replicas that are gone.
    """
    account = stored or CapAccount()
    more = max(0, spent - account.held)
    before = account.entries.get(OPERATOR, Entry())
    entry = Entry(before.granted + more, before.returned, before.spent + more, now)
    complete = replace(account, number=account.number + 1, server=server, recovery=None)
    return complete.merge({OPERATOR: entry})


def _recover(
    stored: CapAccount | None, request: LeaseRequest, server: str, now: float, recovery_s: float
) -> CapAccount:
    """Return a complete account, or one in recovery with the replica's copy merged into it."""
    known = request.known or CapAccount()
    if stored is None and known.number == 0 and request.server == server:
        return CapAccount(server=server)
    account = stored or CapAccount()
    recovery = account.recovery
    if recovery is None and account.server == server and known.number <= account.number:
        return account
    lost_at = max(min(now, request.seen_at), 0.0 if recovery is None else recovery.lost_at)
    if recovery is None or recovery.server != server:
        recovery = Recovery(now, server)
    confirmed = recovery.confirmed | {request.replica}
    recovery = replace(recovery, lost_at=lost_at, confirmed=confirmed)
    number = max(account.number, known.number)
    account = replace(account, number=number, recovery=recovery).merge(known.entries)
    account = account.merge({request.replica: request.entry})
    if now - recovery.started_at < recovery_s or account.missing:
        return account
    return replace(account, number=number + 1, server=server, recovery=None)


def _n_alive(account: CapAccount, now: float) -> int:
    """Replicas that share what is left."""
    return sum(entry.seen_at >= now - ALIVE_S for entry in account.entries.values())
