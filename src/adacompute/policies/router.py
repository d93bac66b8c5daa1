"""Router: the paper's policy, which decides once, from the question only.

Classifiers predict the oracle's level, one for each price that it was trained at. The samples are
ignored: once a level is reached, it stops. The policy does not know how its models were fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray, Level, UtilityTable
from adacompute.policies.bundles.bundle_files import TABLES, unpack_tables
from adacompute.policies.learners import fit_classifier
from adacompute.policies.policy import NO_LEVEL, Policy, PreparedKind, State, mixing_uniform
from adacompute.policies.price_schedule import MIN_PRICE_GAP, PriceSchedule
from adacompute.policies.spec import PolicySpec, read_numbers
from adacompute.policies.trees import Predictor, Trees, from_arrays
from adacompute.storage.array_files import pack_arrays

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


def max_regret(table: UtilityTable, choice: IntArray, price: float) -> FloatArray:
    """Return M_λ(x) of Theorem 2: the loss of the worst level on each question at this price."""
    net = table.utility - price * table.cost
    best = net[np.arange(len(table)), choice]
    return np.asarray(best - net.min(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class RouterTraining:
    """How a router is fitted."""

    budgets: Sequence[float]
    classifier: str = "gbm"
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
        price = oracle.price or (prices[-1] / 2 if prices else 1.0)
        # Two budgets may have the same price; prices of a schedule must decrease.
        prices.append(min(price, prices[-1] * (1 - MIN_PRICE_GAP)) if prices else price)
        models.append(
            fit_classifier(
                features,
                label,
                n_levels=len(levels),
                classifier=training.classifier,
                seed=training.seed,
            )
        )
    return RouterPolicy(levels, tuple(models), PriceSchedule(tuple(prices)))


def router_to_spec(policy: RouterPolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    tables: dict[str, Any] = {}
    for i, model in enumerate(policy.models):
        if not isinstance(model, Trees):
            raise BundleError(
                "only the classifier 'gbm' can be saved in a bundle: train the router with it"
            )
        tables |= {f"{i}_{name}": array for name, array in model.to_arrays().items()}
    content = {"prices": policy.schedule.prices}
    return PolicySpec(policy.levels, content, {TABLES: pack_arrays(tables)})


def router_from_spec(spec: PolicySpec) -> RouterPolicy:
    """Build the policy from plain data; raise BundleError unless every walk of its trees ends."""
    schedule = PriceSchedule(read_numbers(spec.content["prices"]))
    arrays: dict[str, dict[str, Any]] = {str(i): {} for i in range(len(schedule.prices))}
    for key, array in unpack_tables(spec.files[TABLES]).items():
        number, _, name = key.partition("_")
        if number not in arrays:
            raise BundleError(f"the policy has {len(arrays)} prices, and trees for another")
        arrays[number][name] = array
    models = tuple(from_arrays(one, len(spec.levels)) for one in arrays.values())
    return RouterPolicy(spec.levels, models, schedule)
