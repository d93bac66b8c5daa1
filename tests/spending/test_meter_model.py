"""A model of replicas, crashes and a register that fails: no cap is ever exceeded.

After everything is repaired, nothing was lost, and what is left of a cap can be spent.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adacompute.spending.caps.accounts import COPY_S, CapAccount
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.leases import LEASE_S
from adacompute.spending.caps.meter import CapReached, Meter, Reservation
from adacompute.spending.caps.peers import CAPS, RECOVERY_S
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.registers import Changes, Reading, RegisterError
from test_support.memory_register import MemoryRegister
from test_support.simulated_time import SimulatedLoop

T = TypeVar("T")
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory that is fast to sync
COUNTERS = (Counter("a", "samples", 20), Counter("b", "samples", 90), Counter("c", "tokens", 900))
N_REPLICAS = 3
numbers = st.integers(0, N_REPLICAS - 1)


@dataclass
class Connection:
    """The register as one replica sees it."""

    server: MemoryRegister
    mode: str = "works"
    is_local: bool = False

    async def read(self, key: str) -> Reading:
        await self._pass()
        return await self.server.read(key)

    async def replace(
        self,
        key: str,
        old: Reading,
        new: str,
        *,
        durable: bool = True,
        expires_at: float = math.inf,
    ) -> bool:
        await self._pass()
        done = await self.server.replace(key, old, new, durable=durable, expires_at=expires_at)
        if self.mode == "loses replies":
            raise RegisterError("timeout")
        return done

    async def changes(self, after: int) -> Changes:
        await self._pass()
        return await self.server.changes(after)

    async def renew(self, server: str) -> None:
        await self._pass()
        await self.server.renew(server)

    async def check(self) -> str | None:
        return None

    async def close(self) -> None:
        pass

    async def _pass(self) -> None:
        await asyncio.sleep(0.001)
        if self.mode == "down":
            raise RegisterError("down")


class SyncedFile(ReplicaFile):
    """A file that remembers what was synced: the rest is lost when the machine crashes."""

    def sync(self) -> None:
        self.synced = bytes(self._bytes)

    def lose(self) -> None:
        self.path.write_bytes(self.synced)
        self._copies_path.unlink(missing_ok=True)


@dataclass
class Process:
    """One replica, that may have crashed, and its open calls; ``since`` is when it became well."""

    folder: Path
    connection: Connection
    meter: Meter | None = None
    file: SyncedFile | None = None
    n_boots: int = 0
    since: float = math.inf
    calls: list[tuple[Reservation, list[Counter], int]] = field(default_factory=list)

    async def start(self, clock: MemoryRegister) -> None:
        self.file = SyncedFile.open(self.folder, boot_id=f"boot {self.n_boots}")
        self.meter = Meter(self.connection, self.file, clock=clock._clock)
        await self.meter.start()

    async def kill(self, *, machine: bool) -> None:
        """End the process without a goodbye."""
        assert self.meter is not None
        assert self.file is not None
        for task in self.meter._tasks:
            task.cancel()
        await asyncio.wait(self.meter._tasks)
        self.file.close()
        if machine:
            self.n_boots += 1
            self.file.lose()
        self.meter, self.calls = None, []


class Caps(RuleBasedStateMachine):
    """``truth`` is what calls cost: at their maximum while they are open, and if they were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimulatedLoop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.register = MemoryRegister(is_local=False, clock=lambda: 1e9 + self.loop.time())
        self.old = self.register.copy()
        self.truth = dict.fromkeys(COUNTERS, 0)
        self.has_crashed = False
        self.processes = [
            Process(self.folder / str(i), Connection(self.register)) for i in range(N_REPLICAS)
        ]
        for process in self.processes:
            self.run(process.start(self.register))
        self.wait(4)

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        found = self.loop.run_until_complete(action)
        for process in self.processes:
            is_well = process.meter is not None and process.connection.mode == "works"
            process.since = min(process.since, self.loop.time()) if is_well else math.inf
        return found

    @rule(
        number=numbers,
        counters=st.lists(st.sampled_from(COUNTERS), min_size=1, max_size=3, unique=True),
        amount=st.integers(0, 30),
    )
    def reserve(self, number: int, counters: list[Counter], amount: int) -> None:
        process = self.processes[number]
        if process.meter is None:
            return
        worst = {"samples": amount, "tokens": 2 * amount}
        try:
            reservation = self.run(process.meter.reserve(counters, worst))  # type: ignore[arg-type]
        except CapReached:
            return
        process.calls.append((reservation, counters, amount))
        for counter in counters:
            self.truth[counter] += amount * (1 + (counter.unit == "tokens"))

    @rule(number=numbers, counter=st.sampled_from(COUNTERS))
    def fill(self, number: int, counter: Counter) -> None:
        """Reserve as much as possible."""
        for amount in (64, 16, 4, 1):
            for _ in range(4):
                self.reserve(number=number, counters=[counter], amount=amount)

    @rule(number=numbers, share=st.floats(0, 1))
    def settle(self, number: int, share: float) -> None:
        process = self.processes[number]
        if process.calls:
            reservation, counters, amount = process.calls.pop()
            spent = int(share * amount)
            reservation.settle({"samples": spent, "tokens": spent})
            for counter in counters:
                reserved = amount * (1 + (counter.unit == "tokens"))
                self.truth[counter] += spent - reserved

    @rule(seconds=st.sampled_from([0.1, 0.7, 1, 2, 5, 35, 70]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(number=numbers, mode=st.sampled_from(["works", "works", "down", "loses replies"]))
    def connect(self, number: int, mode: str) -> None:
        self.processes[number].connection.mode = mode
        self.wait(0)

    @rule(number=numbers, machine=st.booleans())
    def kill(self, number: int, machine: bool) -> None:  # noqa: FBT001 - of hypothesis
        if self.processes[number].meter is not None:
            self.run(self.processes[number].kill(machine=machine))
            self.has_crashed |= machine

    @rule(number=numbers)
    def start(self, number: int) -> None:
        if self.processes[number].meter is None:
            self.run(self.processes[number].start(self.register))

    @rule(number=numbers)
    def close(self, number: int) -> None:
        process = self.processes[number]
        if process.meter is not None:
            self.run(process.meter.close())
            process.meter, process.calls = None, []
            self.wait(0)

    @rule()
    def save(self) -> None:
        self.old = self.register.copy()

    @precondition(
        lambda self: any(self.loop.time() - one.since > 2 * COPY_S for one in self.processes)
    )
    @rule(data=st.sampled_from(["kept", "empty", "old"]))
    def lose(self, data: str) -> None:
        """Restart the server; there is a replica whose copies are new, and it reports."""
        copies = {"kept": None, "empty": (0, dict[str, tuple[str, int]]()), "old": self.old}
        self.register.restart(copies[data])
        self.wait(1)

    @precondition(
        lambda self: any(self.loop.time() - one.since > 2 * COPY_S for one in self.processes)
    )
    @rule(number=numbers, counter=st.sampled_from(COUNTERS), data=st.sampled_from(["empty", "old"]))
    def lose_all_but_one(self, number: int, counter: Counter, data: str) -> None:
        """Restart the server when only a replica whose copies are new is left."""
        well = min(self.processes, key=lambda one: one.since)
        self.fill(number=number, counter=counter)
        for process in self.processes:
            if process is not well:
                process.connection.mode = "down"
        self.lose(data=data)
        self.fill(number=number, counter=counter)
        self.wait(RECOVERY_S + 3)
        self.fill(number=self.processes.index(well), counter=counter)

    @invariant()
    def no_cap_is_exceeded(self) -> None:
        for counter, spent in self.truth.items():
            assert spent <= counter.limit, counter

    def teardown(self) -> None:
        """Bring all processes back: nothing is lost, and everything left can be spent."""
        try:
            for process in self.processes:
                process.connection.mode = "works"
                if process.meter is None:
                    self.run(process.start(self.register))
            self.wait(RECOVERY_S + LEASE_S + 20)
            for counter in COUNTERS:
                text, _ = self.register.values.get(CAPS + counter.name, (None, 0))
                account = CapAccount.from_json(text)
                assert self.truth[counter] <= account.held <= counter.limit
                assert self.has_crashed or account.held == self.truth[counter]
                meter = self.processes[0].meter
                assert meter is not None
                self.run(meter.reserve([counter], {counter.unit: counter.limit - account.held}))
            for process in self.processes:
                assert process.meter is not None
                self.run(process.meter.close())
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)


TestCaps = Caps.TestCase
TestCaps.settings = settings(max_examples=60, stateful_step_count=40)
