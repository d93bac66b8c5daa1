"""Marginal rewards: what each further sample is worth, predicted from the question alone.

Damani et al. (2024) predict the marginal reward of every further sample from the question, and give
the samples of a batch, one by one, to the question with the largest predicted reward until the
budget of the batch is spent. That is a threshold on rewards which all questions share, so it is
scored here as a policy whose price is the threshold at which held-out questions spend the budget.

Two things differ from the paper. It predicts from hidden states of the model, which recorded runs
do not have: here from text statistics, as the routers do. It rewards the best of k samples, whose
marginal rewards fall: votes gain by steps, so only numbers of samples on the concave envelope of
the mean training utility are used, and a question stops at its first step that is not worth it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.allocation.cutoff import choose
from adacompute.core.types import UtilityTable
from adacompute.evaluation.experiment import FittedPolicy, price_grid
from adacompute.policies.learners import boost
from adacompute.policies.policy import NO_LEVEL, Policy
from adacompute.policies.price_schedule import fit_price_schedule
from adacompute.policies.trees import from_booster

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray, Level
    from adacompute.evaluation.experiment import Experiment
    from adacompute.policies.policy import State
    from adacompute.policies.trees import Predictor

BOOSTING = {
    "objective": "reg:squarederror",
    "max_depth": 3,
    "eta": 0.05,
    "min_child_weight": 10,
    "subsample": 0.8,
}


@dataclass(frozen=True, eq=False)
class MarginalRewards(Policy):
    """Predicts the marginal reward of every step, and adds them up as a greedy batch takes them.

    ``step_cost`` (K,) is the mean cost of a step; that of the first level is free to take.
    """

    decides_once = True
    levels: tuple[Level, ...]
    model: Predictor
    step_cost: FloatArray

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Return concave utilities (N, K) of which the best at a price is the greedy choice."""
        rate = self.model.predict(features) / self.step_cost
        rate[:, 1:] = np.minimum.accumulate(rate[:, 1:], axis=1)
        return np.cumsum(rate * self.step_cost, axis=1).astype(np.float32)

    def decide(self, state: State, price: float) -> IntArray:
        """Take the level with the largest utility − price × cost; ties go to the cheaper."""
        new = np.flatnonzero(state.level == NO_LEVEL)
        level = state.level.copy()
        if len(new):
            utility = state.features[new].astype(np.float64)
            level[new] = choose(UtilityTable(utility, state.cost[new]), price)
        return level


def make_marginal_rewards(experiment: Experiment, train: IntArray) -> FittedPolicy:
    """Predict marginal rewards from the text, and allocate greedily at a threshold."""
    table = experiment.table.take(train)
    cost, utility = table.costs.mean(axis=0), table.utility.mean(axis=0)
    kept, _ = fit_price_schedule(cost, utility)
    rewards = np.diff(table.utility[:, kept], axis=1, prepend=0.0)
    features = experiment.pool.features
    booster = boost(features[train], rewards, BOOSTING, seed=experiment.seed)
    model = from_booster(booster.save_raw("json"), level=np.arange(len(kept)), n_levels=len(kept))
    levels = tuple(experiment.policy_levels[k] for k in kept.tolist())
    policy = MarginalRewards(levels, model, np.diff(cost[kept], prepend=0.0))
    return FittedPolicy(policy, price_grid(1.0 / experiment.sample_cost(train)), features)
