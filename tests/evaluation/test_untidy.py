"""Pools whose questions have unequal numbers of samples give the figures of the complete pool."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.policy_score import score_policy
from adacompute.evaluation.pool import Pool
from test_support.pools import draw_pool

LEVELS, BUDGET = (1, 2, 4, 8), 2.0


def complete_pool(size: int = 400) -> Pool:
    return draw_pool(size, 24, feature_signal=0.3, seed=3)


@pytest.mark.parametrize("policy", ["mixture", "sequential"])
@pytest.mark.parametrize("thinned", ["at random", "adaptively"])
def test_figures_of_a_thinned_pool_are_within_the_intervals_of_the_complete_one(
    thinned: str, policy: str
) -> None:
    pool = complete_pool()
    keep = np.random.default_rng(0).integers(4, 25, len(pool))
    if thinned == "adaptively":
        first = pool.answers.answer.reshape(len(pool), 24)[:, :4]
        keep = np.where((first == first[:, :1]).all(axis=1), 4, 24)
    part = pool.keep(pool.answers.position < keep[pool.answers.question])
    filled = part.equalise()
    assert filled.n_imputed > 0
    assert len(filled) == len(pool)
    whole, other = (
        score_policy(Experiment(p, LEVELS, (BUDGET,), 10), policy) for p in (pool, filled)
    )
    expected, found = whole.curve.read(BUDGET), other.curve.read(BUDGET)
    accuracy, gain = whole.accuracy(expected), whole.gain(expected)
    assert accuracy.low <= other.accuracy(found).value <= accuracy.high
    assert gain.low <= other.gain(found).value <= gain.high


def test_equal_pools_are_not_changed_and_questions_without_samples_are_left_out() -> None:
    pool = complete_pool(40)
    assert pool.equalise().answers is pool.answers
    empty = pool.keep(pool.answers.question != 7)
    assert len(empty.equalise()) == 39
    assert empty.equalise().n_excluded == 1


def test_imputed_samples_cost_what_the_samples_of_their_question_cost() -> None:
    pool = complete_pool(40)
    cost = np.arange(1.0, 41.0)[pool.answers.question]
    pool = Pool(pool.answers, pool.key, pool.group, pool.features, cost, logprob=-cost)
    part = pool.keep(pool.answers.position < (4 + np.arange(40) % 21)[pool.answers.question])
    filled = part.equalise()
    assert (filled.sample_cost == np.arange(1.0, 41.0)[filled.answers.question]).all()
    assert filled.logprob is not None
    assert (filled.logprob == -filled.sample_cost).all()
