"""First actions: what to sample first of each question at the price of a plan.

It asks the policy, or looks up in its tables what the policy would say, for a whole block at once.
It does not know files or totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adacompute.batch.planning.plan import BatchPlan
from adacompute.batch.planning.preparation import Preparation, Prepared
from adacompute.core.allocation.cutoff import apply_cutoff
from adacompute.core.types import IntArray, KeyArray, UtilityTable
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, start_state
from adacompute.policies.policy import PreparedKind as Kind
from adacompute.policies.policy import SampleMatrix


class FirstActions(NamedTuple):
    """Samples that each question gets first, of which arm, and the level that this reaches.

    ``arm`` is None where the policy has one arm.
    """

    n_samples: IntArray
    arm: IntArray | None
    level: IntArray


def find_first_actions(
    preparation: Preparation, plan: BatchPlan, prepared: Prepared, position: int
) -> FirstActions:
    """Return the first actions of questions with a usable text, from ``position`` on.

    Those of other questions mean nothing.
    """
    bundle = preparation.bundle
    missing = preparation.find_missing(prepared.values)
    if missing.any():
        values = prepared.values.copy()
        values[missing] = 0
        prepared = prepared._replace(values=values)
    level = _find_levels(preparation, plan, prepared, position)
    sizes = np.array([one.n_samples for one in bundle.policy.levels])
    return FirstActions(sizes[level], _arms(bundle, level), level)


def _find_levels(
    preparation: Preparation, plan: BatchPlan, prepared: Prepared, position: int
) -> IntArray:
    bundle, policy = preparation.bundle, preparation.bundle.policy
    values, keys = prepared
    if preparation.kind == Kind.UTILITIES:
        if plan.cutoff is None:
            raise TypeError("a plan for predicted utilities needs a cutoff")
        positions = np.arange(position, position + len(values), dtype=np.uint64)
        return apply_cutoff(utility_block(bundle, values, positions), plan.cutoff)
    if keys is None:
        return np.zeros(len(values), dtype=np.int64)  # one sample of any question
    found = policy.first_levels(plan.price, values, keys)
    return _ask_policy(preparation, plan.price, prepared, keys) if found is None else found


def _ask_policy(
    preparation: Preparation, price: float, prepared: Prepared, keys: KeyArray
) -> IntArray:
    """Return the first decisions of an episode."""
    bundle = preparation.bundle
    size, features = len(keys), prepared.values
    if not preparation.width:
        features = features[:, :0]
    episode = Episode.start(
        bundle.policy,
        price,
        start_state(
            key=keys,
            features=features.astype(np.float32),
            cost=np.broadcast_to(bundle.level_cost, (size, bundle.level_cost.shape[1])),
            samples=SampleMatrix(np.empty((size, 0), dtype=np.int64)),
            max_rounds=bundle.max_rounds or UNLIMITED_ROUNDS,
        ),
    )
    return episode.decide().state.level


def utility_block(bundle: Bundle, values: np.ndarray, positions: KeyArray) -> UtilityTable:
    """Return predicted utilities as a table whose keys are positions."""
    return UtilityTable(values.astype(np.float64), bundle.level_cost[0], positions)


def _arms(bundle: Bundle, level: IntArray) -> IntArray | None:
    """Return the arm of each level; None if there is one arm."""
    policy = bundle.policy
    if len(policy.arms) <= 1:
        return None
    arms = np.array([policy.arm_of_level(i) for i in range(len(policy.levels))])
    return np.asarray(arms[level])
