"""Cap cluster: many replicas with real meters, under load and faults, in simulated time.

The register is the only part that is not real. What the calls cost is counted apart from the
meters, as a provider does: a call is billed when it begins, whatever becomes of its replica.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from adacompute.spending.meter import CapReached, Counter, Meter
from adacompute.spending.replica_file import ReplicaFile
from test_support.memory_register import MemoryRegister

STARTED_AT = 1_795_000_000.0
MAX_TOKENS = 10
CALL_S = 0.2
TOTAL = "total/tokens/all"


@dataclass(frozen=True)
class Refusal:
    """When a call was refused, for which replica and client, and whether a cap was spent."""

    at: float
    replica: int
    client: int
    used: float
    is_spent: bool


@dataclass(eq=False)
class SimulatedReplica:
    """One replica: its directory, its meter while it runs, and its open calls."""

    folder: Path
    meter: Meter | None = None
    calls: set[asyncio.Task[None]] = field(default_factory=set)


class _File(ReplicaFile):
    """A replica file whose copies are in memory, because there are many of them."""

    saved: dict[str, str]

    def read_copies(self) -> dict[str, str]:
        return dict(_COPIES.setdefault(str(self.path), {}))

    def save_copies(self, values: Mapping[str, str | None]) -> None:
        copies = _COPIES.setdefault(str(self.path), {})
        copies |= {key: value for key, value in values.items() if value is not None}
        for key in [key for key, value in values.items() if value is None]:
            copies.pop(key, None)

    def sync(self) -> None:
        pass


_COPIES: dict[str, dict[str, str]] = {}
"""Copies by the file that they are of."""


class CapCluster:
    """Replicas that spend under a cap for all and one for each client.

    ``billed`` is what calls cost, by counter.
    """

    def __init__(
        self, folder: Path, n_replicas: int, limits: tuple[int, int], *, seed: int = 0
    ) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - no secret
        self.limits = limits
        self.register = MemoryRegister(is_local=False, clock=self.now)
        self.replicas = [SimulatedReplica(folder / str(i)) for i in range(n_replicas)]
        self.billed: dict[str, int] = {}
        self.reserved = 0
        self.refusals: list[Refusal] = []
        self.n_calls = 0
        self.waits_s: list[float] = []

    def now(self) -> float:
        """Return the time of all machines."""
        return STARTED_AT + asyncio.get_running_loop().time()

    @property
    def used(self) -> float:
        """Share of the cap for all that was billed or is reserved for open calls."""
        return (self.billed.get(TOTAL, 0) + self.reserved) / self.limits[0]

    async def start(self, numbers: Sequence[int] | None = None) -> None:
        """Start replicas, by default all, and wait until they serve."""
        chosen = range(len(self.replicas)) if numbers is None else numbers
        await asyncio.gather(*map(self._start, chosen))

    async def stop(self, number: int, *, is_lost: bool = False) -> None:
        """Stop a replica cleanly; its directory may be deleted."""
        replica = self.replicas[number]
        meter, replica.meter = replica.meter, None
        if replica.calls:
            await asyncio.wait(replica.calls)
        if meter is not None:
            await meter.close()
        if is_lost:
            self._delete(number)

    def kill(self, number: int, *, is_lost: bool = False) -> None:
        """Kill a replica; its directory may be deleted."""
        replica = self.replicas[number]
        meter, replica.meter = replica.meter, None
        for call in replica.calls:
            call.cancel()
        if meter is not None:
            for task in meter._tasks:  # noqa: SLF001 - what a signal does
                task.cancel()
            meter._replica.file.close()  # noqa: SLF001
        if is_lost:
            self._delete(number)

    async def call(self, number: int, client: int) -> bool:
        """Make a call; False if it was refused or its replica is not there."""
        replica = self.replicas[number]
        if replica.meter is None:
            return False
        task = asyncio.create_task(self._call(replica.meter, number, client))
        replica.calls.add(task)
        task.add_done_callback(replica.calls.discard)
        await asyncio.wait({task})
        return not task.cancelled() and task.exception() is None

    @contextmanager
    def load(
        self, n_clients: int, pause_s: float, choose: Callable[[int], int] | None = None
    ) -> Iterator[None]:
        """Let clients make calls one after another; ``choose`` says of which replica."""
        tasks = [
            asyncio.create_task(self._send(client, pause_s, choose or self._choose))
            for client in range(n_clients)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    def excess(self) -> dict[str, int]:
        """Return what was billed above caps, by counter."""
        total, each = self.limits
        return {
            name: billed - (total if name == TOTAL else each)
            for name, billed in self.billed.items()
            if billed > (total if name == TOTAL else each)
        }

    def _choose(self, client: int) -> int:
        del client
        return self.rng.randrange(len(self.replicas))

    async def _start(self, number: int) -> None:
        replica = self.replicas[number]
        meter = Meter(self.register, _File.open(replica.folder, boot_id="boot"), clock=self.now)
        await meter.start()
        replica.meter = meter

    def _delete(self, number: int) -> None:
        folder = self.replicas[number].folder
        shutil.rmtree(folder, ignore_errors=True)
        for path in [path for path in _COPIES if Path(path).parent == folder]:
            del _COPIES[path]

    async def _send(self, client: int, pause_s: float, choose: Callable[[int], int]) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / pause_s))
            await self.call(choose(client), client)

    async def _call(self, meter: Meter, number: int, client: int) -> None:
        total, each = self.limits
        own = f"client={client}/tokens/all"
        counters = [Counter(own, "tokens", each), Counter(TOTAL, "tokens", total)]
        begun = self.now()
        try:
            reservation = await meter.reserve(counters, {"tokens": MAX_TOKENS})
        except CapReached as error:
            at = self.now() - STARTED_AT
            self.refusals.append(Refusal(at, number, client, self.used, error.is_spent))
            raise
        self.waits_s.append(self.now() - begun)
        actual = self.rng.randint(1, MAX_TOKENS)
        self.n_calls += 1
        for counter in counters:
            self.billed[counter.name] = self.billed.get(counter.name, 0) + actual
        rest = MAX_TOKENS - actual
        self.reserved += rest
        try:
            await asyncio.sleep(CALL_S)
        finally:
            self.reserved -= rest
        reservation.settle({"tokens": actual})
