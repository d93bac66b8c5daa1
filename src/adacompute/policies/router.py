"""Routers: policies that decide once, from the question alone.

``RouterPolicy`` is the paper's: a classifier of the oracle's levels, one for each price it was
trained at. ``ValueRouterPolicy`` predicts the utility of every level and takes the best one at the
price, so one model serves every budget. Both ignore the samples: once a level is reached, they
stop. They know nothing of how their models were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.oracle import solve
from adacompute.core.types import FloatArray, IntArray, Level, UtilityTable
from adacompute.core.upgrades import choose
from adacompute.policies.inference import Predictor
from adacompute.policies.learners import fit_classifier, fit_values
from adacompute.policies.policy import NO_LEVEL, State, mixing_uniform
from adacompute.policies.price_schedule import PriceSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array


@dataclass(frozen=True, eq=False)
class RouterPolicy:
    """The paper's router: classifiers of the oracle's levels, by falling price."""

    name = "router"
    levels: tuple[Level, ...]
    models: tuple[Predictor, ...]
    schedule: PriceSchedule

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep them all: which classifier reads them depends on the price."""
        return features

    def decide(self, state: State, price: float) -> IntArray:
        """Take the level that the price's classifier scores highest."""
        new = np.flatnonzero(state.level == NO_LEVEL)
        level = state.level.copy()
        place = self.schedule.select(price, mixing_uniform(state.key[new]))
        for setting in np.unique(place):
            rows = new[place == setting]
            level[rows] = self.models[setting].predict(state.features[rows]).argmax(axis=1)
        return level


@dataclass(frozen=True, eq=False)
class ValueRouterPolicy:
    """Predicts what every level is worth and takes the best at the price."""

    name = "value-router"
    levels: tuple[Level, ...]
    model: Predictor

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Predict the utility of every level."""
        return self.model.predict(features).astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """Take the level of largest predicted utility − price × cost, ties to the cheaper one."""
        new = np.flatnonzero(state.level == NO_LEVEL)
        level = state.level.copy()
        if len(new):
            value = state.features[new].astype(np.float64)
            level[new] = choose(UtilityTable(value, state.cost[new]), price)
        return level


def max_regret(table: UtilityTable, choice: IntArray, price: float) -> FloatArray:
    """M_λ(x) of Theorem 2: what the worst mistake on each question costs at this price."""
    net = table.utility - price * table.cost
    best = net[np.arange(len(table)), choice]
    return np.asarray(best - net.min(axis=1), dtype=np.float64)


def fit_router(
    features: Float32Array,
    table: UtilityTable,
    levels: tuple[Level, ...],
    *,
    budgets: Sequence[float],
    classifier: str = "gbm",
    cost_sensitive: bool = False,
    seed: int = 0,
) -> RouterPolicy:
    """Fit one classifier of the oracle's levels for each budget.

    With ``cost_sensitive`` each question counts by what its worst mistake costs.
    """
    models: list[Predictor] = []
    prices: list[float] = []
    label = np.empty(0, dtype=np.int64)
    for budget in sorted(budgets):
        oracle = solve(table, budget)
        if np.array_equal(oracle.choice, label):
            continue  # the same classifier again
        label = oracle.choice
        weight = None
        if cost_sensitive:
            weight = max_regret(table, label, oracle.price) + 1e-6
        price = oracle.price or (prices[-1] / 2 if prices else 1.0)
        # Upgrades of equal ratio may part two budgets; a schedule must still tell them apart.
        prices.append(min(price, prices[-1] * (1 - 1e-9)) if prices else price)
        models.append(
            fit_classifier(
                features,
                label,
                n_levels=len(levels),
                weight=weight,
                classifier=classifier,
                seed=seed,
            )
        )
    return RouterPolicy(levels, tuple(models), PriceSchedule(tuple(prices)))


def fit_value_router(
    features: Float32Array, table: UtilityTable, levels: tuple[Level, ...], *, seed: int = 0
) -> ValueRouterPolicy:
    """Fit the utility of every level."""
    return ValueRouterPolicy(levels, fit_values(features, table.utility, seed=seed))
