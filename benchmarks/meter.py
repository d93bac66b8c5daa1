"""Meter: time inside reserve and settle, and round trips to the register, on each register.

Calls count against three counters (client, model and total), as in the gateway, and take 20 ms.
Redis runs on the loopback interface and syncs every write.

    python -m benchmarks.meter
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.meter import Meter
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.redis_register import RedisRegister
from adacompute.spending.registers import Register
from adacompute.spending.sqlite_register import SqliteRegister
from test_support.memory_register import MemoryRegister
from test_support.redis_server import serve_redis

T = TypeVar("T")

CALL_S, CONCURRENCY = 0.02, 64
COUNTERS = [
    Counter("client=a/tokens", "tokens", 10**12),
    Counter("model=m/samples", "samples", 10**12),
    Counter("total/money", "money", 10**15),
]


class Trips:
    """Counts the round trips to a register."""

    def __init__(self, register: Register) -> None:
        self.n_trips = 0
        for name in ("read", "replace", "changes", "renew"):
            setattr(register, name, self._count(getattr(register, name)))

    def _count(self, call: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        def counted(*arguments: object, **options: object) -> Awaitable[T]:
            self.n_trips += 1
            return call(*arguments, **options)

        return counted


@contextmanager
def open_register(kind: str, directory: Path) -> Iterator[Register]:
    """Open a register of a kind."""
    if kind == "memory":
        yield MemoryRegister()
    elif kind == "sqlite":
        yield SqliteRegister(directory / "caps.db")
    else:
        with serve_redis() as server:
            yield RedisRegister(server.url)


async def measure(register: Register, directory: Path, n_calls: int) -> None:
    """Make calls and print the times."""
    trips = Trips(register)
    meter = Meter(register, ReplicaFile.open(directory))
    await meter.start()
    times_ms: list[tuple[float, float]] = []
    rng = np.random.default_rng(0)
    left = iter(rng.integers(50, 500, n_calls).tolist())

    async def work() -> None:
        for used in left:
            start = time.perf_counter()
            reservation = await meter.reserve(
                COUNTERS, {"tokens": 1000, "samples": 1, "money": 600_000}
            )
            reserved = time.perf_counter()
            await asyncio.sleep(CALL_S)
            called = time.perf_counter()
            reservation.settle({"tokens": used, "samples": 1, "money": 600 * used})
            settled = time.perf_counter()
            times_ms.append((1000 * (reserved - start), 1000 * (settled - called)))

    before, start = trips.n_trips, time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    elapsed_s, n_trips = time.perf_counter() - start, trips.n_trips - before
    await meter.close()
    await register.close()
    reserve, settle = np.array(times_ms).T
    both = np.quantile(reserve + settle, [0.5, 0.99, 0.999])
    print(
        f"  reserve {np.median(reserve):.4f} ms, settle {np.median(settle):.4f} ms; both: "
        f"p50 {both[0]:.4f}, p99 {both[1]:.4f}, p99.9 {both[2]:.2f}, maximum "
        f"{(reserve + settle).max():.1f} ms\n"
        f"  {n_calls / elapsed_s:,.0f} calls/s, {1000 * n_trips / n_calls:.2f} round trips per "
        f"1,000 calls"
    )


def main() -> None:
    """Print one paragraph per register."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    n_calls = parser.parse_args().calls
    for kind in ("memory", "sqlite", "redis"):
        with tempfile.TemporaryDirectory() as name, open_register(kind, Path(name)) as register:
            print(kind)
            asyncio.run(measure(register, Path(name), n_calls))


if __name__ == "__main__":
    main()
