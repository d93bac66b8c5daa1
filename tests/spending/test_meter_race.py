"""A race for a cap: checking before counting exceeds it, reserving does not, on every register."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from adacompute.spending.caps.accounts import CapAccount
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.meter import CapReached, Meter
from adacompute.spending.caps.peers import CAPS
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import Register, update
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.memory_register import MemoryRegister

N_CALLS, LIMIT = 10_000, 4_000
N_PROCESSES = 4
COUNTER = Counter("total", "samples", LIMIT)


class NaiveMeter:
    """What reserving is for: it checks the total, and then counts the call."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._connections = asyncio.Semaphore(30)
        self._one_at_a_time = asyncio.Lock()

    async def reserve(self, amount: int) -> bool:
        async with self._connections:
            return await self._reserve(amount)

    async def _reserve(self, amount: int) -> bool:
        value = (await self._register.read("naive")).value
        if int(value or 0) + amount > LIMIT:
            return False
        await asyncio.sleep(0)  # as every network does
        async with self._one_at_a_time:  # no count is lost
            await update(
                self._register,
                "naive",
                lambda reading: (str(int(reading.value or 0) + amount), None),
                durable=False,
            )
        return True


async def race_naively(register: Register, sizes: list[int]) -> int:
    meter = NaiveMeter(register)
    done = await asyncio.gather(*map(meter.reserve, sizes))
    return sum(size for size, reserved in zip(sizes, done, strict=True) if reserved)


async def race(register: Register, directory: Path, sizes: list[int]) -> int:
    """Reserve all sizes at once, and again while only leases are in the way; return the sum."""
    meter = Meter(register, ReplicaFile.open(directory))
    await meter.start()
    spent = 0

    async def call(size: int) -> int | None:
        nonlocal spent
        try:
            reservation = await meter.reserve([COUNTER], {"samples": size})
        except CapReached as refusal:
            return size if refusal.retry_after_s == 1 else None
        spent += size
        await asyncio.sleep(0)
        reservation.settle({"samples": size})
        return None

    left = sizes
    while left := [size for size in await asyncio.gather(*map(call, left)) if size]:
        await asyncio.sleep(0.1)
        await meter.refresh()
    await meter.close()
    return spent


def open_register(kind: str, address: str) -> Register:
    if kind == "sqlite":
        return SqliteRegister(Path(address), timeout_s=30.0)
    return RedisRegister(address, timeout_s=30.0)


async def main(kind: str, address: str, directory: str, sizes: str, is_naive: str) -> None:
    """Run as a process of the race."""
    register = open_register(kind, address)
    amounts = json.loads(sizes)
    sys.stdin.readline()
    if is_naive == "naive":
        spent = await race_naively(register, amounts)
    else:
        spent = await race(register, Path(directory), amounts)
    await register.close()
    sys.stdout.write(f"{spent}\n")


def race_processes(kind: str, address: str, directory: Path, sizes: list[int], how: str) -> int:
    """Share the calls among processes that begin together, and return the sum of all."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, __file__, kind, address, str(directory)),
                        *(json.dumps(sizes[number::N_PROCESSES]), how),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(N_PROCESSES)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        return sum(int(process.communicate(timeout=120)[0]) for process in processes)


def make_sizes(kind: str) -> list[int]:
    draw = random.Random(7)
    return [1 if kind == "units" else draw.randint(1, 9) for _ in range(N_CALLS)]


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    if request.param == "sqlite":
        yield "sqlite", str(tmp_path / "caps.db")
        return
    # Here, because the processes of the race must start fast.
    from test_support.redis_server import find_redis, serve_redis

    if find_redis() is None:
        pytest.skip("redis-server is not installed")
    with serve_redis({"appendfsync": "no"}) as server:
        yield "redis", server.url


@pytest.mark.parametrize("sizes", ["units", "mixed"])
def test_tasks_of_one_process_never_exceed_the_cap(tmp_path: Path, sizes: str) -> None:
    amounts = make_sizes(sizes)
    assert asyncio.run(race_naively(MemoryRegister(), amounts)) > LIMIT
    spent = asyncio.run(race(MemoryRegister(), tmp_path, amounts))
    assert spent == LIMIT if sizes == "units" else LIMIT - 9 < spent <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [pytest.param("units", marks=pytest.mark.nightly), "mixed"])
def test_processes_never_exceed_the_cap(
    tmp_path: Path, address: tuple[str, str], sizes: str
) -> None:
    async def read_account() -> CapAccount:
        register = open_register(*address)
        value = (await register.read(CAPS + COUNTER.name)).value
        await register.close()
        return CapAccount.from_json(value or "")

    amounts = make_sizes(sizes)
    assert race_processes(*address, tmp_path, amounts, "naive") > LIMIT
    spent = race_processes(*address, tmp_path, amounts, "reserve")
    assert spent == LIMIT if sizes == "units" else LIMIT - 9 < spent <= LIMIT
    account = asyncio.run(read_account())
    assert account.held == account.spent == spent


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
