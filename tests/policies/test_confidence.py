"""Confidence: fitted log-odds, bins and weights of votes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adacompute.policies.confidence import (
    LENGTH,
    MIN_SEPARATION,
    POWERS,
    Confidence,
    candidate_signals,
    equal_confidence,
    fit_confidence,
    measure_separation,
    select_power,
)


def informative(n_samples: int = 4000, *, sign: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    signal = rng.normal(-0.3, 0.1, n_samples)
    chance = 1 / (1 + np.exp(-(0.5 + sign * 20 * (signal + 0.3))))
    return signal, rng.random(n_samples) < chance


def fit(signal: np.ndarray, correct: np.ndarray, name: str = "mean_logprob") -> Confidence:
    arm = np.zeros(len(signal), dtype=np.int64)
    return fit_confidence(
        arm, signal[:, None], correct, signals=(name,), n_arms=1, n_bins=[2], power=2.0
    )


def test_log_odds_are_calibrated() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    log_odds = model.log_odds(np.zeros(len(signal), dtype=np.int64), signal[:, None])
    chance = 1 / (1 + np.exp(-log_odds))
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        own = (chance >= low) & (chance < high)
        assert own.sum() > 100
        assert correct[own].mean() == pytest.approx(chance[own].mean(), abs=0.05)
    assert model.weight(log_odds) == pytest.approx(np.exp(2.0 * log_odds))


def test_bins_have_equal_sizes_and_rise_with_the_log_odds() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    arm = np.zeros(len(signal), dtype=np.int64)
    log_odds = model.log_odds(arm, signal[:, None])
    own = model.find_bin(arm, log_odds)
    assert np.bincount(own).tolist() == pytest.approx([2000, 2000], abs=1)
    assert log_odds[own == 0].max() <= log_odds[own == 1].min()
    assert model.n_bins == (2,)


def test_likelihood_that_speaks_against_a_sample_is_not_used() -> None:
    signal, correct = informative(sign=-1.0)
    assert not fit(signal, correct).slope.any()
    assert fit(signal, correct).n_bins == (1,)
    assert fit(signal, correct, LENGTH).slope[0, 0] < 0


def test_unknown_signal_counts_as_an_average_one() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    known, _ = model.measure(0, [float(signal.mean())])
    unknown, _ = model.measure(0, [math.nan])
    assert unknown == pytest.approx(known)


def test_votes_are_weighted_by_their_odds() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    assert model.vote([0, 0, 1], [-2.0, -2.0, 2.0]) == 2
    assert model.vote([0, 0, 1], [0.0, 0.0, 0.0]) == 0
    assert model.vote([-1, -1], [0.0, 0.0]) == -1
    equal = equal_confidence(2)
    assert equal.vote([1, 0, 0], [5.0, 0.0, 0.0]) == 1
    assert equal.n_bins == (1, 1)
    assert equal.measure(1, []) == (0.0, 0)


def test_arm_without_samples_has_an_average_confidence() -> None:
    signal, correct = informative()
    arm = np.zeros(len(signal), dtype=np.int64)
    model = fit_confidence(
        arm, signal[:, None], correct, signals=("mean_logprob",), n_arms=2, n_bins=[2, 2]
    )
    assert model.measure(1, [-0.1]) == (0.0, 0)
    assert model.of_arm(0).slope.shape == (1, 1)


def test_signal_must_tell_samples_of_one_question_apart() -> None:
    rng = np.random.default_rng(2)
    question = np.repeat(np.arange(100), 8)
    ease = rng.random(100)[question]
    correct = rng.random(800) < ease
    noise = rng.normal(0.0, 1.0, 800)
    for signal in (noise, ease + 0.1 * noise, ease):
        assert measure_separation(signal, correct, question, question) < MIN_SEPARATION
    useful = correct + noise
    found = measure_separation(useful, correct, question, question)
    assert found > MIN_SEPARATION
    assert measure_separation(-useful, correct, question, question) == pytest.approx(-found)
    unknown = np.where(question < 20, np.nan, useful)
    assert MIN_SEPARATION < measure_separation(unknown, correct, question, question) < found
    assert measure_separation(unknown * np.nan, correct, question, question) == 0


def test_only_recorded_signals_are_candidates() -> None:
    values = np.array([[-0.1, np.nan, -0.2, 2.0], [-0.3, np.nan, -0.1, 3.0]])
    names = ("mean_logprob", "min_logprob_window", "answer_logprob", LENGTH)
    found = candidate_signals(names, values)
    both = ("mean_logprob", "answer_logprob")
    assert found == [("mean_logprob",), ("answer_logprob",), both, (*both, LENGTH)]
    assert candidate_signals(names, np.full((2, 4), np.nan)) == [()]


def test_power_must_be_clearly_better_than_counting() -> None:
    rng = np.random.default_rng(1)
    noise = {power: rng.normal(0.5, 0.1, 200) for power in POWERS}
    assert select_power(lambda power: noise[power], 3.0)[0] == 0.0
    better = {power: noise[0.0] + 0.05 * (power == 4.0) for power in POWERS}
    power, mean = select_power(lambda one: better[one], 3.0)
    assert power == 4.0
    assert mean == pytest.approx(float(better[4.0].mean()))
