"""Meter: caps that are never exceeded, by reserving the maximum of each call first.

Checking the total before each call would be a race between concurrent calls; reserving is not. A
call counts against several counters, such as those of its client, its model and the total, and is
reserved in all of them or in none. Each process takes leases from accounts that it shares with
other processes through a register, and reserves within its leases without asking.

When the register does not answer, calls go on within the leases, and then are refused. The meter
belongs to one event loop. It does not know what is paid for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from adacompute.core.errors import DataError, RateLimited
from adacompute.spending.accounts import CapAccount
from adacompute.spending.counters import Charge, Counter, Unit
from adacompute.spending.leases import Lease, LeaseStatus
from adacompute.spending.registers import Register, RegisterError
from adacompute.spending.replica import FORGET_S, Replica
from adacompute.spending.replica_file import ReplicaFile

__all__ = [
    "CapReached",
    "Charge",
    "Counter",
    "CounterUsage",
    "Meter",
    "Reservation",
    "Unit",
]

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
RETRY_S = 1.0
"""When to retry if only leases of others, or a register that does not answer, are in the way."""

MAX_TRIES = 20


class CapReached(RateLimited):
    """A reservation that does not fit under a cap.

    ``retry_after_s`` is the time to the end of the period, infinite if there is none, or a second
    if what is in the way can go away sooner: leases of other replicas, or a register that fails.
    """

    counter: Counter | None = None
    retry_after_s: float = RETRY_S

    @property
    def is_spent(self) -> bool:
        """Whether nothing but the end of the period, or a higher cap, can help."""
        return self.retry_after_s > RETRY_S


@dataclass(frozen=True)
class CounterUsage:
    """What is known of a counter: by all replicas as of the last refresh, and by this one now."""

    counter: Counter
    spent: int
    held: int
    own_left: int
    own_reserved: int
    status: LeaseStatus


class Reservation:
    """The maximum of one call, reserved in all of its counters until it is settled."""

    __slots__ = ("_on_overrun", "_parts")

    def __init__(
        self, parts: Sequence[tuple[Lease, int]], on_overrun: Callable[[Counter, int], None]
    ) -> None:
        self._parts = parts
        self._on_overrun = on_overrun

    @property
    def is_settled(self) -> bool:
        """Whether it was settled or released."""
        return not self._parts

    def settle(self, actual: Charge) -> None:
        """Replace the reservation by what was spent; only the first call counts.

        A unit that is not in ``actual`` is spent as reserved.
        """
        parts, self._parts = self._parts, ()
        for lease, amount in parts:
            counter = lease.counter
            overrun = lease.settle(amount, max(0, actual.get(counter.unit, amount)))
            if overrun:
                self._on_overrun(counter, overrun)

    def release(self) -> None:
        """Settle a call that was not made."""
        self.settle({"samples": 0, "tokens": 0, "money": 0})


def log_overrun(counter: Counter, amount: int) -> None:
    """Log a call that spent more than its maximum."""
    logger.error("a call spent %d %s above its maximum (%s)", amount, counter.unit, counter.name)


class Meter:
    """Spending of one replica under caps that all replicas share; ``start`` it before use."""

    def __init__(
        self,
        register: Register,
        file: ReplicaFile,
        *,
        on_overrun: Callable[[Counter, int], None] = log_overrun,
        clock: Callable[[], float] = time.time,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._replica = Replica(register, file)
        self._on_overrun = on_overrun
        self._clock = clock
        self._refresh_s = refresh_s
        self._leases: dict[str, Lease] = {}
        self._is_available = True
        self._is_closing = False
        self._refreshed_at = clock()
        self._refreshing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, *, wait: bool = True) -> None:
        """Load the counters of this replica, and send them to the register.

        Where the register is new or was lost, nothing is granted before all replicas have sent
        theirs; unless ``wait`` is False, this waits for them for a few seconds.
        """
        replica = self._replica
        for row, account in replica.load():
            self._leases[row.counter.name] = Lease(row, account)
        await self.refresh()
        deadline = time.monotonic() + replica.register.recovery_s + REFRESH_S
        while wait and not replica.is_complete and time.monotonic() < deadline:
            if not self._is_available:
                break
            await asyncio.sleep(REFRESH_S / 4)
            await self.refresh()
        self._create_task(self._run())

    async def close(self) -> None:
        """Give back everything that is not used, and stop; open calls count at their maximum."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for lease in self._leases.values():
            lease.give_back_all()
        await self.refresh()
        await self._replica.close()

    def try_reserve(self, counters: Sequence[Counter], worst: Charge) -> Reservation | None:
        """Reserve a call in all of its counters within the leases; None if one is too small."""
        parts: list[tuple[Lease, int]] = []
        for counter in counters:
            lease = self._leases.get(counter.name)
            if lease is not None:
                amount = worst[counter.unit]
                if amount < 0:
                    raise ValueError(f"{amount} {counter.unit} cannot be reserved")
                if counter.limit != lease.counter.limit:
                    lease.set_limit(counter)
                if lease.take(amount):
                    parts.append((lease, amount))
                    continue
            for taken, amount in parts:
                taken.release(amount)
            return None
        for taken, _ in parts:
            if taken.is_low and self._is_available and not self._is_closing:
                taken.is_extending = True
                self._create_task(self._extend_ahead(taken))
        return Reservation(parts, self._on_overrun)

    async def reserve(self, counters: Sequence[Counter], worst: Charge) -> Reservation:
        """Reserve a call in all of its counters, with larger leases if needed.

        Raises CapReached, and reserves nothing, if one of the counters has too little left.
        """
        for _ in range(MAX_TRIES):
            reservation = self.try_reserve(counters, worst)
            if reservation is not None:
                return reservation
            for counter in counters:
                await self._extend(counter, worst[counter.unit])
        raise self._refusal(counters[0], 0)

    async def refresh(self) -> None:
        """Send the counters to the register, give back what is not needed, and copy the accounts.

        A task calls this once per second. It does not raise if the register or the disk fails.
        """
        async with self._refreshing:
            leases = self._leases.values()
            try:
                server = await self._replica.read_server()
                now = self._clock()
                elapsed_s, self._refreshed_at = max(REFRESH_S, now - self._refreshed_at), now
                for lease in leases:
                    lease.measure(elapsed_s)
                await self._replica.publish(leases, server, extend=not self._is_closing)
                self._remove_ended()
                await self._replica.save(leases)
            except (RegisterError, DataError, OSError) as error:
                self._fail(error)
            else:
                self._is_available = True

    def usage(self) -> list[CounterUsage]:
        """Return what is known of all counters."""
        found = []
        for lease in self._leases.values():
            account = (lease.account or CapAccount()).merge({self._replica.name: lease.row.entry})
            status = lease.status if self._is_available else "unavailable"
            found.append(
                CounterUsage(
                    lease.counter, account.spent, account.held, lease.left, lease.reserved, status
                )
            )
        return found

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.refresh()

    def _create_task(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _extend_ahead(self, lease: Lease) -> None:
        """Ask for a larger lease before this one has run out."""
        try:
            async with lease.lock:
                await self._replica.exchange(lease, 1, lease.wanted(1))
        except (RegisterError, DataError, OSError) as error:
            self._fail(error)
        finally:
            lease.is_extending = False

    async def _extend(self, counter: Counter, amount: int) -> None:
        """Ask for a larger lease if an amount does not fit; CapReached if it is refused."""
        try:
            if self._is_closing:
                raise self._refusal(counter, amount)
            lease = self._leases.get(counter.name)
            if lease is None:
                lease = self._leases[counter.name] = Lease(self._replica.file.add(counter))
            async with lease.lock:
                minimum = amount - lease.left
                if minimum <= 0 or self._leases.get(counter.name) is not lease:
                    return
                if not self._is_available or lease.is_refused(minimum) or amount > counter.limit:
                    raise self._refusal(counter, amount)
                if await self._replica.exchange(lease, minimum, lease.wanted(minimum)) != "granted":
                    raise self._refusal(counter, amount)
        except (RegisterError, DataError, OSError) as error:
            self._fail(error)
            raise self._refusal(counter, amount) from None

    def _fail(self, error: Exception) -> None:
        """Ask for no lease until the next refresh that succeeds."""
        if self._is_available:
            logger.warning("no leases are taken until this is solved: %s", error)
        self._is_available = False

    def _refusal(self, counter: Counter, amount: int) -> CapReached:
        lease = self._leases.get(counter.name)
        account = CapAccount() if lease is None or lease.account is None else lease.account
        if lease is not None:
            account = account.merge({self._replica.name: lease.row.entry})
        is_open = self._is_available and not self._is_closing
        if not is_open or (lease is not None and lease.status == "recovering"):
            refusal = CapReached(f"the cap {counter.name} is not available now: retry later")
        else:
            refusal = CapReached(
                f"the cap {counter.name} of {counter.limit / counter.scale:g} {counter.unit} has "
                f"too little left for a call of up to {amount / counter.scale:g}: wait for the end "
                "of the period or raise the cap"
            )
            if account.spent + amount > counter.limit:
                refusal.retry_after_s = max(RETRY_S, counter.ends_at - self._clock())
        refusal.counter = counter
        return refusal

    def _remove_ended(self) -> None:
        """Free the rows of periods that are over and sent."""
        now = self._clock()
        for name, lease in list(self._leases.items()):
            ends_at = lease.counter.ends_at
            if now > ends_at + FORGET_S and lease.reserved:
                lease.settle(lease.reserved, lease.reserved)
            elif now > ends_at and not (lease.reserved or lease.left or lease.is_changed):
                del self._leases[name]
                self._replica.file.remove(lease.row)
