"""Routers: policies that decide once, from the question only.

``RouterPolicy`` is the paper's router: classifiers that predict the oracle's level, one for each
price that it was trained at. ``ValueRouterPolicy`` predicts the utility of every level and takes
the best one at the price, so one model serves every budget. Both ignore the samples: once a level
is reached, they stop. The policies do not know how their models were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray, Level, UtilityTable
from adacompute.policies.inference import OnnxModel, Predictor
from adacompute.policies.learners import fit_classifier, fit_values
from adacompute.policies.policy import NO_LEVEL, Policy, PreparedKind, State, mixing_uniform
from adacompute.policies.price_schedule import MIN_PRICE_GAP, PriceSchedule
from adacompute.policies.spec import PolicySpec, read_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, KeyArray


@dataclass(frozen=True, eq=False)
class RouterPolicy(Policy):
    """The paper's router: classifiers of the oracle's levels, by decreasing price."""

    name = "router"
    prepared = PreparedKind.LEVELS
    decides_once = True
    levels: tuple[Level, ...]
    models: tuple[Predictor, ...]
    schedule: PriceSchedule = field()

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep all features: the classifier that reads them depends on the price."""
        return features

    def prepare_plan(self, features: Float32Array) -> npt.NDArray[Any]:
        """Return the level that each classifier chooses."""
        levels = [model.predict(features).argmax(axis=1) for model in self.models]
        return np.stack(levels, axis=1).astype(np.uint8)

    def first_levels(
        self, price: float, prepared: npt.NDArray[Any], keys: KeyArray
    ) -> IntArray | None:
        """Return the level that the classifier of the price chose."""
        setting = self.schedule.select(price, mixing_uniform(keys))
        return np.asarray(prepared[np.arange(len(prepared)), setting], dtype=np.int64)

    def decide(self, state: State, price: float) -> IntArray:
        """Take the level with the highest score of the classifier at this price."""
        new = np.flatnonzero(state.level == NO_LEVEL)
        level = state.level.copy()
        level[new] = self.select_levels(price, state.key[new], state.features[new])
        return level

    def select_levels(self, price: float, key: KeyArray, features: Float32Array) -> IntArray:
        """Return the level that the classifier of a price gives to each question."""
        level = np.zeros(len(key), dtype=np.int64)
        setting = self.schedule.select(price, mixing_uniform(key))
        for number in np.unique(setting):
            rows = np.flatnonzero(setting == number)
            level[rows] = self.models[number].predict(features[rows]).argmax(axis=1)
        return level


@dataclass(frozen=True, eq=False)
class ValueRouterPolicy(Policy):
    """Predicts the utility of every level and takes the best one at the price."""

    name = "value-router"
    prepared = PreparedKind.UTILITIES
    first_needs_key = False
    decides_once = True
    levels: tuple[Level, ...]
    model: Predictor

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Predict the utility of every level."""
        return self.model.predict(features).astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """Take the level with the largest predicted utility − price × cost; ties go to cheaper."""
        new = np.flatnonzero(state.level == NO_LEVEL)
        level = state.level.copy()
        if len(new):
            utility = state.features[new].astype(np.float64)
            level[new] = choose(UtilityTable(utility, state.cost[new]), price)
        return level


def max_regret(table: UtilityTable, choice: IntArray, price: float) -> FloatArray:
    """Return M_λ(x) of Theorem 2: the loss of the worst level on each question at this price."""
    net = table.utility - price * table.cost
    best = net[np.arange(len(table)), choice]
    return np.asarray(best - net.min(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RouterTraining:
    """How a router is fitted; if ``cost_sensitive``, questions are weighted by ``max_regret``."""

    budgets: Sequence[float]
    classifier: str = "gbm"
    cost_sensitive: bool = False
    seed: int = 0


def fit_router(
    features: Float32Array,
    table: UtilityTable,
    levels: tuple[Level, ...],
    training: RouterTraining,
) -> RouterPolicy:
    """Fit one classifier of the oracle's levels for each budget."""
    models: list[Predictor] = []
    prices: list[float] = []
    label = np.empty(0, dtype=np.int64)
    for budget in sorted(training.budgets):
        oracle = solve(table, budget)
        if np.array_equal(oracle.choice, label):
            continue  # the same classifier again
        label = oracle.choice
        weight = None
        if training.cost_sensitive:
            weight = max_regret(table, label, oracle.price) + 1e-6
        price = oracle.price or (prices[-1] / 2 if prices else 1.0)
        # Two budgets may have the same price; prices of a schedule must decrease.
        prices.append(min(price, prices[-1] * (1 - MIN_PRICE_GAP)) if prices else price)
        models.append(
            fit_classifier(
                features,
                label,
                n_levels=len(levels),
                weight=weight,
                classifier=training.classifier,
                seed=training.seed,
            )
        )
    return RouterPolicy(levels, tuple(models), PriceSchedule(tuple(prices)))


def fit_value_router(
    features: Float32Array, table: UtilityTable, levels: tuple[Level, ...], *, seed: int = 0
) -> ValueRouterPolicy:
    """Fit a regressor of the utility of every level."""
    return ValueRouterPolicy(levels, fit_values(features, table.utility, seed=seed))


def router_to_spec(policy: RouterPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    content = {"prices": policy.schedule.prices}
    return PolicySpec(policy.levels, content, _model_files(policy.models))


def router_from_spec(spec: PolicySpec) -> RouterPolicy:
    """Build the policy from plain data."""
    schedule = PriceSchedule(read_numbers(spec.content["prices"]))
    return RouterPolicy(spec.levels, _load_models(spec, len(schedule.prices)), schedule)


def value_router_to_spec(policy: ValueRouterPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    return PolicySpec(policy.levels, {}, _model_files((policy.model,)))


def value_router_from_spec(spec: PolicySpec) -> ValueRouterPolicy:
    """Build the policy from plain data."""
    return ValueRouterPolicy(spec.levels, *_load_models(spec, 1))


def _model_files(models: tuple[Predictor, ...]) -> dict[str, bytes]:
    files = {}
    for i, model in enumerate(models):
        if not isinstance(model, OnnxModel):
            raise BundleError(
                "only the classifier 'gbm' can be saved in a bundle: train the router with it"
            )
        files[f"model-{i}.onnx"] = model.data
    return files


def _load_models(spec: PolicySpec, n_models: int) -> tuple[OnnxModel, ...]:
    models = tuple(OnnxModel(data) for data in spec.files.values())
    if len(models) != n_models:
        raise BundleError(f"the policy needs {n_models} models, got {len(models)}")
    if any(model.n_outputs != len(spec.levels) for model in models):
        raise BundleError(f"a model does not score the {len(spec.levels)} levels of its policy")
    return models
