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

from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.meter import CapReached, Meter
from adacompute.spending.caps.replica_file import ReplicaFile
from test_support.memory_register import EMPTY, MemoryRegister

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


@dataclass(frozen=True)
class FaultyRun:
    """What was billed above caps in a run, the share that was used, and what failed how often."""

    excess: Mapping[str, int]
    used: float
    n_calls: int
    events: Mapping[str, int]


ENDS, LOSSES = ("kill", "lose", "stop", "disaster"), ("empty", "old", "disaster")
EVENTS = (
    *("kill", "kill", "lose", "stop", "start", "start", "start", "start"),
    *("copy", "empty", "old", "disaster", "restart", "away", "answer", "answer"),
)
"""What may happen: ``lose`` kills a replica and deletes its directory, ``stop`` stops it cleanly,
``old`` restarts the server with its last ``copy``, ``empty`` without data, and a ``disaster`` is
both at once."""


class Faults:
    """Random faults of a cluster.

    When the server loses its data, one replica that knows them stays until all have reported:
    without it, nobody could know what was spent.
    """

    def __init__(self, cluster: CapCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)  # noqa: S311 - no secret
        self._copy = cluster.register.copy()
        self._witness: SimulatedReplica | None = None
        self.counts: dict[str, int] = {}

    async def run(self, duration_s: float, pause_s: float) -> None:
        """Let things fail for some time; then everything runs again."""
        cluster = self._cluster
        end = cluster.now() + duration_s
        while cluster.now() < end:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            await self._fail(self._rng.choice(EVENTS))
        cluster.register.is_away = False
        await cluster.start([i for i, one in enumerate(cluster.replicas) if one.meter is None])

    async def _fail(self, event: str) -> None:
        cluster, rng = self._cluster, self._rng
        register = cluster.register
        running = [one for one in cluster.replicas if one.meter is not None]
        informed = [one for one in running if _knows_all(one)]
        if len(informed) == len(running):
            self._witness = None
        others = [i for i, one in enumerate(cluster.replicas) if one in running]
        others = [i for i in others if cluster.replicas[i] is not self._witness]
        stopped = [i for i, one in enumerate(cluster.replicas) if one.meter is None]
        if event in ENDS and (not others or len(informed) < 2):
            return
        if (event in LOSSES and not informed) or (event == "start" and not stopped):
            return
        self.counts[event] = self.counts.get(event, 0) + 1
        if event in LOSSES and self._witness is None:
            self._witness = rng.choice(informed)
            others = [i for i in others if cluster.replicas[i] is not self._witness]
        match event:
            case "kill" | "lose":
                cluster.kill(rng.choice(others), is_lost=event == "lose")
            case "stop":
                await cluster.stop(rng.choice(others), is_lost=rng.random() < 0.5)
            case "start":
                await cluster.start([rng.choice(stopped)])
            case "copy":
                self._copy = register.copy()
            case "away" | "answer":
                register.is_away = event == "away"
            case "restart":
                register.restart()
            case "old":
                register.restart(self._copy)
            case _:
                if event == "disaster":
                    cluster.kill(rng.choice(others), is_lost=True)
                register.restart(EMPTY)


def _knows_all(replica: SimulatedReplica) -> bool:
    meter = replica.meter
    return meter is not None and meter._replica.peers.is_granted  # noqa: SLF001


async def run_faults(folder: Path, seed: int) -> FaultyRun:
    """Let replicas spend under caps while things fail, and then until the caps are reached."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    n_replicas, n_clients = rng.randint(2, 5), rng.randint(2, 12)
    faulty_s, pause_s = rng.choice([20.0, 60.0, 150.0]), rng.choice([0.5, 3.0, 10.0])
    limit = int(11 * n_clients * faulty_s * rng.uniform(0.5, 1.2))
    each = rng.choice([limit, limit // 2, limit // n_clients])
    cluster = CapCluster(folder, n_replicas, (limit, each), seed=seed)
    await cluster.start()
    faults = Faults(cluster, seed)
    is_sticky = rng.random() < 0.5
    with cluster.load(n_clients, 0.3, (lambda client: client % n_replicas) if is_sticky else None):
        await faults.run(faulty_s, pause_s)
        end = cluster.now() + 4 * faulty_s + 100
        while cluster.now() < end and cluster.used < 0.999:  # noqa: ASYNC110 - it is simulated
            await asyncio.sleep(1)
    for number in range(n_replicas):
        await cluster.stop(number)
    return FaultyRun(cluster.excess(), cluster.used, cluster.n_calls, faults.counts)
