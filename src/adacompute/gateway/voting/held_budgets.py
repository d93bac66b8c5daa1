"""Held budgets: prices such that the mean cost of a model's requests stays at its budget.

The calibrated price is where it starts; as requests turn out to cost more or less than planned, the
pacer asks the calibrated curve for a smaller or larger budget. A client with a budget of its own is
paced apart. Requests that set their own budget are not counted here. It samples nothing.
"""

from __future__ import annotations

from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.policies.bundles.bundle import Bundle
from adacompute.spending.pacing import Pacer, PriceCurve
from adacompute.spending.shared_pacing import SharedPacer


class HeldBudgets:
    """The pacers of one virtual model: one for all clients, and one for each with its own budget.

    ``replica`` is the name under which this process counts; no other process may have it.
    """

    def __init__(self, virtual: VirtualModel, replica: str = "process") -> None:
        bundle = virtual.bundle
        self._curve = make_curve(bundle)
        pooled = bundle.pooled
        self._pooled_curve = self._curve if pooled is None else make_curve(pooled)
        self._pacers: dict[str, SharedPacer] = {}
        if not virtual.pacing:
            return
        pacer = Pacer(self._curve, max_cost=float(bundle.level_cost.max()))
        for client, budget in {"": virtual.budget, **virtual.client_budgets}.items():
            bundle.price_for(budget)  # raises InfeasibleBudget
            key = f"pacing/{virtual.name}/{bundle.unit}" + (f"/{client}" if client else "")
            self._pacers[client] = SharedPacer(key, replica, pacer, budget)

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
