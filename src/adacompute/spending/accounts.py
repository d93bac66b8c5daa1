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
operator says how much was spent. A cap can be exceeded only if the server loses data and a replica
dies with a lease that is in no copy of the account that another replica has. This module does no
I/O; time is an argument.
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

MAX_OUTAGE_S = 3600.0
"""For so long without a server, replicas that died meanwhile with open leases are waited for."""

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

    @property
    def may_be_open(self) -> bool:
        """Whether the replica may spend more: under a lease, or under one that is not known."""
        return self.held > self.spent or self.granted == 0

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

    ``lost_at`` is when the first of several recoveries began, if none of those before has ended.
    """

    started_at: float
    server: str
    confirmed: frozenset[str] = frozenset()
    lost_at: float = 0.0


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
        return sum([entry.granted - entry.returned for entry in self.entries.values()])

    @property
    def spent(self) -> int:
        """What replicas said that they spent."""
        return sum(entry.spent for entry in self.entries.values())

    @property
    def missing(self) -> frozenset[str]:
        """Replicas whose copy a recovery waits for: those that were alive.

        A replica was alive if it sent something shortly before the loss was found. While the
        server was gone nobody could send anything, so for replicas that may have open leases the
        time of the last message of any replica counts instead. In the account without amounts,
        every replica may have some.
        """
        if self.recovery is None:
            return frozenset()
        lost_at = self.recovery.lost_at
        last = max((entry.seen_at for entry in self.entries.values()), default=0.0)
        oldest = max(min(last, lost_at) - ALIVE_S, lost_at - MAX_OUTAGE_S)
        waits = {
            name
            for name, entry in self.entries.items()
            if entry.seen_at >= (oldest if entry.may_be_open else lost_at - ALIVE_S)
        }
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
            times = recovery.started_at, recovery.lost_at
            found["recovery"] = [*times, recovery.server, *confirmed]
        return json.dumps(found, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> CapAccount:
        """Read an account; DataError if the text is none."""
        try:
            found = json.loads(text)
            return CapAccount(
                {name: _read_entry(*numbers) for name, numbers in found["entries"].items()},
                int(found["number"]),
                str(found["server"]),
                _read_recovery(*found["recovery"]) if "recovery" in found else None,
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DataError(f"an account of a cap cannot be read: {error}") from None


@dataclass(frozen=True)
class LeaseRequest:
    """What a replica sends: its own entry, what it has seen, and what it needs.

    ``minimum`` is the least that is of use; 0 asks for nothing. ``wanted`` is what it would like.
    ``known`` is its copy of the account, None if it has none, and ``server`` the last server under
    which it saw a complete account of any cap.
    """

    replica: str
    entry: Entry
    limit: int
    minimum: int = 0
    wanted: int = 0
    known: CapAccount | None = None
    server: str = ""


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
    if account.recovery is not None:
        return LeaseReply(account, "recovering")
    account = account.merge({request.replica: replace(request.entry, seen_at=now)})
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

    This is how an operator ends a recovery that waits for replicas that are gone. Open leases that
    the account knows of count in addition, until they are given back.
    """
    account = stored or CapAccount()
    more = max(0, spent - account.spent)
    before = account.entries.get(OPERATOR, Entry())
    entry = Entry(before.granted + more, before.returned, before.spent + more, now)
    return _complete(account, server, now).merge({OPERATOR: entry})


def _recover(
    stored: CapAccount | None, request: LeaseRequest, server: str, now: float, recovery_s: float
) -> CapAccount:
    """Return a complete account, or one in recovery with the replica's copy merged into it.

    During a recovery the times of entries stay as they were before it: ``missing`` needs them.
    """
    known = request.known or CapAccount()
    name, own = request.replica, replace(request.entry, seen_at=0.0)
    if stored is None and known.number == own.granted == 0 and request.server == server:
        return CapAccount(server=server)
    account = stored or CapAccount()
    recovery = account.recovery
    if recovery is None and account.server == server and _contains(account, known):
        return account
    if recovery is None or recovery.server != server:
        before = recovery or known.recovery
        lost_at = now if before is None else max(before.lost_at, now - MAX_OUTAGE_S)
        recovery = Recovery(now, server, lost_at=lost_at)
    recovery = replace(recovery, confirmed=recovery.confirmed | {name})
    number = max(account.number, known.number)
    account = replace(account, number=number, recovery=recovery).merge(known.entries)
    account = account.merge({name: own})
    if now - recovery.started_at < recovery_s or account.missing:
        return account
    return _complete(account, server, now)


def _complete(account: CapAccount, server: str, now: float) -> CapAccount:
    """End a recovery; replicas that sent their copy were seen now."""
    confirmed = account.recovery.confirmed if account.recovery else ()
    before = {name: account.entries.get(name, Entry()) for name in confirmed}
    seen = {name: replace(entry, seen_at=now) for name, entry in before.items()}
    number = account.number + 1
    return replace(account, number=number, server=server, recovery=None).merge(seen)


def _contains(account: CapAccount, known: CapAccount) -> bool:
    """Whether an account contains every grant of a copy."""
    if known.number > account.number:
        return False
    entries, nothing = account.entries, Entry()
    for name, entry in known.entries.items():
        stored = entries.get(name, nothing)
        if stored is not entry and stored.granted < entry.granted:
            return False
    return True


def _n_alive(account: CapAccount, now: float) -> int:
    """Replicas that share what is left."""
    oldest = now - ALIVE_S
    return sum([entry.seen_at >= oldest for entry in account.entries.values()])


def _read_entry(granted: int, returned: int, spent: int, seen_at: float) -> Entry:
    if not type(granted) is type(returned) is type(spent) is int:
        raise TypeError("amounts must be whole numbers")
    return Entry(granted, returned, spent, float(seen_at))


def _read_recovery(started_at: float, lost_at: float, server: str, *confirmed: str) -> Recovery:
    return Recovery(float(started_at), server, frozenset(confirmed), float(lost_at))
