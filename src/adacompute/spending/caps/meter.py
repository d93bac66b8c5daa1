"""Meter: caps that are never exceeded, by reserving the maximum of each call first.

Checking the total before each call would be a race between concurrent calls; reserving is not. A
call counts against several counters, such as those of its client, its model and the total, and is
reserved in all of them or in none. Each process takes leases from accounts that it shares with
other processes through a register, and reserves within its leases without asking.

When the register does not answer, calls go on within the leases, and then are refused. A call that
does not fit waits for a moment where other replicas may give something back. The meter belongs to
one event loop. It does not know what is paid for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from adacompute.core.errors import DataError, RateLimited
from adacompute.spending.caps.accounts import CapAccount
from adacompute.spending.caps.counters import Charge, Counter
from adacompute.spending.caps.leases import LEASE_S, Lease, LeaseStatus
from adacompute.spending.caps.peers import RECOVERY_S
from adacompute.spending.caps.replica import Replica
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.registers import Register, RegisterError

logger = logging.getLogger(__name__)

REFRESH_S = 0.5
START_S = 5.0
"""How long a process that starts waits until leases are granted."""

DAY_S = 86_400.0
"""How long calls may stay open after the end of their period."""

RETRY_S = 1.0
"""When to retry if only leases of others, or a register that does not answer, are in the way."""

WAIT_S, WAIT_STEP_S = 5.0, 0.1
"""How long a call waits for what can come within moments, and how often it tries again."""


class CapReached(RateLimited):
    """A reservation that does not fit under a cap.

    ``retry_after_s`` is the time to the end of the period, infinite if there is none, or a second
    if what is in the way can go away sooner: leases of other replicas, or a register that fails.
    """

    advice = " or raise the cap"
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


@dataclass(frozen=True)
class StoreState:
    """Whether the register answers and grants leases, by Unix times.

    ``refused_at`` is when a call was refused last because it did not, and ``served_at`` when one
    was reserved last. As a text, it is empty if nothing is wrong.
    """

    unreachable_since: float | None = None
    recovering_until: float | None = None
    refused_at: float = -math.inf
    served_at: float = -math.inf

    def __str__(self) -> str:
        if self.unreachable_since is not None:
            return f"unreachable since {_format_time(self.unreachable_since)}"
        if self.recovering_until is not None:
            return f"recovering until {_format_time(self.recovering_until)}"
        return ""


class Reservation:
    """The maximum of one call, reserved in all of its counters until it is settled."""

    __slots__ = ("_on_overrun", "_parts")

    def __init__(
        self, parts: Sequence[tuple[Lease, int]], on_overrun: Callable[[Counter, int], None]
    ) -> None:
        self._parts = parts
        self._on_overrun = on_overrun

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
    """Spending of one replica under caps that all replicas share; ``start`` it before use.

    ``lease_s`` is how long calls can go on without the register, and ``recovery_s`` how long
    replicas that do not report are waited for after it has lost data.
    """

    def __init__(
        self,
        register: Register,
        file: ReplicaFile,
        *,
        lease_s: float = LEASE_S,
        recovery_s: float = RECOVERY_S,
        on_overrun: Callable[[Counter, int], None] = log_overrun,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._replica = Replica(register, file, recovery_s=recovery_s)
        self._lease_s = lease_s
        self._on_overrun = on_overrun
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._is_closing = False
        self._refreshed_at = clock()
        self._refreshing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_served = False
        self.store = StoreState()

    async def start(self) -> None:
        """Load the counters of this replica, and report them; wait a moment for other replicas."""
        for row, account in self._replica.load():
            self._leases[row.counter.name] = Lease(row, account, lease_s=self._lease_s)
        await self.refresh()
        deadline = asyncio.get_running_loop().time() + START_S
        while not self._is_granted and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(REFRESH_S / 2)
            await self.refresh()
        self._create_task(self._run())

    async def close(self) -> None:
        """Give back everything that is not used, and leave; open calls count at their maximum."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for _ in range(2):  # the first may find a grant whose reply was lost
            for lease in self._leases.values():
                async with lease.lock:  # nobody asks for more meanwhile
                    lease.give_back_all()
            await self.refresh()
        if self._is_granted:
            with suppress(RegisterError):
                await self._replica.peers.announce(has_left=True)
        await self._replica.close()

    @property
    def _is_granted(self) -> bool:
        """Whether leases are granted now, as far as is known."""
        return self.store.unreachable_since is None and self._replica.peers.is_granted

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
            if taken.is_low and self._is_granted and not self._is_closing:
                taken.is_extending = True
                self._create_task(self._extend_ahead(taken))
        self._has_served = True
        return Reservation(parts, self._on_overrun)

    async def reserve(self, counters: Sequence[Counter], worst: Charge) -> Reservation:
        """Reserve a call in all of its counters, with larger leases if needed.

        Raises CapReached, and reserves nothing, if one of the counters has too little left.
        """
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            reservation = self.try_reserve(counters, worst)
            if reservation is not None:
                return reservation
            must_wait = False
            for counter in counters:
                amount = worst[counter.unit] * counters.count(counter)
                must_wait |= await self._extend(counter, amount, deadline)
            if must_wait:
                await asyncio.sleep(WAIT_STEP_S)

    async def refresh(self) -> None:
        """Read what other replicas did, give back and ask for what the recent rate needs.

        A task calls this twice per second. It does not raise if the register or the disk fails.
        """
        async with self._refreshing:
            replica, leases = self._replica, self._leases.values()
            if self._has_served:
                self._has_served, served_at = False, self._clock()
                self.store = replace(self.store, served_at=served_at)
            try:
                await replica.refresh(leases)
                now = self._clock()
                elapsed_s, self._refreshed_at = max(REFRESH_S, now - self._refreshed_at), now
                if replica.peers.is_granted:
                    for lease in () if self._is_closing else leases:
                        lease.measure(elapsed_s, 1 + len(replica.peers.others))
                    await replica.publish(leases, extend=not self._is_closing)
                    self._remove_ended()
            except (RegisterError, DataError, OSError) as error:
                self._fail(error)
            else:
                self._show_answer()

    def usage(self) -> list[CounterUsage]:
        """Return what is known of all counters."""
        known = ((one, self._know(one)) for one in self._leases.values())
        return [
            CounterUsage(one.counter, account.spent, account.held, one.left, one.reserved)
            for one, account in known
        ]

    def _know(self, lease: Lease) -> CapAccount:
        """Return the account with what this replica has spent since it was sent."""
        return lease.account.merge({self._replica.name: lease.row.entry})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
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

    async def _extend(self, counter: Counter, amount: int, deadline: float) -> bool:
        """Ask for a larger lease if an amount does not fit; CapReached if it is refused.

        Return whether to wait: something may be given back or granted before the deadline.
        """
        try:
            if self._is_closing:
                raise self._refusal(counter, amount)
            lease = self._leases.get(counter.name)
            if lease is None:
                row = self._replica.file.add(counter)
                lease = self._leases[counter.name] = Lease(row, lease_s=self._lease_s)
            async with lease.lock:
                minimum = amount - lease.left
                if minimum <= 0 or self._leases.get(counter.name) is not lease:
                    return False
                if lease.is_refused(minimum) or amount > counter.limit:
                    raise self._refusal(counter, amount)
                if self.store.unreachable_since is not None:
                    return self._wait_for_store(counter, amount, deadline)
                now = asyncio.get_running_loop().time()
                if lease.was_asked(minimum, now) and now < deadline:
                    return True
                status = await self._replica.exchange(lease, minimum, lease.wanted(minimum))
                if status == "granted":
                    return False
                lease.ask_later(minimum, now + WAIT_STEP_S)
                if now >= deadline or not self._may_come(lease, minimum, status):
                    lease.min_refused = minimum
                    raise self._refusal(counter, amount, is_open=status == "refused")
                return True
        except (RegisterError, DataError, OSError) as error:
            self._fail(error)
            return self._wait_for_store(counter, amount, deadline)

    def _wait_for_store(self, counter: Counter, amount: int, deadline: float) -> bool:
        """Return True, to wait, while the register has not failed for long; else raise."""
        away_s = self._clock() - (self.store.unreachable_since or self._clock())
        if away_s >= WAIT_S or asyncio.get_running_loop().time() >= deadline:
            raise self._refusal(counter, amount)
        return True

    def _may_come(self, lease: Lease, minimum: int, status: LeaseStatus) -> bool:
        """Whether what was not granted now may be granted within moments."""
        if status == "refused":
            return lease.may_be_returned(minimum, self._replica.peers.others)
        return self._replica.peers.wait_s <= WAIT_S

    def _fail(self, error: Exception) -> None:
        """Ask for no lease until the next refresh that succeeds."""
        if self.store.unreachable_since is None:
            logger.warning("the store of caps fails: calls go on within leases: %s", error)
            self.store = replace(self.store, unreachable_since=self._clock(), recovering_until=None)

    def _show_answer(self) -> None:
        """Note that the register has answered, and whether it waits for replicas."""
        now, wait_s, before = self._clock(), self._replica.peers.wait_s, self.store
        if before.unreachable_since is not None:
            away_s = now - before.unreachable_since
            logger.warning("the store of caps answers again after %.1f s", away_s)
        if wait_s and before.recovering_until is None:
            logger.warning(
                "the store of caps is new or restarted: no leases until all replicas have "
                "reported, for at most %.0f s",
                wait_s,
            )
        elif before.recovering_until is not None and not wait_s:
            logger.warning("the store of caps is complete: leases are granted again")
        until = now + wait_s if wait_s else None
        self.store = replace(before, unreachable_since=None, recovering_until=until)

    def _refusal(self, counter: Counter, amount: int, *, is_open: bool = True) -> CapReached:
        """Return why a call is refused; unless ``is_open``, a retry soon can help."""
        lease = self._leases.get(counter.name)
        spent = 0 if lease is None else self._replica.peers.count_spent(self._know(lease))
        if self._is_closing or not self._is_granted or not is_open:
            if not self._is_closing:
                self.store = replace(self.store, refused_at=self._clock())
            refusal = CapReached(f"the cap {counter.name} is not available now: retry later")
        else:
            refusal = CapReached(
                f"the cap {counter.name} of {counter.limit / counter.scale:g} {counter.unit} has "
                f"too little left for a call of up to {amount / counter.scale:g}: wait for the end "
                f"of the period{CapReached.advice}"
            )
            if spent + amount > counter.limit:
                refusal.retry_after_s = max(RETRY_S, counter.ends_at - self._clock())
        refusal.counter = counter
        return refusal

    def _remove_ended(self) -> None:
        """Free the rows of periods that are over and sent."""
        now = self._clock()
        for name, lease in list(self._leases.items()):
            ends_at, is_used = lease.counter.ends_at, lease.is_changed or lease.lock.locked()
            if now > ends_at + DAY_S and lease.reserved:
                lease.settle(lease.reserved, lease.reserved)
            elif now > ends_at and not (lease.reserved or lease.left or is_used):
                del self._leases[name]
                self._replica.file.remove(lease.row)


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
