"""Spending: what this process shares with other workers and replicas about what was spent.

It opens the file of the replica, starts the meter if there are caps or audits, and exchanges the
counts of held budgets a few times per second. Without the register, each process holds its budgets
alone, and caps hold within the leases that the process has. It makes no calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence

from adacompute.core.errors import AdaComputeError, ConfigError
from adacompute.gateway.caps import SERVED, Caps
from adacompute.gateway.config import ACCOUNTS, Config
from adacompute.gateway.held_budgets import HeldBudgets
from adacompute.gateway.logs import log
from adacompute.gateway.metrics import Metrics
from adacompute.gateway.virtual_model import VirtualModel
from adacompute.spending.counters import Counter
from adacompute.spending.meter import Meter
from adacompute.spending.registers import MemoryRegister, Register, RegisterError
from adacompute.spending.replica_file import MAX_FILES, ReplicaFile
from adacompute.spending.shared_pacing import SharedPacer

EXCHANGE_S = 0.2
"""Time between two exchanges of the counts of held budgets."""

WARN_S = 60.0
"""Least time between two warnings that counts cannot be exchanged."""

REPLICAS = "replicas"
"""Name of the directory with the files of replicas, beside the file of accounts."""


class Spending:
    """The meter and the held budgets of one process; ``start`` it before the first request."""

    def __init__(
        self,
        config: Config,
        models: Sequence[VirtualModel],
        metrics: Metrics,
        register: Register | None = None,
    ) -> None:
        self._config = config
        self._models = models
        self._metrics = metrics
        self._register: Register = register or MemoryRegister()
        self._is_alone = register is None
        self._pacers: list[SharedPacer] = []
        self._file: ReplicaFile | None = None
        self._exchanging: asyncio.Task[None] | None = None
        self._warned_at = -WARN_S
        self.caps: Caps | None = None
        self.replica = uuid.uuid4().hex

    async def open(self) -> None:
        """Open the file of this replica and start the meter, if either is needed."""
        has_caps = bool(self._config.caps) or any(one.audit_share for one in self._models)
        if self._is_alone and not has_caps:
            return
        config = self._config
        file_of_accounts = config.account_file or config.calls.directory_for(config.port) / ACCOUNTS
        directory = file_of_accounts.parent / REPLICAS
        try:
            file = ReplicaFile.open(directory, max_files=1 if self._is_alone else MAX_FILES)
        except (OSError, AdaComputeError) as error:
            if has_caps:
                raise ConfigError(
                    f"caps and audits need a directory that can be written and is free: {error}"
                ) from None
            log(logging.WARNING, "the counts of this process start anew", error=str(error))
            return
        self.replica = file.replica
        if not has_caps:
            self._file = file
            return
        meter = Meter(self._register, file, on_overrun=self._on_overrun)
        await meter.start()
        shares = {one.name: one.audit_max_share for one in self._models if one.audit_share}
        self.caps = Caps(self._config.caps, meter, shares)

    async def start(self, budgets: Sequence[HeldBudgets]) -> None:
        """Exchange the counts of held budgets, now and from now on."""
        self._pacers = [pacer for one in budgets for pacer in one.pacers]
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
            await self._register.close()
        except RegisterError as error:
            log(logging.WARNING, "the register cannot be closed", error=str(error))

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
        for pacer in self._pacers:
            try:
                await pacer.exchange(self._register)
            except RegisterError as error:
                if time.monotonic() - self._warned_at >= WARN_S:
                    self._warned_at = time.monotonic()
                    message = "mean costs are held by each process alone"
                    log(logging.WARNING, message, error=str(error))
                return

    def _show_caps(self) -> None:
        """Show what is known of all caps."""
        for usage in () if self.caps is None else self.caps.usage():
            cap, scale = usage.counter.cap, usage.counter.scale
            if cap.startswith(SERVED):
                continue
            for name, value in {
                "cap_limit": usage.counter.limit,
                "cap_spent": usage.spent,
                "cap_held": usage.held,
                "cap_lease_left": usage.own_left,
                "cap_reserved": usage.own_reserved,
            }.items():
                self._metrics.set_cap(name, cap, value / scale)
