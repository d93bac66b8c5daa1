"""First actions: what to sample first of each question at the price of a plan.

It asks the policy, or looks up in its tables what the policy would say, for a whole block at once.
It does not know files or totals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adacompute.batch.planning.preparation import Preparation, Prepared
from adacompute.core.types import IntArray, KeyArray
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, start_state
from adacompute.policies.policy import SampleMatrix


class FirstActions(NamedTuple):
    """Samples that each question gets first, of which arm, and the level that this reaches.

    ``arm`` is None where the policy has one arm.
    """

    n_samples: IntArray
    arm: IntArray | None
    level: IntArray


def find_first_actions(preparation: Preparation, price: float, prepared: Prepared) -> FirstActions:
    """Return the first actions of questions with a usable text; those of others mean nothing."""
    bundle = preparation.bundle
    missing = preparation.find_missing(prepared.values)
    if missing.any():
        values = prepared.values.copy()
        values[missing] = 0
        prepared = prepared._replace(values=values)
    level = _find_levels(preparation, price, prepared)
    sizes = np.array([one.n_samples for one in bundle.policy.levels])
    return FirstActions(sizes[level], _arms(bundle, level), level)


def _find_levels(preparation: Preparation, price: float, prepared: Prepared) -> IntArray:
    values, keys = prepared
    if keys is None:
        return np.zeros(len(values), dtype=np.int64)  # one sample of any question
    found = preparation.bundle.policy.first_levels(price, values, keys)
    return _ask_policy(preparation, price, prepared, keys) if found is None else found


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


def _arms(bundle: Bundle, level: IntArray) -> IntArray | None:
    """Return the arm of each level; None if there is one arm."""
    policy = bundle.policy
    if len(policy.arms) <= 1:
        return None
    arms = np.array([policy.arm_of_level(i) for i in range(len(policy.levels))])
    return np.asarray(arms[level])
