"""Price search: what a policy costs and scores along its prices, and the price for a budget.

The policy is fitted on the training questions of each fold and replayed at the same prices on the
questions of that fold, so every question is scored by a policy that was not fitted to it. The price
for a budget is the lowest one whose mean cost stays within the budget with the given confidence.

It does not judge whether a policy is worth using; see ``verdict``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import InfeasibleBudget
from adacompute.evaluation.intervals import Mean
from adacompute.evaluation.pool import N_FOLDS, assign_folds
from adacompute.evaluation.replay import Replay, ReplayResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.factories import Experiment, FittedPolicy, PolicyFactory

N_PRICES = 64

N_BISECTIONS = 8
"""Bisection steps between two neighbouring prices of the grid."""


@dataclass(frozen=True, eq=False)
class PriceSweep:
    """The results of a policy at falling prices, each question scored while it was held out.

    ``fold`` is the fold of each question; ``fitted`` and ``replays`` hold the policy of each fold
    and the replay of its held-out questions.
    """

    experiment: Experiment
    fold: IntArray
    fitted: tuple[FittedPolicy, ...]
    replays: tuple[Replay, ...]
    prices: FloatArray
    results: tuple[ReplayResult, ...]

    def run(self, price: float) -> ReplayResult:
        """Score every question at one more price."""
        return _run(self.experiment, self.fold, self.fitted, self.replays, price)


def sweep_prices(
    experiment: Experiment,
    factory: PolicyFactory,
    prices: Sequence[float] | int,
    *,
    n_folds: int = N_FOLDS,
    progress: Callable[[str], None] = lambda _: None,
) -> PriceSweep:
    """Fit a policy on the training questions of each fold and score it on the held-out ones.

    ``prices`` are the prices to score, or how many to space evenly over the range of all folds.
    """
    fold = assign_folds(experiment.pool.group, n_folds, seed=experiment.seed)
    fitted_policies = []
    for f in range(n_folds):
        progress(f"fold {f + 1} of {n_folds}")
        fitted_policies.append(factory(experiment, np.flatnonzero(fold != f)))
    fitted = tuple(fitted_policies)
    replays = tuple(experiment.replay.take(np.flatnonzero(fold == f)) for f in range(n_folds))
    grid = _price_range(fitted, prices) if isinstance(prices, int) else np.asarray(prices)
    results = tuple(_run(experiment, fold, fitted, replays, price) for price in grid.tolist())
    return PriceSweep(experiment, fold, fitted, replays, grid, results)


def _price_range(fitted: Sequence[FittedPolicy], n_prices: int) -> FloatArray:
    """Return falling prices over the range of the policies, or every price of stepped ones."""
    prices = np.unique(np.concatenate([one.prices for one in fitted]))[::-1]
    if fitted[0].is_stepped:
        return np.asarray(prices, dtype=np.float64)
    return np.geomspace(prices[0], prices[-1], n_prices)


def _run(
    experiment: Experiment,
    fold: IntArray,
    fitted: tuple[FittedPolicy, ...],
    replays: tuple[Replay, ...],
    price: float,
) -> ReplayResult:
    sample_cost = experiment.sample_cost(np.arange(len(experiment.pool)))
    columns = {name: np.empty(len(fold)) for name in ReplayResult.__dataclass_fields__}
    for f, (one, replay) in enumerate(zip(fitted, replays, strict=True)):
        rows = np.flatnonzero(fold == f)
        features = one.prepared_features[rows]
        result = replay.run(one.policy, price, sample_cost=sample_cost, features=features)
        for name, column in columns.items():
            column[rows] = getattr(result, name)
    return ReplayResult(**columns)


def mean_cost(sweep: PriceSweep, result: ReplayResult) -> Mean:
    """Return the mean cost of a result of the sweep."""
    return Mean.of(result.cost, result.cost_variance, sweep.experiment.pool.group)


def find_price(
    sweep: PriceSweep, budget: float, *, confidence: float, horizon: int | None
) -> tuple[float, ReplayResult]:
    """Return the lowest price whose cost stays within the budget, and the results at that price.

    The cost is a step function of the price, so the interval that contains the step is bisected.
    """

    def cost_high(result: ReplayResult) -> float:
        cost = mean_cost(sweep, result)
        return cost.value + cost.margin(confidence, horizon)

    limit = budget * (1 + 1e-9)
    n_results = len(sweep.results)
    over = next((i for i, one in enumerate(sweep.results) if cost_high(one) > limit), n_results)
    if over == 0:
        cheapest = float(sweep.results[0].cost.mean())
        margin = cost_high(sweep.results[0]) - cheapest
        raise InfeasibleBudget(
            f"a budget of {budget:g} cannot be held with {confidence:.0%} confidence: this policy "
            f"costs at least {cheapest:.6g} ± {margin:.2g}; use a larger budget"
        )
    price, found = float(sweep.prices[over - 1]), sweep.results[over - 1]
    low = float(sweep.prices[min(over, n_results - 1)])
    for _ in range(N_BISECTIONS if low < price else 0):
        middle = math.sqrt(low * price)
        result = sweep.run(middle)
        if cost_high(result) <= limit:
            price, found = middle, result
        else:
            low = middle
    return price, found


def list_frontier(
    sweep: PriceSweep, confidence: float, horizon: int | None = None
) -> list[dict[str, float]]:
    """Return the cost and accuracy at each price, by rising cost, with one-sided bounds."""
    points = []
    for price, result in zip(sweep.prices.tolist(), sweep.results, strict=True):
        cost = mean_cost(sweep, result)
        accuracy = Mean.of(result.accuracy, 0.0, sweep.experiment.pool.group)
        points.append(
            {
                "price": price,
                "cost": cost.value,
                "cost_low": cost.value - cost.margin(confidence),
                "cost_high": cost.value + cost.margin(confidence, horizon),
                "accuracy": accuracy.value,
                "accuracy_low": max(0.0, accuracy.value - accuracy.margin(confidence)),
                "accuracy_high": min(1.0, accuracy.value + accuracy.margin(confidence)),
            }
        )
    return points
