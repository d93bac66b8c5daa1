"""Paper claim measures: what the paper's claims need besides the data of its tables and figures.

Times of training and of routing, whether labels repeat on other samples, how well single samples
estimate accuracies, the prices at which questions fall to the lowest level, and the two parts of
Theorem 3. It knows nothing of verdicts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.types import FloatArray, UtilityTable
from adacompute.policies.learners import fit_classifier
from adacompute.policies.router import max_regret
from reproduction.oracle_data import FIFTHS, make_price_grid
from reproduction.run_data import BUDGETS, MAIN_BUDGET, SEED, RunData, quantile_groups

N_TIMINGS = 3


@dataclass(frozen=True, eq=False)
class ClaimMeasures:
    """Measures of a run.

    ``fit_s`` is the processor time of training the router once, ``routing_s`` that of the trees'
    decision on one question, and ``latency_s`` the mean time of a sample, if it was recorded.
    ``label_agreement`` is the share of questions whose label is the same on both halves of the
    samples. ``single_error`` is the largest error of a level's mean accuracy with one trial per
    question. ``mean_utility`` (K,) is over all subsets. ``drop_price`` (fifths,) is the mean price
    at which questions fall to the lowest level, hardest fifth first, and ``other_drop_price`` the
    same with difficulty from the other half of the samples. ``feasibility_slack`` and
    ``optimality_slack`` are the smallest differences, bound minus value, of Theorem 3.
    """

    n_questions: int
    fit_s: float
    routing_s: float
    latency_s: float | None
    label_agreement: float
    single_error: float
    mean_utility: FloatArray
    drop_price: FloatArray
    other_drop_price: FloatArray
    feasibility_slack: float
    optimality_slack: float


def measure_claims(run: RunData) -> ClaimMeasures:
    """Measure what the paper's claims need besides its tables and figures."""
    table, (half, other) = run.window_table, run.half_tables
    fit_s, routing_s = _time_router(run)
    single = run.pool.table(run.levels, method="single").utility.mean(axis=0)
    mean_utility = run.exact_table.utility.mean(axis=0)
    labels = [solve(one, MAIN_BUDGET).choice for one in (half, other)]
    slack = np.array([_theorem_3(run, budget) for budget in BUDGETS])
    latency = run.pool.latency_s
    return ClaimMeasures(
        n_questions=len(run),
        fit_s=fit_s,
        routing_s=routing_s,
        latency_s=None if latency is None else float(latency.mean()),
        label_agreement=float((labels[0] == labels[1]).mean()),
        single_error=float(np.abs(single - mean_utility).max()),
        mean_utility=mean_utility,
        drop_price=_drop_prices(table, table.utility[:, 0]),
        other_drop_price=_drop_prices(half, other.utility[:, 0]),
        feasibility_slack=float(slack[:, 0].min()),
        optimality_slack=float(slack[:, 1].min()),
    )


def _time_router(run: RunData) -> tuple[float, float]:
    """Processor time of training the router, and of its decision on one question."""
    features = run.paper_pool.features
    label = solve(run.window_table, MAIN_BUDGET).choice
    n_levels = len(run.levels)
    model = fit_classifier(features, label, n_levels=n_levels, seed=SEED)

    def fit() -> None:
        fit_classifier(features, label, n_levels=n_levels, seed=SEED)

    return _min_time(fit), _min_time(lambda: model.predict(features[:1]))


def _min_time(work: Callable[[], object]) -> float:
    """Smallest processor time of several trials, in seconds."""
    times = []
    for _ in range(N_TIMINGS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def _drop_prices(table: UtilityTable, accuracy: FloatArray) -> FloatArray:
    """Mean price from which questions get the lowest level, in fifths by accuracy, (fifths,)."""
    prices = make_price_grid(table)
    above = np.stack([choose(table, price) > 0 for price in prices.tolist()])
    drop = prices[np.minimum(above.sum(axis=0), len(prices) - 1)]
    fifth = quantile_groups(accuracy, FIFTHS)
    return np.array([drop[fifth == part].mean() for part in range(FIFTHS)])


def _theorem_3(run: RunData, budget: float) -> tuple[float, float]:
    """Bound minus value of both parts of Theorem 3 as published, for the held-out router."""
    table, choice = run.window_table, run.held_out_choices[budget]
    oracle = solve(table, budget)
    error = float((choice != oracle.choice).mean())
    larger = budget + error * float(np.max(table.cost) - np.min(table.cost))
    bound = float(max_regret(table, oracle.choice, oracle.price).max()) * error
    gap = solve(table, larger).mixed_utility - float(table.utility_of(choice).mean())
    return larger - float(table.cost_of(choice).mean()), bound - gap
