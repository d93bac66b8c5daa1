"""Intervals: coverage, copies of questions, and the error rates of the betting test."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.evaluation.intervals import Interval, Mean, student_quantile


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


def test_an_interval_covers_the_mean_as_often_as_its_confidence() -> None:
    rng = np.random.default_rng(1)
    for confidence in (0.8, 0.95):
        covered = []
        for _ in range(1000):
            mean = Mean.of(rng.exponential(size=60), 0.0, np.arange(60, dtype=np.uint64))
            interval = mean.interval(confidence)
            covered.append(interval.low <= 1.0 <= interval.high)
        assert np.mean(covered) == pytest.approx(confidence, abs=0.04)


def test_the_variance_of_samples_widens_predictions_only() -> None:
    values, group = np.linspace(0, 1, 40), np.arange(40, dtype=np.uint64)
    plain, noisy = (Mean.of(values, variance, group) for variance in (0.0, 0.5))
    assert noisy.margin(0.95) == plain.margin(0.95)
    assert noisy.margin(0.95, 10) > plain.margin(0.95, 10) > plain.margin(0.95)
    assert noisy.std**2 == pytest.approx(plain.std**2 + 0.5)
