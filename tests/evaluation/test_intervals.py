"""Intervals: coverage of one setting and of all at once, and copies of questions."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.evaluation.intervals import Interval, Mean, simultaneous_band, student_quantile


def test_copies_of_a_question_do_not_narrow_an_interval() -> None:
    values = np.random.default_rng(0).random(50)
    once = Mean.of(values, np.arange(50, dtype=np.uint64))
    twice = Mean.of(np.tile(values, 2), np.tile(np.arange(50, dtype=np.uint64), 2))
    assert twice.standard_error == pytest.approx(once.standard_error)
    assert twice.margin(0.95) == pytest.approx(once.margin(0.95))


def test_intervals_are_symmetric_and_clipped_to_a_range() -> None:
    values = np.array([0.9, 1.0] * 20)
    interval = Mean.of(values, np.arange(40, dtype=np.uint64)).interval(0.95)
    assert interval.high - interval.value == pytest.approx(interval.value - interval.low)
    assert Interval(0.99, 0.95, 1.03).clip(0.0, 1.0) == Interval(0.99, 0.95, 1.0)


def test_an_interval_covers_the_mean_as_often_as_its_confidence() -> None:
    rng = np.random.default_rng(1)
    for confidence in (0.8, 0.95):
        covered = []
        for _ in range(1000):
            mean = Mean.of(rng.exponential(size=60), np.arange(60, dtype=np.uint64))
            interval = mean.interval(confidence)
            covered.append(interval.low <= 1.0 <= interval.high)
        assert np.mean(covered) == pytest.approx(confidence, abs=0.04)


def walk(rng: np.random.Generator, n_questions: int, n_settings: int) -> np.ndarray:
    """Return values of questions that change slowly from one setting to the next, of mean 0."""
    return np.cumsum(rng.normal(size=(n_questions, n_settings)), axis=1)


def test_the_band_covers_all_settings_together() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(200, dtype=np.uint64)
    held, held_below, alone = [], [], []
    for seed in range(400):
        values = walk(rng, 200, 12)
        band = simultaneous_band(values, group, confidence=0.9, seed=seed)
        ratio = values.mean(axis=0) / band.standard_error
        held.append((np.abs(ratio) <= band.two_sided).all())
        held_below.append((ratio <= band.quantile).all())
        alone.append((ratio <= student_quantile(0.9, 200)).all())
    assert np.mean(held) == pytest.approx(0.9, abs=0.045)
    assert np.mean(held_below) == pytest.approx(0.9, abs=0.045)
    assert np.mean(alone) < 0.85  # bounds of single settings do not hold together


def test_one_setting_has_the_interval_of_a_mean() -> None:
    values, group = np.random.default_rng(1).normal(size=(60, 1)), np.arange(60, dtype=np.uint64)
    band = simultaneous_band(values, group, confidence=0.95)
    assert band.standard_error[0] == pytest.approx(values.std(ddof=1) / np.sqrt(60))
    assert band.quantile == pytest.approx(student_quantile(0.95, 60), rel=0.1)
    assert band.two_sided == pytest.approx(student_quantile(0.975, 60), rel=0.1)


def test_copies_of_questions_do_not_narrow_the_band() -> None:
    values, group = walk(np.random.default_rng(2), 50, 4), np.arange(50, dtype=np.uint64)
    once = simultaneous_band(values, group, confidence=0.95)
    twice = simultaneous_band(np.tile(values, (2, 1)), np.tile(group, 2), confidence=0.95)
    assert twice.standard_error == pytest.approx(once.standard_error)


def test_the_variance_of_a_fit_widens_the_band() -> None:
    values, group = walk(np.random.default_rng(3), 50, 4), np.arange(50, dtype=np.uint64)
    plain, wide = (
        simultaneous_band(values, group, confidence=0.95, extra_variance=v) for v in (0.0, 0.3)
    )
    assert wide.standard_error**2 == pytest.approx(plain.standard_error**2 + 0.3)


def test_settings_without_variance_have_no_band() -> None:
    values, group = np.zeros((20, 3)), np.arange(20, dtype=np.uint64)
    band = simultaneous_band(values, group, confidence=0.95)
    assert (band.standard_error == 0).all()
    assert band.quantile == band.two_sided == 0.0
    values[:, 1] = np.linspace(-1, 1, 20)
    mixed = simultaneous_band(values, group, confidence=0.95)
    assert mixed.standard_error[[0, 2]].tolist() == [0.0, 0.0]
    assert mixed.quantile > 1
    assert simultaneous_band(values, group, confidence=0.5).quantile >= 0
