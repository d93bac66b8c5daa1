"""Pacing: the proven bound of a pacer's debt, to compare what happens with."""

from __future__ import annotations

import math

from adacompute.spending.pacing import Pacer


def deviation_bound(pacer: Pacer, budget: float) -> float:
    """Return the bound of the debt at a constant budget; the module of pacers has its proof."""
    curve, delay = pacer.curve, 1 + pacer.max_in_flight
    span = math.log(curve.max_budget / curve.min_budget)
    step = pacer.max_cost + 3 * pacer.gains.max_payback * budget
    return budget / pacer.gain * span + delay * step
