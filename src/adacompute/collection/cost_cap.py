"""Cost cap: the maximum cost of a run, held over all processes that collect into it.

The maximum cost of each call is reserved before it is made. The account is in the file of the
ledger, and each process has a file of its own in a directory beside it. What the ledger recorded
before counts. Calls that were running when a process was killed count at their maximum cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from adacompute.core.errors import DataError
from adacompute.spending.counters import MAX_LIMIT, Counter
from adacompute.spending.meter import CapReached, Meter, Reservation, reclaim_leases
from adacompute.spending.replica import set_cap_spent
from adacompute.spending.replica_file import ReplicaFile
from adacompute.spending.sqlite_register import SqliteRegister
from adacompute.storage.ledger import Ledger

PROCESSES = "collectors"
"""Name of the directory with the files of processes."""

TIMEOUT_S = 60.0
"""How long to wait for other processes that write to the ledger."""

MAX_FAILURES = 60


class CostCap:
    """The maximum cost of a ledger in billionths, None for no maximum; use it as a context."""

    def __init__(self, ledger: Ledger, limit: int | None = None) -> None:
        self._ledger = ledger
        self._limit = MAX_LIMIT if limit is None else min(limit, MAX_LIMIT)
        self._directory: Path = ledger.path.parent / PROCESSES
        self._register = SqliteRegister(ledger.path, timeout_s=TIMEOUT_S)
        self._n_failures = 0

    async def __aenter__(self) -> Self:
        # The ledger may have been deleted and created again, so its identity is in the name.
        ledger_id = (await self._register.read("")).server
        self._counter = Counter(f"collect/{ledger_id}", "money", self._limit)
        spent = self._ledger.totals()["cost"]
        await set_cap_spent(self._register, self._counter.name, spent, includes_leases=True)
        self._meter = Meter(self._register, ReplicaFile.open(self._directory))
        await self._meter.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._meter.close()
        await self._register.close()

    async def reserve(self, max_cost: int) -> Reservation:
        """Reserve the maximum cost of a call; CapReached if it does not fit now."""
        try:
            reservation = await self._meter.reserve([self._counter], {"money": max_cost})
        except CapReached as refusal:
            await self._check(refusal)
            raise
        self._n_failures = 0
        return reservation

    async def _check(self, refusal: CapReached) -> None:
        """Give back what killed processes held; DataError if the file cannot be used for long."""
        if not self._meter.is_available:
            self._n_failures += 1
            if self._n_failures > MAX_FAILURES:
                raise DataError(f"{self._ledger.path} cannot be used: {refusal}") from None
        elif not refusal.is_spent:
            await reclaim_leases(self._register, self._directory)
