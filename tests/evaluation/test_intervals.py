"""Intervals: coverage, copies of questions, and the error rates of the betting test."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.evaluation.intervals import (
    REFIT_FACTOR,
    Interval,
    Mean,
    betting_test,
    bootstrap_weights,
    percentile_interval,
    refit_interval,
    resample_questions,
    student_quantile,
)


def test_student_quantile_matches_the_tables() -> None:
    tables = {10: 2.2622, 30: 2.0452, 100: 1.9842, 100_000: 1.9600}
    for n_groups, value in tables.items():
        assert student_quantile(0.975, n_groups) == pytest.approx(value, rel=2e-3)


def test_copies_of_a_question_do_not_narrow_an_interval() -> None:
    values = np.random.default_rng(0).random(50)
    once = Mean.of(values, 0.0, np.arange(50, dtype=np.uint64))
    twice = Mean.of(np.tile(values, 2), 0.0, np.tile(np.arange(50, dtype=np.uint64), 2))
    assert twice.standard_error == pytest.approx(once.standard_error)
    assert twice.margin(0.95) == pytest.approx(once.margin(0.95))


def test_predictions_hold_as_often_as_their_confidence() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(2000):
        seen, following = rng.exponential(size=80), rng.exponential(size=30)
        mean = Mean.of(seen, 0.0, np.arange(80, dtype=np.uint64))
        held.append(following.mean() <= mean.value + mean.margin(0.95, 30))
    assert 0.92 <= np.mean(held) <= 0.98


def test_intervals_are_symmetric_and_clipped_to_a_range() -> None:
    values = np.array([0.9, 1.0] * 20)
    interval = Mean.of(values, 0.0, np.arange(40, dtype=np.uint64)).interval(0.95)
    assert interval.high - interval.value == pytest.approx(interval.value - interval.low)
    assert Interval(0.99, 0.95, 1.03).clip(0.0, 1.0) == Interval(0.99, 0.95, 1.0)


def test_refit_interval_is_wider_than_the_spread_of_the_resamplings() -> None:
    resampled = np.random.default_rng(0).normal(0.02, 0.01, 1000)
    interval = refit_interval(0.02, resampled, 100_000)
    width = 2 * 1.96 * REFIT_FACTOR * resampled.std(ddof=1)
    assert interval.high - interval.low == pytest.approx(width, rel=1e-3)


def test_percentile_interval_encloses_the_confidence() -> None:
    assert percentile_interval(np.arange(101.0), confidence=0.9) == pytest.approx((5.0, 95.0))


def test_bootstrap_weights_count_copies_together() -> None:
    group = np.array([3, 3, 7, 9], dtype=np.uint64)
    weights = bootstrap_weights(group, 50, seed=0)
    assert weights.shape == (51, 4)
    assert (weights[0] == 1).all()
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[1:, 1:].sum(axis=1) == 3).all()
    more = resample_questions(group, 50, seed=0, n_groups=12)
    assert (more[:, 1:].sum(axis=1) == 12).all()


def test_betting_test_is_seldom_passed_without_an_edge_and_often_with_one() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(300, dtype=np.uint64)
    fair = [
        betting_test(rng.choice([-0.5, 0.5], 300), group, lowest=-0.5, confidence=0.95)
        for _ in range(1000)
    ]
    edge = [
        betting_test(
            rng.choice([-0.5, 0.5], 300, p=[0.35, 0.65]), group, lowest=-0.5, confidence=0.95
        )
        for _ in range(200)
    ]
    assert np.mean(fair) <= 0.05
    assert np.mean(edge) > 0.9
