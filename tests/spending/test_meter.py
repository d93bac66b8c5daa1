"""Meters: reservations in all counters or none, leases, and what happens when something fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adacompute.core.errors import DataError
from adacompute.spending.accounts import CapAccount
from adacompute.spending.meter import CapReached, Counter, Meter, Reservation
from adacompute.spending.registers import MemoryRegister, Reading, RegisterError
from adacompute.spending.replica_file import ReplicaFile

NEVER_S = 3600.0
"""Tests refresh when they say so."""


class FaultyRegister(MemoryRegister):
    """A register with a clock and an identity of its own, that can fail or lose its replies."""

    def __init__(self) -> None:
        super().__init__()
        self.server = "s"
        self.now = 1000.0
        self.is_down = False
        self.loses_replies = False
        self.n_calls = 0

    async def read(self, key: str) -> Reading:
        self.n_calls += 1
        if self.is_down:
            raise RegisterError("down")
        await asyncio.sleep(0)
        return Reading(self._values.get(key), self.server, self.now)

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        self.n_calls += 1
        if self.is_down:
            raise RegisterError("down")
        done = old.server == self.server and await super().replace(key, old, new, durable=durable)
        await asyncio.sleep(0)
        if self.loses_replies:
            raise RegisterError("timeout")
        return done

    def account(self, counter: Counter) -> CapAccount:
        return CapAccount.from_json(self._values[f"cap/{counter.name}"])

    def restart(self, server: str, values: dict[str, str] | None = None) -> None:
        self.server, self._values = server, dict(values or {})

    def snapshot(self) -> dict[str, str]:
        return dict(self._values)


@asynccontextmanager
async def metering(
    register: MemoryRegister,
    directory: Path,
    *,
    on_overrun: Callable[[Counter, int], None] | None = None,
    clock: Callable[[], float] = lambda: 1000.0,
    boot_id: str | None = None,
) -> AsyncIterator[Meter]:
    file = ReplicaFile.open(directory, boot_id=boot_id)
    options = {} if on_overrun is None else {"on_overrun": on_overrun}
    meter = Meter(register, file, clock=clock, refresh_s=NEVER_S, **options)
    await meter.start()
    try:
        yield meter
    finally:
        await meter.close()


def samples(name: str, limit: int, ends_at: float = math.inf) -> Counter:
    return Counter(name, "samples", limit, ends_at)


async def take(meter: Meter, counter: Counter, amount: int = 1) -> Reservation:
    return await meter.reserve([counter], {counter.unit: amount})


async def refused(call: Awaitable[Reservation]) -> CapReached:
    with pytest.raises(CapReached) as caught:
        await call
    return caught.value


def test_a_call_is_reserved_in_all_counters_or_in_none(tmp_path: Path) -> None:
    async def main() -> None:
        register = FaultyRegister()
        key, total = samples("key", 10), Counter("total", "tokens", 25)
        async with metering(register, tmp_path) as meter:
            for _ in range(2):
                await meter.reserve([key, total], {"samples": 1, "tokens": 10})
            found = await refused(meter.reserve([key, total], {"samples": 1, "tokens": 10}))
            assert found.counter == total
            assert meter.try_reserve([key, total], {"samples": 1, "tokens": 10}) is None
            assert {one.counter.name: one.own_reserved for one in meter.usage()} == {
                "key": 2,
                "total": 20,
            }
            (await meter.reserve([key, total], {"samples": 8, "tokens": 5})).release()
            with pytest.raises(ValueError, match="-1"):
                meter.try_reserve([key], {"samples": -1})
            # The same counter twice is reserved twice.
            assert meter.try_reserve([key, key], {"samples": 5}) is None

    asyncio.run(main())


def test_a_reservation_within_the_lease_does_no_io_and_does_not_wait(tmp_path: Path) -> None:
    def system_calls() -> int:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counts["syscr"]) + int(counts["syscw"])

    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10**6)
        async with metering(register, tmp_path) as meter:
            (await take(meter, counter, 1000)).release()
            n_calls = register.n_calls
            overhead = -system_calls() + system_calls()
            before = system_calls()
            for _ in range(1000):
                reserving = take(meter, counter)
                try:
                    reserving.send(None)
                except StopIteration as done:
                    done.value.settle({"samples": 1})
                else:
                    pytest.fail("it waits")
            assert system_calls() - before == overhead
            assert register.n_calls == n_calls
            assert meter.usage()[0].spent == 1000

    asyncio.run(main())


def test_a_reservation_is_settled_once_and_an_overrun_counts(tmp_path: Path) -> None:
    reported: list[tuple[str, int]] = []

    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        async with metering(
            register, tmp_path, on_overrun=lambda one, amount: reported.append((one.name, amount))
        ) as meter:
            reservation = await take(meter, counter, 4)
            settled = [reservation.is_settled]
            reservation.settle({"samples": 3})
            reservation.settle({"samples": 3})
            reservation.release()
            assert [*settled, reservation.is_settled] == [False, True]
            usage = meter.usage()[0]
            assert (usage.spent, usage.own_reserved) == (3, 0)
            (await take(meter, counter, 2)).settle({"tokens": 1})  # its own unit is missing
            assert meter.usage()[0].spent == 5
            (await take(meter, counter, 2)).settle({"samples": -7})
            assert meter.usage()[0].spent == 5
            assert reported == []
            (await take(meter, counter, 4)).settle({"samples": 9})
            assert reported == [("a", 5)]
            assert (meter.usage()[0].spent, meter.usage()[0].held) == (14, 14)
            await refused(take(meter, counter))
            await meter.refresh()
            assert register.account(counter).held == 14

    asyncio.run(main())


def test_an_overrun_is_logged_unless_something_else_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with metering(FaultyRegister(), tmp_path) as meter:
            (await take(meter, samples("a", 10), 1)).settle({"samples": 2})

    asyncio.run(main())
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


CALLER = """
import asyncio, sys
from pathlib import Path
from adacompute.spending.meter import Counter, Meter
from adacompute.spending.registers import MemoryRegister
from adacompute.spending.replica_file import ReplicaFile

async def main():
    meter = Meter(MemoryRegister(), ReplicaFile.open(Path(sys.argv[1]), max_files=1))
    await meter.start()
    counters = [Counter("key", "tokens", 1000), Counter("total", "samples", 50)]
    for used in (30, 50):
        (await meter.reserve(counters, {"tokens": 100, "samples": 2})).settle(
            {"tokens": used, "samples": 1})
    if sys.argv[2] == "later":
        await meter.refresh()
    for _ in range(3):
        await meter.reserve(counters, {"tokens": 100, "samples": 2})
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("boot_id", [None, "another"])
@pytest.mark.parametrize("refreshed", ["never", "later"])
def test_calls_that_a_killed_process_had_open_count_at_their_maximum(
    tmp_path: Path, boot_id: str | None, refreshed: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path), refreshed], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)

    async def main() -> None:
        async with metering(MemoryRegister(), tmp_path, boot_id=boot_id) as meter:
            usage = {one.counter.name: one for one in meter.usage()}
            if boot_id is None:
                assert (usage["key"].spent, usage["total"].spent) == (380, 8)
            assert usage["key"].own_reserved == 0
            assert 380 <= usage["key"].spent <= usage["key"].held <= 1000
            assert usage["key"].spent == usage["key"].held or boot_id is None
            counter = usage["key"].counter
            left = 1000 - usage["key"].spent
            await refused(take(meter, counter, left + 1))
            (await take(meter, counter, left)).release()

    asyncio.run(main())


def test_a_return_that_a_crashed_machine_forgot_is_not_counted_as_spent(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        async with metering(register, tmp_path) as meter:
            (await take(meter, counter, 50)).settle({"samples": 20})
            before = (tmp_path / "replica-0").read_bytes()
        (tmp_path / "replica-0").write_bytes(before)
        assert register.account(counter).held == 20
        async with metering(register, tmp_path, boot_id="another") as meter:
            usage = meter.usage()[0]
            assert (usage.spent, usage.held, usage.own_left) == (20, 20, 0)
            await take(meter, counter, 80)

    asyncio.run(main())


def test_a_second_process_of_a_directory_is_another_replica(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        async with metering(register, tmp_path) as one, metering(register, tmp_path) as other:
            await take(one, counter, 4)
            await take(other, counter, 4)
            assert len(register.account(counter).entries) == 2
            await refused(take(other, counter, 3))
            await take(one, counter, 2)
            with pytest.raises(DataError):
                ReplicaFile.open(tmp_path, max_files=1)

    asyncio.run(main())


def test_an_idle_replica_gives_its_lease_back(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        async with metering(register, tmp_path) as one, metering(register, tmp_path) as other:
            (await take(one, counter, 40)).release()
            found = await refused(take(other, counter, 80))
            assert found.retry_after_s == 1  # only a lease is in the way
            await one.refresh()  # it was active until now
            await one.refresh()
            assert register.account(counter).held == 0
            await refused(take(other, counter, 80))  # not asked again before a refresh
            await other.refresh()
            await take(other, counter, 80)
            await refused(take(one, counter, 40))

    asyncio.run(main())


def test_a_busy_replica_keeps_what_it_needs_and_asks_before_it_runs_out(tmp_path: Path) -> None:
    async def main() -> None:
        now = 1000.0
        register, counter = FaultyRegister(), samples("a", 10**6)
        async with metering(register, tmp_path, clock=lambda: now) as meter:
            for second in range(5):
                n_calls = register.n_calls
                for _ in range(100):
                    (await take(meter, counter)).settle({"samples": 1})
                if second > 1:
                    assert register.n_calls == n_calls
                now += 1.0
                await meter.refresh()
                assert 100 <= meter.usage()[0].own_left <= 400

    asyncio.run(main())


def test_a_grant_whose_reply_was_lost_is_adopted(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        async with metering(register, tmp_path) as meter:
            register.loses_replies = True
            found = await refused(take(meter, counter, 6))
            assert found.retry_after_s == 1
            assert register.account(counter).held == 6
            register.loses_replies = False
            await meter.refresh()
            assert meter.usage()[0].own_left == 6
            n_calls = register.n_calls
            await take(meter, counter, 6)
            assert register.n_calls == n_calls
            await refused(take(meter, counter, 5))
            await take(meter, counter, 4)

    asyncio.run(main())


def test_a_cancelled_reservation_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        async with metering(register, tmp_path) as meter:
            for steps in range(12):
                task = asyncio.create_task(take(meter, counter, 5))
                for _ in range(steps):
                    await asyncio.sleep(0)
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task])
                if not task.cancelled():
                    task.result().release()
            await meter.refresh()
            (await take(meter, counter, 10)).release()

    asyncio.run(main())


def test_without_the_register_calls_go_on_within_the_lease(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        async with metering(register, tmp_path) as meter:
            (await take(meter, counter, 20)).release()
            left = meter.usage()[0].own_left
            assert 20 <= left <= 50
            register.is_down = True
            for _ in range(3):
                await meter.refresh()  # an idle lease is kept while nobody can be given it
            for _ in range(left):
                await take(meter, counter)
            found = await refused(take(meter, counter))
            assert (found.counter, found.retry_after_s) == (counter, 1)
            assert meter.usage()[0].status == "unavailable"
            n_calls = register.n_calls
            for _ in range(100):
                await refused(take(meter, counter))
            assert register.n_calls == n_calls
            register.is_down = False
            await meter.refresh()
            await take(meter, counter, 100 - left)
            assert meter.usage()[0].status == "granted"

    asyncio.run(main())


def test_a_new_replica_counts_nothing_without_the_register(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        register.is_down = True
        async with metering(register, tmp_path) as meter:
            assert (await refused(take(meter, counter))).retry_after_s == 1
            register.is_down = False
            await meter.refresh()
            await take(meter, counter)

    asyncio.run(main())


class RecoveringRegister(FaultyRegister):
    """A register that waits for other replicas where it has lost values."""

    recovery_s = 0.4

    async def read(self, key: str) -> Reading:
        self.now = time.time() + self.later
        return await super().read(key)

    later = 0.0


@pytest.mark.parametrize("lost", ["empty", "snapshot"])
def test_nothing_is_granted_until_all_replicas_sent_what_the_server_lost(
    tmp_path: Path, lost: str
) -> None:
    async def main() -> None:
        register, counter, other = RecoveringRegister(), samples("a", 100), samples("b", 100)
        async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
            await take(one, counter, 30)
            snapshot = register.snapshot()
            await take(two, counter, 40)
            await take(two, other, 90)  # only this replica knows of it
            for meter in (two, one):
                await meter.refresh()
            register.restart("new", snapshot if lost == "snapshot" else {})
            await one.refresh()
            found = await refused(take(one, counter, 30))
            assert found.retry_after_s == 1
            assert one.usage()[0].status == "recovering"
            register.later = 5.0
            await one.refresh()
            await refused(take(one, counter))  # the other one was alive and is missing
            for later in (5.0, 6.0):  # so is one of its counters, which nobody else knows
                register.later = later
                await one.refresh()
                await refused(take(one, other, 11))
            for later in (7.0, 8.0):
                register.later = later
                for meter in (two, one):
                    await meter.refresh()
            assert register.account(counter).held == 70
            await refused(take(one, counter, 31))
            await refused(take(one, other, 11))
            await one.refresh()
            await take(one, counter, 30)
            await take(one, other, 10)
            new = samples("new", 10)  # now a counter that the server lacks is new
            await take(one, new, 10)

    asyncio.run(main())


def test_a_replica_that_died_during_a_long_outage_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = RecoveringRegister(), samples("a", 100)
        async with metering(register, tmp_path / "1") as one:
            two = Meter(register, ReplicaFile.open(tmp_path / "2"), refresh_s=NEVER_S)
            await two.start()
            await take(one, counter, 10)
            await one.refresh()
            await take(two, counter, 60)  # the other one does not know of it
            register.is_down = True
            await two.close()  # it says nothing more
            register.restart("new")
            register.is_down = False
            for later in (60.0, 61.0, 62.0):
                register.later = later
                await one.refresh()
                await refused(take(one, counter, 50))
            async with metering(register, tmp_path / "2") as two:
                for meter in (one, two, one):
                    await meter.refresh()
                await refused(take(one, counter, 31))
                await one.refresh()
                await take(one, counter, 30)

    asyncio.run(main())


def test_an_idle_replica_copies_what_others_spent(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = RecoveringRegister(), samples("a", 100)
        async with metering(register, tmp_path / "1") as one:
            two = Meter(register, ReplicaFile.open(tmp_path / "2"), refresh_s=NEVER_S)
            await two.start()
            (await take(one, counter, 1)).release()
            for _ in range(3):
                await one.refresh()
            (await take(two, counter, 90)).settle({"samples": 90})
            await two.refresh()
            register.later = 30.0  # for so long, the other one says nothing more
            await one.refresh()
            register.restart("new")
            for register.later in (31.0, 32.0, 33.0):
                await one.refresh()
                await refused(take(one, counter, 11))
            await take(one, counter, 5)
            register.is_down = True
            await two.close()

    asyncio.run(main())


def test_a_new_replica_does_not_take_a_lost_counter_for_a_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = RecoveringRegister(), samples("a", 100)
        one = Meter(register, ReplicaFile.open(tmp_path), refresh_s=0.1)
        await one.start()
        (await take(one, counter, 100)).settle({"samples": 100})
        await asyncio.sleep(0.4)  # it is idle, and its counter is sent no more
        register.restart("new")
        async with metering(register, tmp_path) as two:
            assert (await refused(take(two, counter))).retry_after_s == math.inf
        await one.close()

    asyncio.run(main())


def test_a_restarted_register_of_one_process_gets_its_account_back(tmp_path: Path) -> None:
    async def main() -> None:
        counter = samples("a", 10)
        async with metering(MemoryRegister(), tmp_path) as meter:
            (await take(meter, counter, 4)).settle({"samples": 3})
            await take(meter, counter, 2)
        async with metering(MemoryRegister(), tmp_path) as meter:
            usage = meter.usage()[0]
            assert (usage.spent, usage.held, usage.own_reserved) == (5, 5, 0)
            await refused(take(meter, counter, 6))
            await meter.refresh()
            await take(meter, counter, 5)

    asyncio.run(main())


def test_a_lower_limit_applies_to_leases_that_are_held(tmp_path: Path) -> None:
    async def main() -> None:
        register = FaultyRegister()
        async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
            (await take(one, samples("a", 100), 50)).settle({"samples": 10})
            await take(two, samples("a", 100), 10)
            await refused(take(one, samples("a", 20), 1))
            await refused(take(two, samples("a", 20), 1))
            assert register.account(samples("a", 20)).held == 20
            await take(one, samples("a", 25), 5)
            await refused(take(two, samples("a", 25), 1))

    asyncio.run(main())


@pytest.mark.parametrize("n_steps", range(12))
def test_a_limit_that_is_lowered_during_a_refresh_applies_to_its_lease(
    tmp_path: Path, n_steps: int
) -> None:
    async def main() -> None:
        register, low = FaultyRegister(), samples("a", 40)
        async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
            (await take(two, samples("a", 100), 10)).settle({"samples": 10})
            (await take(one, samples("a", 100), 30)).settle({"samples": 30})
            refreshing = asyncio.create_task(one.refresh())  # it asks for more
            for _ in range(n_steps):
                await asyncio.sleep(0)
            assert one.try_reserve([low], {"samples": 1}) is None
            await refreshing
            assert one.try_reserve([low], {"samples": 1}) is None
            await refused(take(one, low))

    asyncio.run(main())


def test_retry_after_is_the_end_of_the_period_once_the_cap_is_spent(tmp_path: Path) -> None:
    async def main() -> None:
        counter = samples("a", 10, ends_at=1600.0)
        async with metering(FaultyRegister(), tmp_path) as meter:
            reservation = await take(meter, counter, 10)
            assert (await refused(take(meter, counter))).retry_after_s == 1  # it may be released
            reservation.settle({"samples": 10})
            assert (await refused(take(meter, counter))).retry_after_s == 600
            error = await refused(take(meter, counter, 11))
            assert error.retry_after_s == 600
            again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
            assert (again.counter, again.retry_after_s) == (counter, 600)

    asyncio.run(main())


def test_rows_of_periods_that_ended_are_reused(tmp_path: Path) -> None:
    async def main() -> None:
        now = 1000.0
        register, counter = FaultyRegister(), samples("day 1", 10, ends_at=1600.0)
        async with metering(register, tmp_path, clock=lambda: now) as meter:
            (await take(meter, counter, 4)).settle({"samples": 3})
            reservation = await take(meter, counter, 2)
            now = 1601.0
            for _ in range(3):
                await meter.refresh()
            assert [one.own_reserved for one in meter.usage()] == [2]
            reservation.settle({"samples": 1})
            for _ in range(2):
                await meter.refresh()
            assert meter.usage() == []
            assert meter._replica.file.rows == {}
            assert register.account(counter).held == register.account(counter).spent == 4
            # A call that comes late does not get the amounts again.
            await refused(take(meter, counter, 7))
            await meter.refresh()
            await take(meter, counter, 6)
            now += 86_401
            for _ in range(3):
                await meter.refresh()
            assert meter.usage() == []
            assert register.account(counter).spent == 10

    asyncio.run(main())


@pytest.mark.parametrize("operation", ["sync", "save_copy", "add"])
def test_a_full_disk_refuses_what_exceeds_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        async with metering(register, tmp_path) as meter:
            (await take(meter, counter, 20)).release()
            with monkeypatch.context() as patch:
                patch.setattr(ReplicaFile, operation, fail)
                await take(meter, counter, 20)
                if operation == "save_copy":
                    await meter.refresh()
                counter = samples("b", 100) if operation == "add" else counter
                assert (await refused(take(meter, counter, 80))).retry_after_s == 1
            await meter.refresh()
            await take(meter, counter, 80)

    asyncio.run(main())


def test_a_value_that_is_no_account_grants_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 100)
        register.restart("s", {"cap/a": "[]"})
        async with metering(register, tmp_path) as meter:
            assert (await refused(take(meter, counter))).retry_after_s == 1

    asyncio.run(main())


def test_a_closed_meter_reserves_nothing_and_keeps_open_calls(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        async with metering(register, tmp_path) as meter:
            reservation = await take(meter, counter, 3)
        assert register.account(counter).held == 3
        assert meter.try_reserve([counter], {"samples": 1}) is None
        await refused(take(meter, counter))
        reservation.settle({"samples": 1})
        async with metering(register, tmp_path) as meter:
            assert meter.usage()[0].spent == 3

    asyncio.run(main())


def test_the_task_refreshes_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        register, counter = FaultyRegister(), samples("a", 10)
        meter = Meter(register, ReplicaFile.open(tmp_path), refresh_s=0.01)
        await meter.start()
        (await take(meter, counter, 5)).settle({"samples": 2})
        await asyncio.sleep(0.2)
        assert register.account(counter).held == 2
        await meter.close()

    asyncio.run(main())
