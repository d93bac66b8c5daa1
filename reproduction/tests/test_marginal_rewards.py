"""Predicted marginal rewards are allocated as a greedy batch allocates them."""

from __future__ import annotations

import numpy as np

from adacompute.core.allocation.cutoff import choose
from adacompute.core.types import Float32Array, FloatArray, UtilityTable, make_levels
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool
from reproduction.marginal_rewards import MarginalRewards, make_marginal_rewards
from test_support.populations import make_population


def test_marginal_rewards_at_a_threshold_are_a_greedy_batch() -> None:
    rng = np.random.default_rng(0)
    rewards, steps = rng.uniform(-0.1, 0.3, (30, 4)), np.array([1.0, 1.0, 2.0, 4.0])

    class Known:
        def predict(self, features: Float32Array) -> FloatArray:
            return rewards[features[:, 0].astype(np.int64)]

    features = np.arange(30, dtype=np.float32)[:, None]
    levels = make_levels((1, 2, 4, 8))
    prepared = MarginalRewards(levels, Known(), steps).prepare_features(features)
    utility = prepared.astype(np.float64)
    table = UtilityTable(utility, np.cumsum(steps))
    taken = np.zeros(30, dtype=np.int64)
    while True:  # a batch gives the next step to the question with the largest reward per sample
        following = np.minimum(taken + 1, 3)
        rate = np.where(taken < 3, rewards[np.arange(30), following] / steps[following], -np.inf)
        best = int(rate.argmax())
        if rate[best] < 0.02:
            break
        taken[best] += 1
    assert np.array_equal(choose(table, 0.02), taken)


def test_marginal_rewards_use_no_step_that_gains_nothing() -> None:
    population, _ = make_population(40, feature_signal=1.0, seed=1)
    answers, key = population.sample(8, seed=0), np.arange(40, dtype=np.uint64)
    pool = Pool(answers, key, key, population.features, np.ones(len(answers.answer)))
    fitted = make_marginal_rewards(Experiment(pool, (1, 2, 4), (2.0,)), np.arange(40))
    assert 2 not in [level.n_samples for level in fitted.policy.levels]  # two votes are as one
    assert fitted.policy.levels[0].n_samples == 1
