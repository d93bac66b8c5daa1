"""A model of replicas, crashes and a register that fails: no cap is ever exceeded.

After everything is repaired, nothing was lost, and what is left of a cap can be spent.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adacompute.spending.accounts import CapAccount
from adacompute.spending.meter import CapReached, Counter, Meter, Reservation
from adacompute.spending.registers import Reading, RegisterError
from adacompute.spending.replica_file import ReplicaFile

T = TypeVar("T")
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory that is fast to sync
COUNTERS = (Counter("a", "samples", 20), Counter("b", "samples", 50), Counter("c", "tokens", 90))
N_REPLICAS = 3
numbers = st.integers(0, N_REPLICAS - 1)


@dataclass
class Server:
    """What the register keeps, on a clock of its own."""

    values: dict[str, str] = field(default_factory=dict)
    now: float = 1000.0
    n_restarts: int = 0


@dataclass
class Connection:
    """The register as one replica sees it."""

    server: Server
    mode: str = "works"
    recovery_s: float = 3.0

    async def read(self, key: str) -> Reading:
        if self.mode == "down":
            raise RegisterError("down")
        server = self.server
        return Reading(server.values.get(key), f"server {server.n_restarts}", server.now)

    async def replace(self, key: str, old: Reading, new: str, *, durable: bool = True) -> bool:
        del durable
        done = old == (await self.read(key))._replace(now=old.now)
        if done:
            self.server.values[key] = new
        if self.mode == "loses replies":
            raise RegisterError("timeout")
        return done

    async def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.server.values if key.startswith(prefix))

    async def close(self) -> None:
        pass


class SyncedFile(ReplicaFile):
    """A file that remembers what was synced: the rest is lost when the machine crashes."""

    def sync(self) -> None:
        self.synced = bytes(self._bytes)

    def lose(self) -> None:
        self.path.write_bytes(self.synced)
        self.path.with_suffix(".json").unlink(missing_ok=True)


@dataclass
class Process:
    """One replica, that may have crashed, and its open calls."""

    folder: Path
    connection: Connection
    meter: Meter | None = None
    file: SyncedFile | None = None
    n_boots: int = 0
    away_since: float | None = None
    calls: list[tuple[Reservation, list[Counter], int]] = field(default_factory=list)

    async def start(self) -> None:
        self.file = SyncedFile.open(self.folder, boot_id=f"boot {self.n_boots}", max_files=1)
        server = self.connection.server
        self.meter = Meter(self.connection, self.file, clock=lambda: server.now, refresh_s=3600.0)
        await self.meter.start(wait=False)

    async def kill(self, *, machine: bool) -> None:
        """End the process without a goodbye."""
        assert self.meter is not None
        assert self.file is not None
        for task in self.meter._tasks:
            task.cancel()
        await asyncio.wait(self.meter._tasks)
        self.meter._replica._disk.shutdown()
        self.file.close()
        if machine:
            self.n_boots += 1
            self.file.lose()
        self.meter, self.calls = None, []


class Caps(RuleBasedStateMachine):
    """``truth`` is what calls cost: at their maximum while they are open, and if they were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.server = Server()
        self.snapshot: dict[str, str] = {}
        self.truth = dict.fromkeys(COUNTERS, 0)
        self.processes = [
            Process(self.folder / str(i), Connection(self.server)) for i in range(N_REPLICAS)
        ]
        for process in self.processes:
            self.run(process.start())
        self.pass_time(4)

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(action)

    def pass_time(self, seconds: int) -> None:
        """Let time pass; every process refreshes once per second."""
        for _ in range(seconds):
            self.server.now += 1
            for process in self.processes:
                if process.meter is not None:
                    self.run(process.meter.refresh())
                if process.meter is None or process.connection.mode != "works":
                    process.away_since = process.away_since or self.server.now
                else:
                    process.away_since = None

    @rule(
        number=numbers,
        counters=st.lists(st.sampled_from(COUNTERS), min_size=1, max_size=3, unique=True),
        amount=st.integers(0, 30),
    )
    def reserve(self, number: int, counters: list[Counter], amount: int) -> None:
        process = self.processes[number]
        if process.meter is None:
            return
        self.server.now += 0.01
        try:
            reservation = self.run(
                process.meter.reserve(counters, {"samples": amount, "tokens": 2 * amount})
            )
        except CapReached:
            return
        process.calls.append((reservation, counters, amount))
        for counter in counters:
            self.truth[counter] += amount * (1 + (counter.unit == "tokens"))

    @rule(number=numbers, counter=st.sampled_from(COUNTERS))
    def fill(self, number: int, counter: Counter) -> None:
        """Reserve as much as possible."""
        for amount in (16, 8, 4, 2, 1):
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

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)

    @rule(number=numbers, mode=st.sampled_from(["works", "works", "down", "loses replies"]))
    def connect(self, number: int, mode: str) -> None:
        self.processes[number].connection.mode = mode

    @rule(number=numbers, machine=st.booleans())
    def kill(self, number: int, machine: bool) -> None:  # noqa: FBT001 - of hypothesis
        if self.processes[number].meter is not None:
            self.run(self.processes[number].kill(machine=machine))

    @rule(number=numbers)
    def start(self, number: int) -> None:
        if self.processes[number].meter is None:
            self.run(self.processes[number].start())

    @rule(number=numbers)
    def close(self, number: int) -> None:
        process = self.processes[number]
        if process.meter is not None:
            self.run(process.meter.close())
            process.meter, process.calls = None, []

    @rule()
    def save(self) -> None:
        self.snapshot = dict(self.server.values)

    @precondition(
        lambda self: all(
            one.away_since is None or self.server.now - one.away_since < 7 for one in self.processes
        )
    )
    @rule(data=st.sampled_from(["kept", "empty", "snapshot"]))
    def lose(self, data: str) -> None:
        """Restart the server; a replica that was away for long would not be waited for."""
        if data != "kept":
            self.server.values = dict(self.snapshot) if data == "snapshot" else {}
        self.server.n_restarts += 1

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
                    self.run(process.start())
            self.pass_time(8)
            for counter in COUNTERS:
                text = self.server.values.get(f"cap/{counter.name}")
                account = CapAccount.from_json(text) if text else CapAccount()
                assert self.truth[counter] <= account.held <= counter.limit
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
TestCaps.settings = settings(max_examples=100, stateful_step_count=40)
