"""Pools whose questions have unequal numbers of samples are trimmed."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.scoring.policy_score import score_policy
from test_support.pools import draw_pool

LEVELS, BUDGET = (1, 2, 4, 8), 2.0


@pytest.mark.parametrize("policy", ["mixture", "sequential"])
def test_figures_of_a_trimmed_pool_are_within_the_intervals_of_the_complete_one(
    policy: str,
) -> None:
    pool = draw_pool(400, 24, feature_signal=0.3, seed=3)
    keep = np.where(np.arange(400) % 20 == 0, 3, 24)
    keep[np.arange(400) % 4 == 1] = 12
    trimmed = pool.keep(pool.answers.position < keep[pool.answers.question]).equalise()
    assert (len(trimmed), trimmed.n_excluded, trimmed.n_samples) == (380, 20, 12)
    whole, other = (
        score_policy(Experiment(p, LEVELS, (BUDGET,), 10), policy) for p in (pool, trimmed)
    )
    expected, found = whole.curve.read(BUDGET), other.curve.read(BUDGET)
    accuracy, gain = whole.accuracy(expected), whole.gain(expected)
    assert accuracy.low <= other.accuracy(found).value <= accuracy.high
    assert gain.low <= other.gain(found).value <= gain.high


def test_what_is_kept_does_not_depend_on_answers() -> None:
    pool = draw_pool(40, 24, feature_signal=0.3, seed=3)
    keep = 4 + np.arange(40) % 21
    part = pool.keep(pool.answers.position < keep[pool.answers.question])
    equal = part.equalise()
    wanted = int(np.sort(keep)[4])
    assert equal.key.tolist() == pool.key[keep >= wanted].tolist()
    first = pool.take(keep >= wanted)
    first = first.keep(first.answers.position < wanted)
    assert equal.answers.correct.tolist() == first.answers.correct.tolist()
