"""Spending: what this process shares with other workers and replicas about what was spent.

It opens the file of the replica, starts the meter if there are caps, and exchanges the
counts of held budgets a few times per second. Without the register, each process holds its budgets
alone, and caps hold within the leases that the process has. It makes no calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress

from adacompute.core.errors import AdaComputeError, ConfigError, DataError
from adacompute.gateway.accounting.caps import Caps
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.processes.logs import log
from adacompute.gateway.settings.config import Config
from adacompute.gateway.voting.engine import Engine
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.meter import Meter, StoreState
from adacompute.spending.caps.replica_file import ReplicaFile
from adacompute.spending.registers import Register, RegisterError
from adacompute.spending.shared_pacing import SharedPacer

EXCHANGE_S = 0.2
"""Time between two exchanges of the counts of held budgets."""

WARN_S = 60.0
"""Least time between two warnings that counts cannot be exchanged."""

REFUSED_S = 5.0
"""A process that served nothing for so long, and refused requests because of the store, is not
ready."""

REPLICAS = "replicas"
"""Name of the directory with the files of replicas, in the state directory."""


class Spending:
    """The meter and the held budgets of one process; ``start`` it before the first request."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        register: Register | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._has_caps = bool(config.caps)
        self._register = config.open_register() if register is None and self._has_caps else register
        self._pacers: list[SharedPacer] = []
        self._file: ReplicaFile | None = None
        self._exchanging: asyncio.Task[None] | None = None
        self._warned_at = -WARN_S
        self.caps: Caps | None = None
        self.replica = uuid.uuid4().hex

    async def open(self) -> None:
        """Open the file of this replica and start the meter, if either is needed."""
        register = self._register
        if register is None:
            return
        try:
            file = ReplicaFile.open(self._config.state / REPLICAS)
        except (OSError, AdaComputeError) as error:
            if self._has_caps:
                raise ConfigError(
                    f"caps need a directory that can be written and is free: {error}"
                ) from None
            log(logging.WARNING, "the counts of this process start anew", error=str(error))
            return
        self.replica = file.replica
        if not self._has_caps:
            self._file = file
            return
        meter = Meter(register, file, on_overrun=self._on_overrun)
        await meter.start()
        await self._check_store(register)
        self.caps = Caps(self._config.caps, meter)

    async def start(self, engines: Sequence[Engine]) -> None:
        """Exchange the counts of held budgets, now and from now on."""
        pacers = [one.pacer for one in engines]
        self._pacers = [pacer for pacer in pacers if pacer is not None]
        await self._exchange()
        self._exchanging = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Exchange counts for the last time, and give back leases."""
        if self._exchanging is not None:
            self._exchanging.cancel()
            await asyncio.wait({self._exchanging})
            await self._exchange()
        if self.caps is not None:
            await self.caps.meter.close()
        if self._file is not None:
            self._file.close()
        try:
            if self._register is not None:
                await self._register.close()
        except RegisterError as error:
            log(logging.WARNING, "the register cannot be closed", error=str(error))

    @property
    def store(self) -> StoreState:
        """Whether the store of caps answers and grants leases."""
        return StoreState() if self.caps is None else self.caps.meter.store

    @property
    def refuses_all(self) -> bool:
        """Whether requests are refused because of the store, none is served, and all have a cap."""
        since, store = time.time() - REFUSED_S, self.store
        is_refusing = store.refused_at > since > store.served_at
        return is_refusing and any(cap.is_of_all for cap in self._config.caps)

    async def _check_store(self, register: Register) -> None:
        """Warn if a crash of the store would lose what was spent."""
        with suppress(RegisterError):  # the meter reports that
            if (problem := await register.check()) is not None:
                log(logging.WARNING, problem)

    def _on_overrun(self, counter: Counter, amount: int) -> None:
        """Report a call that used more than the most that it could use."""
        self._metrics.count("cap_overruns_total", counter.cap, by=amount)
        log(
            logging.ERROR,
            "a call used more than its maximum, so a cap may be exceeded",
            cap=counter.name,
            amount=amount,
        )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EXCHANGE_S)
            await self._exchange()
            self._show_caps()

    async def _exchange(self) -> None:
        if self._register is None:
            return
        for pacer in self._pacers:
            try:
                await pacer.exchange(self._register)
            except (RegisterError, DataError) as error:
                if time.monotonic() - self._warned_at >= WARN_S:
                    self._warned_at = time.monotonic()
                    message = "mean costs are those of each process alone"
                    log(logging.WARNING, message, key=pacer.key, error=str(error))
                if isinstance(error, RegisterError):
                    break

    def _show_caps(self) -> None:
        """Show what is known of the store and of all caps."""
        for name, at in {
            "store_unreachable_since_seconds": self.store.unreachable_since,
            "store_recovering_until_seconds": self.store.recovering_until,
        }.items():
            self._metrics.set_store(name, at or 0.0)
        for usage in () if self.caps is None else self.caps.meter.usage():
            cap, scale = usage.counter.cap, usage.counter.scale
            for name, value in {
                "cap_limit": usage.counter.limit,
                "cap_spent": usage.spent,
                "cap_held": usage.held,
                "cap_lease_left": usage.own_left,
                "cap_reserved": usage.own_reserved,
            }.items():
                self._metrics.set_cap(name, cap, value / scale)
