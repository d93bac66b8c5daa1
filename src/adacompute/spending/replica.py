"""Replica: what one process says to the register about its leases, and what it writes to disk.

A grant is usable when it is durable on the disk of the replica. Accounts are copied to the disk at
each refresh, so that a server that lost them can be given them back.

All replicas also share an account without amounts. A replica confirms a server there after it has
sent it all accounts that it knows. Until all replicas that were alive have done so, no replica asks
for leases. From then on, accounts of this server are complete, and one that it lacks is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from adacompute.spending.accounts import (
    CapAccount,
    Entry,
    LeaseReply,
    LeaseRequest,
    exchange,
    set_spent,
)
from adacompute.spending.leases import Lease, LeaseStatus
from adacompute.spending.registers import Reading, Register, update
from adacompute.spending.replica_file import ReplicaFile, Row

KEY_PREFIX = "cap/"
"""A counter's key in the register is this and its name."""

REPLICAS = "replicas"
"""Key of the account without amounts."""

FORGET_S = 86_400.0
"""Replicas that sent nothing for so long are dropped from the account without amounts."""

MAX_EXCHANGES = 16
"""Messages to the register at a time during a refresh."""

MAX_COPIES = 32
"""Accounts of counters that are not in use that are copied at a refresh."""


class Replica:
    """One process, with its register and its file.

    ``is_complete`` says whether all replicas confirmed the server.
    """

    def __init__(self, register: Register, file: ReplicaFile) -> None:
        self.register = register
        self.file = file
        self.name = file.replica
        self.is_complete = False
        self._server = ""
        self._replicas: CapAccount | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="replica-file")
        self._syncing = asyncio.Lock()
        self._next_sync: asyncio.Task[None] | None = None

    def load(self) -> Iterator[tuple[Row, CapAccount | None]]:
        """Yield the rows of the file with the accounts that were copied last."""
        self._server, known = self.file.read_copy()
        self._replicas = known.get(REPLICAS)
        for name, row in self.file.rows.items():
            yield row, known.get(KEY_PREFIX + name)

    async def close(self) -> None:
        """Sync and close the file."""
        await self._sync()
        self._disk.shutdown()
        self.file.close()

    async def exchange(self, lease: Lease, minimum: int = 0, wanted: int = 0) -> LeaseStatus:
        """Send a counter and ask for a lease; RegisterError, DataError or OSError if that fails.

        The caller holds the lock of the lease.
        """
        limit = lease.counter.limit
        asked, wanted = minimum, wanted if self.is_complete else 0
        minimum = minimum if self.is_complete else 0

        def change(reading: Reading) -> tuple[str, LeaseReply]:
            stored = self._complete(_parse(reading), reading.server, lease.account)
            # Grants whose reply was lost, or that are not synced yet, need not be asked for again.
            entry = stored.entries.get(self.name, Entry()) if stored is not None else Entry()
            waiting = max(entry.granted, lease.row.granted) - lease.usable
            request = LeaseRequest(
                self.name,
                lease.row.entry,
                limit,
                max(0, minimum - waiting),
                max(0, wanted - waiting),
                lease.account,
                self._server,
            )
            reply = self._reply(stored, reading, request)
            return reply.account.to_json(), reply

        lease.is_changed = False
        try:
            key = KEY_PREFIX + lease.counter.name
            reply = await update(self.register, key, change, durable=minimum > 0)
            lease.adopt(reply, self.name, limit=limit, minimum=minimum, wanted=wanted)
            granted = lease.row.granted
            if granted > lease.usable:
                await self._sync()
                lease.confirm(granted)
        except BaseException:
            lease.is_changed = True
            raise
        if asked and not self.is_complete:
            lease.set_recovering()
        return lease.status

    async def read_server(self) -> str:
        """Return the identity of the server; RegisterError if it does not answer."""
        return (await self.register.read(REPLICAS)).server

    async def publish(self, leases: Collection[Lease], server: str, *, extend: bool) -> None:
        """Send what has changed, or everything to a server that may have lost it.

        With ``extend``, leases that will be too small soon are extended.
        """
        is_new = server != self._server
        slots = asyncio.Semaphore(MAX_EXCHANGES)

        async def send(lease: Lease) -> None:
            async with slots, lease.lock:
                wanted = lease.shortage() if extend else 0
                await self.exchange(lease, min(1, wanted), wanted)

        chosen = [lease for lease in leases if is_new or self._must_send(lease)]
        others = sorted(set(leases).difference(chosen), key=lambda lease: lease.copied_at)
        work = [*map(send, chosen), *map(self._copy, others[:MAX_COPIES])]
        for failure in await asyncio.gather(*work, return_exceptions=True):
            if failure is not None:
                raise failure
        await self._confirm(server)

    def _complete(
        self, stored: CapAccount | None, server: str, known: CapAccount | None
    ) -> CapAccount | None:
        """End the recovery of an account after a change of the server that all replicas confirmed.

        Each has sent its copy, and one that has none would be waited for in vain.
        """
        is_confirmed = self.is_complete and server == self._server
        if stored is None or stored.server == server or not is_confirmed:
            return stored
        known = known or CapAccount()
        number = max(stored.number, known.number) + 1
        complete = replace(stored, number=number, server=server, recovery=None)
        return complete.merge(known.entries)

    async def _copy(self, lease: Lease) -> None:
        """Copy the account of a counter that this replica does not use now: others may."""
        async with lease.lock:
            reading = await self.register.read(KEY_PREFIX + lease.counter.name)
            account = _parse(reading)
            if account is None or not lease.copy(account, reading.server):
                lease.is_changed = True  # the next refresh sends what is known here

    def _must_send(self, lease: Lease) -> bool:
        """Whether a counter has changed, or is on a server of its own, as in Redis Cluster."""
        if lease.is_changed or lease.status == "recovering" or lease.account is None:
            return True
        return lease.account.server != self._server

    async def save(self, leases: Collection[Lease]) -> None:
        """Copy all accounts to the disk; OSError if it is full."""
        accounts = {KEY_PREFIX + lease.counter.name: lease.text for lease in leases if lease.text}
        if self._replicas is not None:
            accounts[REPLICAS] = self._replicas.to_json()
        await self._on_disk(self.file.save_copy, self._server, accounts)

    async def _confirm(self, server: str) -> None:
        """Say that this replica is alive and has sent all its accounts to a server."""

        def change(reading: Reading) -> tuple[str | None, CapAccount | None]:
            if reading.server != server:  # it was replaced just now
                return None, None
            request = LeaseRequest(self.name, Entry(), 0, known=self._replicas, server=self._server)
            account = self._reply(_parse(reading), reading, request).account
            if account.recovery is None:
                oldest = reading.now - FORGET_S
                alive = {name: one for name, one in account.entries.items() if one.seen_at > oldest}
                account = replace(account, entries=alive)
            return account.to_json(), account

        account = await update(self.register, REPLICAS, change, durable=False)
        self.is_complete = account is not None and account.recovery is None
        if account is not None:
            self._replicas = account
        if self.is_complete:
            self._server = server

    def _reply(
        self, stored: CapAccount | None, reading: Reading, request: LeaseRequest
    ) -> LeaseReply:
        return exchange(
            stored,
            request,
            server=reading.server,
            now=reading.now,
            recovery_s=self.register.recovery_s,
        )

    async def _sync(self) -> None:
        """Make the file durable; callers that come while a sync is running share the next one."""
        if self._next_sync is None:
            self._next_sync = asyncio.create_task(self._run_sync())
        await asyncio.shield(self._next_sync)

    async def _run_sync(self) -> None:
        async with self._syncing:
            self._next_sync = None
            await self._on_disk(self.file.sync)

    async def _on_disk(self, function: Callable[..., None], *arguments: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, function, *arguments)


async def set_cap_spent(register: Register, name: str, spent: int) -> None:
    """Say how much was spent under a counter, and stop waiting for replicas that are gone.

    This is for an operator, after the server has lost its data and a replica its file.
    """
    for key, amount in ((KEY_PREFIX + name, spent), (REPLICAS, 0)):

        def change(reading: Reading, amount: int = amount) -> tuple[str, None]:
            stored = _parse(reading) or CapAccount()
            account = set_spent(stored, amount, server=reading.server, now=reading.now)
            return account.to_json(), None

        await update(register, key, change)


def _parse(reading: Reading) -> CapAccount | None:
    return None if reading.value is None else CapAccount.from_json(reading.value)
