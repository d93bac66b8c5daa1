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
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adacompute.spending.caps.accounts import COPY_S, CapAccount
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.leases import LEASE_S, SEND_S
from adacompute.spending.caps.meter import START_S, WAIT_S, CapReached, Meter, Reservation
from adacompute.spending.caps.peers import CAPS, RECOVERY, RECOVERY_S, REPLICAS
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.registers import Reading, Register, RegisterError
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.memory_register import EMPTY, MemoryRegister
from test_support.simulated_time import run_simulated, simulated

STARTED_AT = 1_795_000_000.0


def clock() -> float:
    return STARTED_AT + asyncio.get_running_loop().time()


class FaultyRegister(MemoryRegister):
    """A register that takes a moment for each call, and may lose or hold back its replies."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.loses_replies = False
        self.replies = asyncio.Event()
        self.replies.set()

    async def read(self, key: str) -> Reading:
        await asyncio.sleep(0)
        return await super().read(key)

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        done = await super().replace(key, old, new, durable=durable, expires_at=expires_at)
        await asyncio.sleep(0)
        if key.startswith(CAPS):
            await self.replies.wait()
            if self.loses_replies:
                raise RegisterError("timeout")
        return done

    def account(self, counter: Counter) -> CapAccount:
        return CapAccount.from_json(self.values[CAPS + counter.name][0])


@asynccontextmanager
async def metering(
    register: Register,
    directory: Path,
    *,
    boot_id: str | None = None,
    **options: Any,
) -> AsyncIterator[Meter]:
    meter = Meter(register, ReplicaFile.open(directory, boot_id=boot_id), clock=clock, **options)
    await meter.start()
    try:
        yield meter
    finally:
        await meter.close()


def kill(meter: Meter) -> None:
    """Do what a signal does."""
    for task in meter._tasks:
        task.cancel()
    meter._replica.file.close()


def samples(name: str, limit: int, ends_at: float = math.inf) -> Counter:
    return Counter(name, "samples", limit, ends_at)


async def take(meter: Meter, counter: Counter, amount: int = 1) -> Reservation:
    return await meter.reserve([counter], {counter.unit: amount})


async def refused(call: Awaitable[Reservation]) -> CapReached:
    with pytest.raises(CapReached) as caught:
        await call
    return caught.value


def is_reserved(result: object) -> bool:
    """Whether a call was reserved; if not, it was refused."""
    assert isinstance(result, Reservation | CapReached), result
    return isinstance(result, Reservation)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_a_call_is_reserved_in_all_counters_or_in_none(tmp_path: Path) -> None:
    key, total = samples("key", 10), Counter("total", "tokens", 25)
    async with metering(FaultyRegister(), tmp_path) as meter:
        for _ in range(2):
            await meter.reserve([key, total], {"samples": 1, "tokens": 10})
        found = await refused(meter.reserve([key, total], {"samples": 1, "tokens": 10}))
        assert found.counter == total
        assert meter.try_reserve([key, total], {"samples": 1, "tokens": 10}) is None
        reserved = {one.counter.name: one.own_reserved for one in meter.usage()}
        assert reserved == {"key": 2, "total": 20}
        (await meter.reserve([key, total], {"samples": 8, "tokens": 5})).release()
        with pytest.raises(ValueError, match="-1"):
            meter.try_reserve([key], {"samples": -1})


@simulated
async def test_a_counter_that_is_given_twice_is_reserved_twice(tmp_path: Path) -> None:
    counter = samples("key", 10)
    async with metering(FaultyRegister(), tmp_path) as meter:
        await meter.reserve([counter, counter], {"samples": 4})
        assert meter.usage()[0].own_reserved == 8
        await refused(meter.reserve([counter, counter], {"samples": 2}))


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


@simulated
async def test_a_reservation_is_settled_once_and_an_overrun_counts(tmp_path: Path) -> None:
    reported: list[tuple[str, int]] = []

    def report(counter: Counter, amount: int) -> None:
        reported.append((counter.name, amount))

    register, counter = FaultyRegister(), samples("a", 10)
    async with metering(register, tmp_path, on_overrun=report) as meter:
        reservation = await take(meter, counter, 4)
        reservation.settle({"samples": 3})
        reservation.settle({"samples": 3})
        reservation.release()
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
    assert register.account(counter).held == 14


@simulated
async def test_an_overrun_is_logged_unless_something_else_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with metering(FaultyRegister(), tmp_path) as meter:
        (await take(meter, samples("a", 10), 1)).settle({"samples": 2})
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


CALLER = """
import asyncio, sys
from pathlib import Path
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.meter import Meter
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.spending.caps.replica_file import ReplicaFile

async def main():
    folder = Path(sys.argv[1])
    meter = Meter(SqliteRegister(folder / "caps.sqlite"), ReplicaFile.open(folder))
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
@pytest.mark.parametrize("is_emptied", [False, True])
def test_calls_that_a_killed_process_had_open_count_at_their_maximum(
    tmp_path: Path,
    boot_id: str | None,
    refreshed: str,
    is_emptied: bool,  # noqa: FBT001 - a case
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path), refreshed], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    if is_emptied:
        for path in tmp_path.glob("caps.sqlite*"):
            path.unlink()

    async def main() -> None:
        register = SqliteRegister(tmp_path / "caps.sqlite")
        async with metering(register, tmp_path, boot_id=boot_id) as meter:
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
        await register.close()

    asyncio.run(main())


@simulated
async def test_a_return_that_a_crashed_machine_forgot_is_not_counted_as_spent(
    tmp_path: Path,
) -> None:
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


@simulated
async def test_a_second_process_of_a_directory_is_another_replica(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 10)
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as other:
        await take(one, counter, 4)
        await take(other, counter, 4)
        assert len(register.account(counter).entries) == 2
        await refused(take(other, counter, 3))
        await take(one, counter, 2)


@simulated
async def test_a_call_waits_for_leases_of_others_that_are_given_back(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 1000)
    async with metering(register, tmp_path, lease_s=3) as one, metering(register, tmp_path) as two:
        await take(two, counter, 50)
        (await take(one, counter, 400)).release()
        await take(two, counter, 800)  # the other one has become idle
        begun = loop_time()
        found = await refused(take(one, counter, 400))
        assert WAIT_S <= loop_time() - begun <= WAIT_S + 1
        assert found.retry_after_s == 1  # an open call is in the way, and may be released
        begun = loop_time()
        await refused(take(one, counter, 400))
        assert loop_time() == begun  # not asked again before a refresh


@simulated
async def test_nobody_waits_for_leases_of_replicas_that_are_gone(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 100, STARTED_AT + 1e4)
    async with metering(register, tmp_path / "1") as one:
        two = Meter(register, ReplicaFile.open(tmp_path / "2"), clock=clock)
        await two.start()
        (await take(two, counter, 60)).settle({"samples": 1})
        kill(two)
        await asyncio.sleep(80)
        begun = loop_time()
        found = await refused(take(one, counter, 50))
        assert loop_time() == begun
        assert found.retry_after_s > 9000


@simulated
async def test_a_busy_replica_asks_before_it_runs_out(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 10**6)
    async with metering(register, tmp_path) as meter:
        for second in range(60):
            for _ in range(100):
                call = meter.try_reserve([counter], {"samples": 1})
                if call is None:
                    assert second < 2
                    call = await take(meter, counter)
                call.settle({"samples": 1})
                await asyncio.sleep(0.01)
        assert 20 * 100 <= meter.usage()[0].own_left <= 45 * 100


@simulated
async def test_a_grant_whose_reply_was_lost_is_given_back(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 10)
    async with metering(register, tmp_path) as meter:
        register.loses_replies = True
        found = await refused(take(meter, counter, 6))
        assert found.retry_after_s == 1
        assert register.account(counter).held == 6
        register.loses_replies = False
        await asyncio.sleep(1)
        await take(meter, counter, 6)
        await refused(take(meter, counter, 5))
        await take(meter, counter, 4)


@simulated
async def test_a_cancelled_reservation_loses_nothing(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 10)
    async with metering(register, tmp_path) as meter:
        for steps in range(20):
            task = asyncio.create_task(take(meter, counter, 5))
            for _ in range(steps):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.result().release()
        (await take(meter, counter, 10)).release()
        assert register.account(counter).held == 10


@pytest.mark.parametrize("n_steps", range(0, 30, 2))
@pytest.mark.parametrize("reply_s", [0.0, 0.3])
@simulated
async def test_a_meter_that_closes_during_a_request_leaves_nothing_behind(
    tmp_path: Path, n_steps: int, reply_s: float
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as meter:
        if reply_s:
            register.replies.clear()
            asyncio.get_running_loop().call_later(reply_s, register.replies.set)
        calls = [asyncio.create_task(take(meter, counter, 5)) for _ in range(3)]
        for _ in range(n_steps):
            await asyncio.sleep(0)
    done = await asyncio.gather(*calls, return_exceptions=True)
    held = register.account(counter).held if CAPS + "a" in register.values else 0
    assert held == 5 * sum(map(is_reserved, done))


@simulated
async def test_without_the_register_calls_go_on_within_the_lease(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 1000)
    async with metering(register, tmp_path) as meter:
        (await take(meter, counter, 20)).release()
        left = meter.usage()[0].own_left
        assert 20 <= left <= 250
        register.is_away = True
        await asyncio.sleep(60)  # an idle lease is kept while nobody can be given it
        for _ in range(left):
            await take(meter, counter)
        found = await refused(take(meter, counter))
        assert (found.counter, found.retry_after_s) == (counter, 1)
        n_calls = register.n_calls
        for _ in range(100):
            await refused(take(meter, counter))
        assert register.n_calls == n_calls
        register.is_away = False
        await asyncio.sleep(1)
        await take(meter, counter, 1000 - left)


@simulated
async def test_a_new_replica_counts_nothing_without_the_register(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    register.is_away = True
    async with metering(register, tmp_path) as meter:
        assert START_S <= loop_time() <= START_S + 1
        assert (await refused(take(meter, counter))).retry_after_s == 1
        register.is_away = False
        await asyncio.sleep(3)
        await take(meter, counter)


@simulated
async def test_what_is_wrong_with_the_store_is_shown_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path / "1") as meter:
        two = Meter(register, ReplicaFile.open(tmp_path / "2"), clock=clock)
        await two.start()
        await take(meter, counter, 10)
        await asyncio.sleep(COPY_S)
        before = clock()
        assert (str(meter.store), meter.store.refused_at) == ("", -math.inf)
        assert before - 3 <= meter.store.served_at <= before
        await refused(take(meter, counter, 101))
        assert meter.store.refused_at == -math.inf  # not because of the store
        caplog.clear()
        register.is_away = True
        await asyncio.sleep(10)
        assert meter.store.unreachable_since == pytest.approx(before, abs=1)
        assert str(meter.store).startswith("unreachable since 2026-11-18T")
        await refused(take(meter, counter, 91))
        assert meter.store.refused_at == clock()
        kill(two)
        register.restart(EMPTY)
        await asyncio.sleep(10)
        assert meter.store.unreachable_since is None
        assert meter.store.recovering_until == pytest.approx(before + 10 + RECOVERY_S, abs=1)
        assert str(meter.store).startswith("recovering until 2026-11-18T")
        await asyncio.sleep(1)
        begun = loop_time()
        await refused(take(meter, counter, 91))  # it would have to wait for too long
        assert loop_time() == begun
        assert meter.store.refused_at == clock()
        await asyncio.sleep(RECOVERY_S)
        assert str(meter.store) == ""
        found = [record.getMessage() for record in caplog.records if "two" not in record.name]
    mine = [text for text in found if "the store of caps" in text]
    assert [sum(word in text for text in mine) for word in ("fails", "answers", "restarted")] == [
        2,  # of two meters
        1,
        1,
    ]
    assert sum("is complete" in text for text in mine) == 1


@simulated
async def test_a_call_waits_for_the_end_of_a_short_restart(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path / "1") as one:
        two = Meter(register, ReplicaFile.open(tmp_path / "2"), clock=clock)
        await two.start()
        kill(two)
        register.restart()
        await one.refresh()
        assert one.store.recovering_until is not None
        await take(one, counter, 10)
        assert one.store.recovering_until is None


@pytest.mark.parametrize("lost", ["all", "some"])
@simulated
async def test_a_server_that_lost_data_grants_no_more_than_is_left(
    tmp_path: Path, lost: str
) -> None:
    register, counter, other = FaultyRegister(), samples("a", 100), samples("b", 100)
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
        await take(one, counter, 30)
        copy = register.copy()
        await take(two, counter, 40)
        await take(two, other, 90)
        register.restart(EMPTY if lost == "all" else copy)
        await asyncio.sleep(5)
        assert register.account(counter).held >= 70
        await refused(take(one, counter, 31))
        await refused(take(one, other, 11))
        await asyncio.sleep(40)  # small leases for more calls are given back
        await take(one, counter, 30)
        await take(one, other, 10)


@pytest.mark.parametrize("n_steps", range(0, 24, 2))
@simulated
async def test_a_reply_of_a_server_that_has_lost_it_since_grants_nothing(
    tmp_path: Path, n_steps: int
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
        await take(one, counter, 20)
        (await take(two, counter, 1)).release()
        await asyncio.sleep(COPY_S + 0.1)  # nobody refreshes now
        register.replies.clear()
        late = asyncio.create_task(take(one, counter, 50))
        for _ in range(10):
            await asyncio.sleep(0)
        assert register.account(counter).held >= 70
        register.restart(EMPTY)
        reporting = asyncio.create_task(one.refresh())
        for _ in range(n_steps):
            await asyncio.sleep(0)
        register.replies.set()
        await reporting
        for task in one._tasks:  # it becomes slow
            task.cancel()
        calls = [asyncio.create_task(take(two, counter, 10)) for _ in range(8)]
        done = await asyncio.gather(late, *calls, return_exceptions=True)
        sizes = [50 * is_reserved(done[0]), 10 * sum(map(is_reserved, done[1:]))]
        assert 30 <= sum(sizes) <= 80


@simulated
async def test_an_account_that_was_deleted_from_the_store_is_known_by_others(
    tmp_path: Path,
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
        await take(one, counter, 60)
        await asyncio.sleep(COPY_S)
        del register.values[CAPS + "a"]
        await take(two, counter, 6)
        assert register.account(counter).held >= 66


@simulated
async def test_a_replica_that_stops_cleanly_leaves_and_gives_back(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path / "1") as one:
        async with metering(register, tmp_path / "2") as two:
            (await take(two, counter, 10)).settle({"samples": 3})
        assert register.account(counter).held == 3
        register.restart()
        await asyncio.sleep(0.6)
        assert str(one.store) == ""
        await take(one, counter, 97)


@simulated
async def test_an_idle_replica_gives_back_what_was_counted_while_it_was_silent(
    tmp_path: Path,
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
        (await take(one, counter, 10)).settle({"samples": 10})
        await asyncio.sleep(LEASE_S + 10)
        assert register.account(counter).held == 10
        stopped = list(one._tasks)
        for task in stopped:
            task.cancel()
        register.restart(EMPTY)
        await asyncio.sleep(RECOVERY_S + 2)
        assert str(two.store) == ""
        assert register.account(counter).held > 10
        one._create_task(one._run())
        await asyncio.sleep(SEND_S + 1)
        assert register.account(counter).held == 10


@simulated
async def test_a_lower_limit_applies_to_leases_that_are_held(tmp_path: Path) -> None:
    register = FaultyRegister()
    async with metering(register, tmp_path) as one, metering(register, tmp_path) as two:
        (await take(one, samples("a", 100), 50)).settle({"samples": 10})
        await take(two, samples("a", 100), 10)
        await refused(take(one, samples("a", 20), 1))
        await refused(take(two, samples("a", 20), 1))
        assert register.account(samples("a", 20)).held == 20
        await take(one, samples("a", 25), 5)
        await refused(take(two, samples("a", 25), 1))


@simulated
async def test_retry_after_is_the_end_of_the_period_once_the_cap_is_spent(tmp_path: Path) -> None:
    counter = samples("a", 10, ends_at=STARTED_AT + 600)
    async with metering(FaultyRegister(), tmp_path) as meter:
        reservation = await take(meter, counter, 10)
        assert (await refused(take(meter, counter))).retry_after_s == 1  # it may be released
        reservation.settle({"samples": 10})
        left_s = 600 - loop_time()
        assert (await refused(take(meter, counter))).retry_after_s == pytest.approx(left_s)
        error = await refused(take(meter, counter, 11))
        assert error.retry_after_s == pytest.approx(left_s)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (again.counter, again.retry_after_s) == (counter, error.retry_after_s)


@simulated
async def test_rows_of_periods_that_ended_are_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.spending.caps.meter.DAY_S", 1000.0)
    register, counter = FaultyRegister(), samples("day 1", 10, ends_at=STARTED_AT + 600)
    async with metering(register, tmp_path) as meter:
        (await take(meter, counter, 4)).settle({"samples": 3})
        reservation = await take(meter, counter, 2)
        await asyncio.sleep(700)
        assert [one.own_reserved for one in meter.usage()] == [2]
        reservation.settle({"samples": 1})
        await asyncio.sleep(60)
        assert meter.usage() == []
        assert meter._replica.file.rows == {}
        assert register.account(counter).held == register.account(counter).spent == 4
        # A call that comes late does not get the amounts again.
        await refused(take(meter, counter, 7))
        await asyncio.sleep(1)
        await take(meter, counter, 6)
        await refused(take(meter, counter))
        await asyncio.sleep(1100)
        assert meter.usage() == []
        assert register.account(counter).spent == register.account(counter).held == 10


@pytest.mark.parametrize("operation", ["sync", "save_copies", "add"])
@simulated
async def test_a_full_disk_refuses_what_exceeds_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as meter:
        (await take(meter, counter, 20)).release()
        with monkeypatch.context() as patch:
            patch.setattr(ReplicaFile, operation, fail)
            await take(meter, counter, 20)
            if operation == "save_copies":
                await asyncio.sleep(1)
            counter = samples("b", 100) if operation == "add" else counter
            assert (await refused(take(meter, counter, 80))).retry_after_s == 1
        await asyncio.sleep(1)
        await take(meter, counter, 80)


@pytest.mark.parametrize("key", [CAPS + "a", REPLICAS + "x"])
@simulated
async def test_a_value_that_cannot_be_read_grants_nothing_until_it_is_repaired(
    tmp_path: Path, key: str
) -> None:
    register, counter = FaultyRegister(), samples("a", 100)
    async with metering(register, tmp_path) as meter:
        register.number += 1
        register.values[key] = '["now"]', register.number
        await asyncio.sleep(1)
        assert (await refused(take(meter, counter))).retry_after_s == 1
        del register.values[key]
        register.restart(register.copy())
        await asyncio.sleep(5)
        await take(meter, counter)


@simulated
async def test_a_closed_meter_reserves_nothing_and_keeps_open_calls(tmp_path: Path) -> None:
    register, counter = FaultyRegister(), samples("a", 10)
    async with metering(register, tmp_path) as meter:
        reservation = await take(meter, counter, 3)
    assert register.account(counter).held == 3
    assert meter.try_reserve([counter], {"samples": 1}) is None
    await refused(take(meter, counter))
    assert register.account(counter).held == 3
    reservation.settle({"samples": 1})
    async with metering(register, tmp_path) as meter:
        assert meter.usage()[0].spent == 3


@pytest.mark.parametrize("key", [CAPS + "total", REPLICAS + "other", RECOVERY])
def test_copies_of_another_form_are_ignored(tmp_path: Path, key: str) -> None:
    file = ReplicaFile.open(tmp_path)
    file.save_copies({key: '{"other": "form"}'})
    file.close()

    async def main() -> None:
        async with metering(FaultyRegister(), tmp_path) as meter:
            await take(meter, samples("total", 10))

    run_simulated(main)
