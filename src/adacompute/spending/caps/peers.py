"""Peers: what a replica knows of the accounts in a register, and of the other replicas.

Twice per second a replica reads what has changed in the register, so that it has a copy of all
accounts, and every few seconds it says that it is alive. A replica that stops says that it leaves.

When the identity of the server changes, it may have lost data. Then each replica compares it with
its copies, gives it what it lacks, and reports. Leases are granted again when all replicas that
were alive have reported. If the server lacked nothing, they are waited for for ``RESTART_S``, else
for ``RECOVERY_S``; after that, what silent replicas may hold counts as granted. This module knows
nothing of calls, and does not ask for leases.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from adacompute.core.errors import DataError
from adacompute.spending.caps.accounts import ALIVE_S, COPY_S, CapAccount
from adacompute.spending.caps.counters import has_ended
from adacompute.spending.registers import Changes, Reading, Register, update

CAPS, REPLICAS, RECOVERY = "cap/", "replica/", "recovery"
"""Beginnings of the keys of accounts and of replicas, before their names; key of a recovery."""

RESTART_S = COPY_S
"""How long replicas are waited for after a restart of a server that lacks nothing."""

RECOVERY_S = 60.0
"""How long replicas are waited for if the server has lost data, unless configured."""

ANNOUNCE_S = 10.0
"""How often a replica says that it is alive."""

KEEP_S = 35 * 86_400.0
"""How long accounts are kept after the end of their period, and replicas that are gone."""


class Presence(NamedTuple):
    """When a replica was seen last, to which server it has reported, and whether it has left."""

    seen_at: float = 0.0
    server: str = ""
    has_left: bool = False


class Recovery(NamedTuple):
    """The reports of replicas to a server: since when, and whether it had lost data.

    ``lost_at`` is when any replica was seen last before. ``silent`` are replicas that have not
    reported, and when they were seen last.
    """

    server: str = ""
    since: float = 0.0
    is_lost: bool = False
    lost_at: float = 0.0
    is_complete: bool = False
    silent: Mapping[str, float] = {}


T = TypeVar("T", Presence, Recovery)


class Peers:
    """What the replica ``name`` knows; ``is_first`` says that there was no replica before it.

    ``wait_s`` is how long a recovery can still take, and ``others`` are the other replicas that
    run, as far as is known.
    """

    def __init__(
        self, register: Register, name: str, *, recovery_s: float, is_first: bool = False
    ) -> None:
        self.wait_s = 0.0
        self.others: list[str] = []
        self.unsaved: dict[str, str | None] = {}
        self._register = register
        self._name = name
        self._recovery_s = recovery_s
        self._is_first = is_first
        self._copies: dict[str, str] = {}
        self._presences: dict[str, Presence] = {}
        self._recovery: Recovery | None = None
        self._has_found_loss = False
        self._server = ""
        self._number = 0
        self._now = 0.0
        self._joins_at = math.inf

    @property
    def accounts(self) -> dict[str, CapAccount]:
        """Copies of all accounts that can be read, by counter."""
        found = {}
        for key, text in self._copies.items():
            if key.startswith(CAPS):
                with suppress(DataError):
                    found[key.removeprefix(CAPS)] = CapAccount.from_json(text)
        return found

    @property
    def is_recovering(self) -> bool:
        """Whether replicas still report to the server."""
        return self._recovery is not None and not self._recovery.is_complete

    @property
    def waits_for(self) -> dict[str, float]:
        """Replicas that a recovery waits for, and when they were seen last."""
        recovery = self._recovery
        if recovery is None or recovery.is_complete:
            return {}
        return {
            name: one.seen_at
            for name, one in self._presences.items()
            if one.seen_at >= recovery.lost_at - ALIVE_S and not self._has_reported(name)
        }

    def may_ask(self, server: str) -> bool:
        """Whether leases can be asked for: replicas have reported to the server, and know us."""
        recovery = self._recovery
        is_complete = recovery is not None and recovery.is_complete and recovery.server == server
        return is_complete and server == self._server and self._now >= self._joins_at

    @property
    def is_granted(self) -> bool:
        """Whether leases can be asked for, as far as is known."""
        return self.may_ask(self._server)

    def count_spent(self, account: CapAccount) -> int:
        """Return what was spent, with leases of replicas that are gone: nobody gives them back."""
        return sum(
            entry.spent if self._is_alive(name) else entry.held
            for name, entry in account.entries.items()
        )

    def find_silent(self, starts_at: float) -> list[str]:
        """Return replicas that may have used a cap that nobody else knows, by its start."""
        found = self._recovery.silent if self._recovery is not None else {}
        return [
            name
            for name, seen_at in found.items()
            if not self._has_reported(name) and seen_at + ALIVE_S >= starts_at
        ]

    def find_account(self, counter: str) -> str | None:
        """Return the copy of the account of a counter."""
        return self._copies.get(CAPS + counter)

    def keep(self, key: str, text: str) -> None:
        """Keep a copy of a value."""
        if self._copies.get(key) == text:
            return
        if key.startswith(REPLICAS):
            self._presences[key.removeprefix(REPLICAS)] = _read(Presence, text)
        elif key == RECOVERY:
            self._recovery = _read(Recovery, text)
        elif not key.startswith(CAPS):
            return  # of no cap
        self._copies[key] = self.unsaved[key] = text

    async def read(self) -> None:
        """Read everything, and change nothing."""
        self._keep_all(*await self._read_on(await self._register.changes(0)))
        self._find_others()

    def forget_saved(self, saved: Mapping[str, str | None]) -> None:
        """Note that copies were saved; some may have changed since."""
        for key, text in saved.items():
            if self.unsaved.get(key) == text:
                self.unsaved.pop(key, None)

    async def refresh(self, know: Callable[[], Mapping[str, CapAccount]]) -> None:
        """Read what has changed; report to a server that may have lost data.

        ``know`` returns accounts with what this replica knows of itself, by counter.
        """
        changes = await self._register.changes(self._number)
        if changes.server == self._server and changes.number < self._number:
            await self._register.renew(changes.server)  # these are old data
            changes = await self._register.changes(0)
        if changes.server != self._server:
            await self._report(know)
        else:
            self._keep_all(*await self._read_on(changes))
        if self._now >= self._joins_at:
            self._joins_at = -math.inf  # whatever the clock says later
        before = self._presences.get(self._name)
        if before is None or before.has_left or self._now - before.seen_at >= ANNOUNCE_S:
            await self.announce()
            self._drop_ended()
        self._find_others()
        await self._complete()

    async def announce(self, *, has_left: bool = False) -> None:
        """Say that this replica is alive and to which server it has reported, or that it leaves.

        It does not leave a server to which it has not reported.
        """

        def change(reading: Reading) -> tuple[str, Presence]:
            leaves = has_left and reading.server == self._server
            presence = Presence(round(reading.now, 3), self._server, leaves)
            return json.dumps(presence), presence

        key, is_known = REPLICAS + self._name, self._is_alive(self._name)
        expires_at = self._now + KEEP_S
        presence = await update(self._register, key, change, durable=False, expires_at=expires_at)
        self._now = max(self._now, presence.seen_at)
        self.keep(key, json.dumps(presence))
        self._find_others()
        if self._joins_at == math.inf:
            self._joins_at = self._now + (0.0 if is_known or not self.others else COPY_S)

    async def _read_on(self, changes: Changes) -> tuple[dict[str, str], int]:
        """Return changes with those after them, and the number of the last."""
        values = dict(changes.values)
        while not changes.is_last:
            changes = await self._register.changes(changes.number)
            values |= changes.values
        self._now = changes.now
        return values, changes.number

    def _keep_all(self, values: Mapping[str, str], number: int) -> None:
        """Keep values up to a number; all of them are read again if one cannot be read."""
        for key, text in values.items():
            self.keep(key, text)
        self._number = number

    def _drop_ended(self) -> None:
        """Drop copies of accounts whose period is over, and of replicas that are gone for long."""
        oldest = self._now - KEEP_S
        gone = [name for name, one in self._presences.items() if one.seen_at < oldest]
        for name in gone:
            del self._presences[name]
        ended = [key for key in self._copies if has_ended(key, self._now)]
        for key in [*ended, *(REPLICAS + name for name in gone)]:
            del self._copies[key]
            self.unsaved[key] = None

    async def _report(self, know: Callable[[], Mapping[str, CapAccount]]) -> None:
        """Compare a server with the copies, give it what it lacks, and say so.

        If it lacked something and others take it for complete, it gets another identity, so that
        they report too.
        """
        self._server = ""  # from here on, this replica gets no lease
        changes = await self._register.changes(0)
        server = changes.server
        stored, number = await self._read_on(changes)
        own, accounts = know(), self.accounts
        for name, account in own.items():
            accounts[name] = accounts.get(name, account).merge(account.entries)
        for name in [key.removeprefix(CAPS) for key in stored if key.startswith(CAPS)]:
            entry = CapAccount.from_json(stored[CAPS + name]).entries.get(self._name)
            if entry is not None and name not in own:  # it was silent, and counted
                account = accounts.get(name, CapAccount())
                accounts[name] = account.merge({self._name: entry.give_back()})
        for name, account in accounts.items():
            found = CapAccount.from_json(stored.get(CAPS + name))
            self._has_found_loss |= not found.contains(account)
            if found.merge(account.entries) != found:
                stored[CAPS + name] = await self._restore(CAPS + name, account)
        for name, presence in self._presences.items():
            seen = stored.get(REPLICAS + name)
            if seen is None or _read(Presence, seen) < presence:
                stored[REPLICAS + name] = text = json.dumps(presence)
                await update(self._register, REPLICAS + name, _set(text))
        before = self._recovery
        self._keep_all(stored, number)
        recovery = await self._start_recovery(server, before)
        if recovery is None:
            await self.announce()  # so that others wait for this replica
            await self._register.renew(server)
            return
        self.keep(RECOVERY, json.dumps(recovery))
        self._server, self._has_found_loss = server, False
        await self.announce()

    async def _restore(self, key: str, known: CapAccount) -> str:
        def change(reading: Reading) -> tuple[str, str]:
            stored = CapAccount.from_json(reading.value).merge(known.entries)
            text = CapAccount(stored.entries, stored.limit or known.limit).to_json()
            return text, text

        return await update(self._register, key, change)

    async def _start_recovery(self, server: str, before: Recovery | None) -> Recovery | None:
        """Return the recovery of a server; None if others took it for complete, and it was not.

        ``before`` is the last recovery that this replica knows.
        """
        seen = [one.seen_at for one in self._presences.values() if one.server != server]
        last = max(seen, default=0.0)

        def change(reading: Reading) -> tuple[str | None, Recovery | None]:
            found = None if reading.value is None else _read(Recovery, reading.value)
            known = [one for one in (before, found) if one is not None and one.server != server]
            lost_at = min([last, *(one.lost_at for one in known if not one.is_complete)])
            if found is None or found.server != server:
                silent = {name: at for one in known for name, at in one.silent.items()}
                found = Recovery(server, round(reading.now, 3), silent=silent)
            if reading.server != server or (self._has_found_loss and found.is_complete):
                return None, None
            if not found.is_complete:
                is_lost = found.is_lost or self._has_found_loss
                found = found._replace(is_lost=is_lost, lost_at=max(found.lost_at, lost_at))
            return json.dumps(found), found

        return await update(self._register, RECOVERY, change)

    def _find_others(self) -> None:
        found = [name for name in self._presences if self._is_alive(name)]
        self.others = [name for name in found if name != self._name]

    def _is_alive(self, name: str) -> bool:
        """Whether a replica runs, as far as is known."""
        one = self._presences.get(name)
        return one is not None and not one.has_left and one.seen_at >= self._now - ALIVE_S

    def _has_reported(self, name: str) -> bool:
        presence, recovery = self._presences.get(name), self._recovery
        if presence is None or recovery is None:
            return False
        return presence.has_left or presence.server == recovery.server

    async def _complete(self) -> None:
        """End a recovery if all replicas have reported, or if it has lasted long enough."""
        recovery, self.wait_s = self._recovery, 0.0
        if recovery is None or recovery.is_complete or recovery.server != self._server:
            return
        silent = self.waits_for
        lasts_s = self._recovery_s if recovery.is_lost and silent else RESTART_S
        wait_s = recovery.since + lasts_s - self._now
        knows_all = not silent and not recovery.is_lost
        if wait_s > 0 and not (knows_all and (self._is_first or recovery.lost_at > 0)):
            self.wait_s = wait_s
            return
        if silent or recovery.is_lost:
            await self._count_silent(silent)
        await self._end_recovery(recovery, silent)

    async def _count_silent(self, silent: Iterable[str]) -> None:
        """Count what silent replicas may hold in all accounts.

        Those that were silent before may hold more than was known then.
        """
        before = self.find_silent(-math.inf)

        def change(reading: Reading) -> tuple[str | None, str | None]:
            if reading.value is None:
                return None, None
            account = CapAccount.from_json(reading.value)
            known = [name for name in before if name in account.entries]
            text = account.count_silent([*silent, *known]).to_json()
            return text, text

        for name in self.accounts:
            text = await update(self._register, CAPS + name, change)
            if text is not None:
                self.keep(CAPS + name, text)

    async def _end_recovery(self, recovery: Recovery, silent: Mapping[str, float]) -> None:
        oldest = self._now - KEEP_S

        def change(reading: Reading) -> tuple[str | None, str | None]:
            found = None if reading.value is None else _read(Recovery, reading.value)
            if found != recovery or reading.server != recovery.server:
                return None, reading.value
            known = {name: at for name, at in found.silent.items() if at > oldest}
            text = json.dumps(found._replace(is_complete=True, silent={**known, **silent}))
            return text, text

        text = await update(self._register, RECOVERY, change)
        if text is not None:
            self.keep(RECOVERY, text)


def _set(text: str) -> Callable[[Reading], tuple[str, None]]:
    """Return a change that sets a value."""
    return lambda _: (text, None)


def _read(kind: type[T], text: str) -> T:
    """Read a presence or a recovery; DataError if the text is none."""
    try:
        values: list[Any] = json.loads(text)
        json.dumps(values, allow_nan=False)
        found: T = kind(*values)
        is_read = [*map(type, values)] == [*map(type, kind())]
        if isinstance(found, Recovery):
            is_read = is_read and {*map(type, found.silent.values())} <= {float}
    except (ValueError, TypeError, RecursionError):
        is_read = False
    if not is_read:
        raise DataError(f"the register has no {kind.__name__.lower()} but {text[:100]}")
    return found
