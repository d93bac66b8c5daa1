"""Held budgets: prices such that the mean cost of a model's requests stays at its budget.

The calibrated price is where it starts; as requests turn out to cost more or less than planned, the
pacer asks the calibrated curve for a smaller or larger budget. A client with a budget of its own is
paced apart. Requests that set their own budget are not counted here. It samples nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence

from adacompute.gateway.logs import log
from adacompute.gateway.virtual_model import VirtualModel
from adacompute.policies.bundle import Bundle
from adacompute.spending.pacing import Aim, Pacer, PriceCurve
from adacompute.spending.registers import Register, RegisterError
from adacompute.spending.shared_pacing import SharedPacer

EXCHANGE_S = 0.2
"""Time between two exchanges of counts between replicas."""

WARN_S = 60.0
"""Least time between two warnings that counts cannot be exchanged."""


class HeldBudgets:
    """The pacers of one virtual model: one for all clients, and one for each with its own budget.

    ``replica`` is the name under which this process counts; another process must not have it.
    """

    def __init__(self, virtual: VirtualModel, replica: str | None = None) -> None:
        bundle = virtual.bundle
        self._curve = make_curve(bundle)
        pooled = bundle.pooled
        self._pooled_curve = self._curve if pooled is None else make_curve(pooled)
        self._pacers: dict[str, SharedPacer] = {}
        if not virtual.pacing or virtual.shadow:
            return
        name = replica or f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        pacer = Pacer(self._curve, max_cost=float(bundle.level_cost.max()))
        for client, budget in {"": virtual.budget, **virtual.client_budgets}.items():
            bundle.price_for(budget)  # raises InfeasibleBudget
            key = f"pacing/{virtual.name}/{bundle.unit}" + (f"/{client}" if client else "")
            self._pacers[client] = SharedPacer(key, name, pacer, Aim.mean(budget))

    def find(self, client: str) -> SharedPacer | None:
        """Return the pacer of a client; None if budgets are not held."""
        return self._pacers.get(client) or self._pacers.get("")

    def prices(self, budget: float) -> tuple[float, float]:
        """Return the prices of a budget for questions with a text and for those without."""
        return self._curve.price_for(budget), self._pooled_curve.price_for(budget)

    @property
    def pacers(self) -> list[SharedPacer]:
        """All pacers of the model."""
        return list(self._pacers.values())


def make_curve(bundle: Bundle) -> PriceCurve:
    """Return the calibrated prices of a bundle as a curve."""
    return PriceCurve.of(bundle.calibrated_prices)


class BudgetExchange:
    """Exchanges the counts of all pacers of a process with those of other processes."""

    def __init__(self, register: Register, held: Sequence[HeldBudgets]) -> None:
        self._register = register
        self._pacers = [pacer for one in held for pacer in one.pacers]
        self._warned_at = -WARN_S

    async def run(self) -> None:
        """Exchange counts until cancelled; without the register, each process paces alone."""
        while True:
            await self.exchange()
            await asyncio.sleep(EXCHANGE_S)

    async def exchange(self) -> None:
        """Exchange the counts of all pacers once."""
        for pacer in self._pacers:
            try:
                await pacer.exchange(self._register)
            except RegisterError as error:
                if time.monotonic() - self._warned_at >= WARN_S:
                    self._warned_at = time.monotonic()
                    log(logging.WARNING, "mean costs are held by each process alone", error=error)
                return
