"""Imitation: how closely a router follows the oracle, and what its mistakes cost.

Theorem 2 and its corollary, and Theorem 3 with its second part corrected, evaluated on held-out
questions with their own utilities: the oracle here is the one at the router's price. The valid
bound weighs each mistake by its own worst cost; the mean of M times the error rate is no bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import UtilityTable
from adacompute.core.upgrades import choose
from adacompute.evaluation.curves import Curve
from adacompute.evaluation.factories import Experiment
from adacompute.policies.router import max_regret


def imitate(experiment: Experiment, curve: Curve, budget: float) -> dict[str, Any]:
    """Compare a router's held-out choices at a budget with the oracle's at the same price."""
    table = experiment.table
    drawn = curve.samples[budget]
    choice = np.searchsorted(np.asarray(experiment.levels), np.rint(drawn).astype(np.int64))
    price = float(np.median(curve.price[budget]))
    return measure(table, choice, price, budget)


def measure(
    table: UtilityTable, choice: np.typing.NDArray[np.int64], price: float, budget: float
) -> dict[str, Any]:
    """Imitation, regret and their bounds for any choice of levels at any price.

    ``regret`` = ``oracle_gap`` − price × ``cost_deviation``; ``recovery_bound`` bounds how far the
    choice is below the best allocation of the budget it needs at most, B′ = B + ε (c_K − c_1).
    """
    best = choose(table, price)
    wrong = best != choice
    error = float(wrong.mean())
    weight = max_regret(table, best, price)
    utility, cost = table.utility_of(choice), table.cost_of(choice)
    gap = float((table.utility_of(best) - utility).mean())
    deviation = float((table.cost_of(best) - cost).mean())
    least, most = float(np.min(table.cost)), float(np.max(table.cost))
    enough = budget + error * (most - least)
    spent = float(cost.mean())
    return {
        "imitation": 1.0 - error,
        "oracle_gap": gap,
        "cost_deviation": deviation,
        "regret": gap - price * deviation,
        "regret_bound": float((weight * wrong).mean()),
        "recovery_gap": solve(table, enough).mixed_utility - float(utility.mean()),
        "recovery_bound": float(weight.max()) * error + price * (enough - spent),
    }
