"""Replica: the leases of one process, in the register, on its disk and in its memory.

A grant is usable when it is durable on the disk of the replica. Accounts of all replicas are copied
to the disk too, so that a server that lost them can be given them back. When the process stops, it
gives back its leases and leaves, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from adacompute.core.errors import DataError
from adacompute.spending.caps.accounts import CapAccount, LeaseReply, LeaseRequest, exchange
from adacompute.spending.caps.leases import Lease, LeaseStatus
from adacompute.spending.caps.peers import CAPS, KEEP_S, RECOVERY_S, Peers
from adacompute.spending.caps.replica_file import ReplicaFile, Row
from adacompute.spending.registers import Reading, Register, update

MAX_EXCHANGES = 16
"""Messages to the register at a time during a refresh."""


class Replica:
    """One process, with its register, its file and its peers."""

    def __init__(
        self, register: Register, file: ReplicaFile, *, recovery_s: float = RECOVERY_S
    ) -> None:
        self.register = register
        self.file = file
        self.name = file.replica
        is_first = register.is_local and file.is_first
        self.peers = Peers(register, self.name, recovery_s=recovery_s, is_first=is_first)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="replica-file")
        self._syncing = asyncio.Lock()
        self._next_sync: asyncio.Task[None] | None = None

    def load(self) -> Iterator[tuple[Row, CapAccount]]:
        """Yield the rows of the file with the accounts that were copied last and can be read."""
        for key, text in self.file.read_copies().items():
            with suppress(DataError):
                if key.startswith(CAPS):
                    CapAccount.from_json(text)
                self.peers.keep(key, text)
        accounts = self.peers.accounts
        for name, row in self.file.rows.items():
            yield row, accounts.get(name, CapAccount())

    async def close(self) -> None:
        """Sync and close the file."""
        try:
            await self._sync()
        finally:
            self._disk.shutdown()
            self.file.close()

    async def refresh(self, leases: Collection[Lease]) -> None:
        """Read what other replicas have changed, and save it; OSError if the disk is full."""

        def know() -> dict[str, CapAccount]:
            return {
                lease.counter.name: CapAccount({self.name: lease.row.entry}, lease.counter.limit)
                for lease in leases
            }

        await self.peers.refresh(know)
        for lease in leases:
            lease.copy(self.peers.find_account(lease.counter.name), self.name)
        if saved := dict(self.peers.unsaved):
            await self._on_disk(self.file.save_copies, saved)
            self.peers.forget_saved(saved)

    async def publish(self, leases: Collection[Lease], *, extend: bool) -> None:
        """Send what has changed; with ``extend``, extend leases that will be too small soon."""
        slots = asyncio.Semaphore(MAX_EXCHANGES)

        async def send(lease: Lease) -> None:
            async with slots, lease.lock:
                wanted = lease.shortage() if extend else 0
                await self.exchange(lease, min(1, wanted), wanted)

        chosen = [one for one in leases if (extend and one.is_low) or one.must_send(now=not extend)]
        for failure in await asyncio.gather(*map(send, chosen), return_exceptions=True):
            if failure is not None:
                raise failure

    async def exchange(self, lease: Lease, minimum: int = 0, wanted: int = 0) -> LeaseStatus:
        """Send a counter and ask for a lease; RegisterError, DataError or OSError if that fails.

        The caller holds the lock of the lease.
        """
        counter, row, key = lease.counter, lease.row, CAPS + lease.counter.name

        def change(reading: Reading) -> tuple[str | None, tuple[LeaseReply, str, str] | None]:
            if not self.peers.may_ask(reading.server):
                return None, None
            text = reading.value or self.peers.find_account(counter.name)  # a value may be deleted
            stored = CapAccount.from_json(text)
            waiting = row.granted - lease.usable  # it is not synced yet
            request = LeaseRequest(
                self.name,
                row.entry,
                counter.limit,
                minimum=max(0, minimum - waiting),
                wanted=max(0, wanted - waiting),
                largest=lease.largest,
                n_replicas=1 + len(self.peers.others),
                silent=self.peers.find_silent(counter.starts_at),
            )
            reply = exchange(stored, request, now=reading.now)
            text = reply.account.to_json()
            return text, (reply, text, reading.server)

        lease.is_changed = False
        try:
            answer = await update(
                self.register,
                key,
                change,
                durable=minimum > 0,
                expires_at=counter.ends_at + KEEP_S,
            )
            if answer is not None and not self.peers.may_ask(answer[-1]):
                answer = None  # it was reported without this grant, which is given back later
            if answer is not None:
                reply, text, _ = answer
                self.peers.keep(key, text)
                lease.adopt(reply, self.name, limit=counter.limit)
                await self._confirm(lease)
        except BaseException:
            lease.is_changed = True
            raise
        lease.is_changed |= answer is None
        return "recovering" if answer is None else reply.status

    async def _confirm(self, lease: Lease) -> None:
        """Make grants usable."""
        granted = lease.row.granted
        if granted > lease.usable:
            await self._sync()
            lease.confirm(granted)

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
    """Say how much was spent under a counter at least; this is for an operator."""

    def change(reading: Reading) -> tuple[str, None]:
        return CapAccount.from_json(reading.value).set_spent(spent).to_json(), None

    await update(register, CAPS + name, change)
