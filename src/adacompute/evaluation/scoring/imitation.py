"""Imitation: how closely a router follows the oracle, and how much its mistakes lose.

This evaluates Theorem 2 and its corollary, and Theorem 3 with its second part corrected, on
held-out questions with their own utilities. Where a budget is given, the oracle is the allocation
of ``solve``, ties included, so that the oracle imitates itself exactly. The valid bound weighs each
mistake by its own largest loss; the mean of M times the error rate, as in the paper, is not a
bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import IntArray, UtilityTable
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.scoring.held_out import HeldOutCurve
from adacompute.policies.router import max_regret


def score_imitation(experiment: Experiment, curve: HeldOutCurve, budget: float) -> dict[str, Any]:
    """Compare the held-out choices of a router at a budget with the oracle at the same budget.

    The choices of each fold are those at the nearest of its prices. Utilities are exact. The
    measures are means over the assignments of questions to folds.
    """
    setting, oracle = curve.find_setting(budget), solve(experiment.table, budget)
    n_folds, found = len(curve.folds) // curve.n_assignments, []
    for start in range(0, len(curve.folds), n_folds):
        choice = np.zeros(len(curve), dtype=np.int64)
        for fold in curve.folds[start : start + n_folds]:
            first, share = fold.locate(np.array([setting]))
            nearest = round(float(first[0] + share[0]))
            n_samples = np.rint(fold.result.n_samples[:, nearest]).astype(np.int64)
            choice[fold.held_out] = np.searchsorted(np.asarray(experiment.levels), n_samples)
        found.append(
            measure_imitation(experiment.table, choice, oracle.choice, oracle.price, budget)
        )
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def measure_imitation(
    table: UtilityTable, choice: IntArray, oracle: IntArray, price: float, budget: float
) -> dict[str, Any]:
    """Return the imitation, the regret and their bounds for any choice of levels.

    ``oracle`` are the oracle's levels, which are optimal at the price. ``regret`` =
    ``oracle_gap`` − price × ``cost_deviation``. ``recovery_bound`` bounds how far the choice is
    below the best allocation of B′ = B + ε (c_K − c_1), a budget that it never exceeds.
    """
    is_wrong = oracle != choice
    error = float(is_wrong.mean())
    regret = max_regret(table, oracle, price)
    utility, cost = table.utility_of(choice), table.cost_of(choice)
    gap = float((table.utility_of(oracle) - utility).mean())
    deviation = float((table.cost_of(oracle) - cost).mean())
    lowest, highest = float(np.min(table.cost)), float(np.max(table.cost))
    larger_budget = budget + error * (highest - lowest)
    return {
        "imitation": 1.0 - error,
        "oracle_gap": gap,
        "cost_deviation": deviation,
        "regret": gap - price * deviation,
        "regret_bound": float((regret * is_wrong).mean()),
        "recovery_gap": solve(table, larger_budget).mixed_utility - float(utility.mean()),
        "recovery_bound": float(regret.max()) * error
        + price * (larger_budget - float(cost.mean())),
    }
