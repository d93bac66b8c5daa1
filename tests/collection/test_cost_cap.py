"""The maximum cost of a run: what counts against it, and who gives it back."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adacompute.collection import cost_cap
from adacompute.collection.cost_cap import PROCESSES, CostCap
from adacompute.core.errors import DataError
from adacompute.spending.meter import CapReached
from adacompute.spending.registers import RegisterError
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.storage.ledger import Ledger, StoredSample

KILLED = """
import asyncio, sys
from pathlib import Path
from adacompute.collection.cost_cap import CostCap
from adacompute.storage.ledger import Ledger

async def main():
    ledger = Ledger(Path(sys.argv[1]))
    async with CostCap(ledger, 100) as cap:
        (await cap.reserve(30)).settle({"money": 10})
        await cap.reserve(15)
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def record(ledger: Ledger, number: int, cost: int) -> None:
    """Store a sample of this cost."""
    arm = ledger.register_arm(arm="a", model="m", template="t", settings="s")
    texts = (f"q{number}", arm, 0, "text", "stop")
    ledger.record([StoredSample(*texts, 1, 0, 1, 0, None, False, 0.1, 1, cost)])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


async def left(cap: CostCap) -> int:
    """Return the largest cost that can be reserved."""
    low, high = 0, 1000
    while low < high:
        middle = (low + high + 1) // 2
        try:
            (await cap.reserve(middle)).release()
            low = middle
        except CapReached:
            high = middle - 1
    return low


def test_what_the_ledger_recorded_counts_once(ledger: Ledger) -> None:
    async def main() -> None:
        record(ledger, 1, 30)
        async with CostCap(ledger, 100) as cap:
            reservation = await cap.reserve(20)
            record(ledger, 2, 20)
            reservation.settle({"money": 20})
            async with CostCap(ledger, 100) as other:  # a second process
                (await other.reserve(10)).settle({"money": 5})
        async with CostCap(ledger, 100) as cap:
            assert await left(cap) == 45
        async with CostCap(ledger, 50) as cap:
            assert await left(cap) == 0
        async with CostCap(ledger) as cap:
            (await cap.reserve(10**12)).release()

    asyncio.run(main())


def test_a_new_ledger_in_the_same_directory_starts_at_zero(ledger: Ledger) -> None:
    async def spend(ledger: Ledger, expected: int) -> None:
        async with CostCap(ledger, 100) as cap:
            assert await left(cap) == expected
            (await cap.reserve(60)).settle({"money": 60})

    asyncio.run(spend(ledger, 100))
    ledger.close()
    for path in ledger.path.parent.glob("ledger.sqlite*"):
        path.unlink()
    asyncio.run(spend(Ledger(ledger.path), 100))


def test_a_lost_directory_of_processes_gives_nothing_back(ledger: Ledger) -> None:
    async def main() -> None:
        async with CostCap(ledger, 100) as cap:
            (await cap.reserve(60)).settle({"money": 60})
        shutil.rmtree(ledger.path.parent / PROCESSES)
        async with CostCap(ledger, 100) as cap:
            assert await left(cap) == 40

    asyncio.run(main())


def test_what_a_killed_process_held_is_given_back_to_others(ledger: Ledger) -> None:
    async def main() -> None:
        async with CostCap(ledger, 100) as cap:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", KILLED, str(ledger.path)), stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises(CapReached) as caught:
                await cap.reserve(75)
            assert not caught.value.is_spent
            await asyncio.sleep(1.5)  # it is asked for again after a refresh
            (await cap.reserve(75)).settle({"money": 75})
            with pytest.raises(CapReached) as caught:
                await cap.reserve(1)
            assert caught.value.is_spent

    asyncio.run(main())


def test_a_file_that_stays_unusable_ends_the_collection(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RegisterError("broken")

    async def main() -> None:
        async with CostCap(ledger, 100) as cap:
            monkeypatch.setattr(SqliteRegister, "read", fail)
            monkeypatch.setattr(cost_cap, "MAX_FAILURES", 3)
            for _ in range(3):
                with pytest.raises(CapReached):
                    await cap.reserve(10)
            with pytest.raises(DataError):
                await cap.reserve(10)

    asyncio.run(main())
