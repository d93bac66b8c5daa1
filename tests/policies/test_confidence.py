"""Confidence: fitted log-odds, weights of samples, and weighted votes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.types import FloatArray
from adacompute.policies.confidence import (
    ASSUMED,
    LENGTH,
    MAX_LOG_ODDS,
    Confidence,
    equal_confidence,
    fit_confidence,
    fit_logistic,
    measure_separation,
    vote,
)
from adacompute.policies.sequential.vote_weights import MIN_SEPARATION


def informative(n_samples: int = 4000, *, sign: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    signal = rng.normal(-0.3, 0.1, n_samples)
    chance = 1 / (1 + np.exp(-(0.5 + sign * 20 * (signal + 0.3))))
    return signal, rng.random(n_samples) < chance


def fit(
    signal: np.ndarray, correct: np.ndarray, name: str = "mean_logprob", n_arms: int = 1
) -> Confidence:
    arm = np.zeros(len(signal), dtype=np.int64)
    return fit_confidence(arm, signal[:, None], correct, signals=(name,), n_arms=n_arms)


def weighted(*slope: float) -> Confidence:
    """Return a fitted confidence of arms whose weights have these slopes."""
    model = fit(*informative(), n_arms=len(slope))
    mean, scale = (np.tile(one[:1], (len(slope), 1)) for one in (model.mean, model.scale))
    return replace(model, mean=mean, scale=scale, weight_slope=np.array(slope)[:, None])


def test_log_odds_are_calibrated() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    log_odds = model.log_odds(np.zeros(len(signal), dtype=np.int64), signal[:, None])
    chance = 1 / (1 + np.exp(-log_odds))
    for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.0)):
        own = (chance >= low) & (chance < high)
        assert own.sum() > 100
        assert correct[own].mean() == pytest.approx(chance[own].mean(), abs=0.05)


def test_every_sample_counts_once_until_weights_are_fitted() -> None:
    signal, correct = informative()
    model = fit(signal, correct)
    assert (model.weight(np.zeros(len(signal), dtype=np.int64), signal[:, None]) == 1.0).all()


def test_logarithm_of_a_weight_is_linear_in_standard_deviations_of_its_arm() -> None:
    signal, _ = informative()
    model = weighted(0.5, 0.0)
    model = replace(model, weight_intercept=np.array([0.0, 1.0]))
    mean, spread = float(signal.mean()), float(signal.std())
    for z in (-2.0, 0.0, 1.0):
        own, other = (model.measure(arm, [mean + z * spread])[1] for arm in (0, 1))
        assert own == pytest.approx(math.exp(0.5 * z))
        assert other == pytest.approx(math.e)
    # Signals are clipped to four standard deviations.
    assert model.measure(0, [mean + 40 * spread])[1] == pytest.approx(math.exp(2.0))


def test_weights_stay_finite_whatever_the_signal_is() -> None:
    signal, _ = informative()
    mean, spread = float(signal.mean()), float(signal.std())
    heavy = [weighted(1000.0, 1000.0).measure(0, [mean + z * spread])[1] for z in (-4, 4)]
    assert 0 < heavy[0] < 1 < heavy[1]
    assert math.isfinite(sum([heavy[1]] * 1000))


def test_assumed_samples_go_from_bad_to_good_ones() -> None:
    signal, correct = informative()
    found = weighted(1.0).assume(0)
    log_odds, weight = (list(column) for column in zip(*found, strict=True))
    assert len(found) == len(ASSUMED)
    assert log_odds == sorted(set(log_odds))
    assert weight == sorted(weight)
    known = fit(signal, correct).log_odds(np.zeros(len(signal), dtype=np.int64), signal[:, None])
    assert log_odds[0] <= known.min()
    assert log_odds[-1] >= known.max()
    longer = fit(signal, ~correct, LENGTH).assume(0)
    assert longer[0][0] < longer[-1][0]  # shorter samples are better here


def test_only_an_average_sample_is_assumed_where_signals_say_nothing() -> None:
    signal, correct = informative(sign=-1.0)
    assert fit(signal, correct).assume(0) == [fit(signal, correct).measure(0, [math.nan])]
    assert equal_confidence(2).assume(1) == [(0.0, 1.0)]


def test_likelihood_that_speaks_against_a_sample_is_not_used() -> None:
    signal, correct = informative(sign=-1.0)
    assert not fit(signal, correct).slope.any()
    assert fit(signal, correct, LENGTH).slope[0, 0] < 0


def test_unknown_signal_counts_as_an_average_one() -> None:
    signal, correct = informative()
    model = replace(fit(signal, correct), weight_slope=np.ones((1, 1)))
    assert model.measure(0, [math.nan]) == pytest.approx(model.measure(0, [float(signal.mean())]))


def test_log_odds_of_certain_samples_are_finite() -> None:
    signal = np.repeat([-0.1, -0.9], 5000)
    model = fit(signal, signal > -0.5)
    low, high = (model.measure(0, [one])[0] for one in (-0.9, -0.1))
    assert -MAX_LOG_ODDS <= low < -4.0
    assert 4.0 < high <= MAX_LOG_ODDS


def test_vote_returns_the_first_sample_of_the_answer_with_the_largest_weight() -> None:
    assert vote([0, 0, 1], [0.1, 0.1, 3.0]) == 2
    assert vote([0, 1, 0], [1.0, 1.0, 1.0]) == 0
    assert vote([5, 1, 1], [1.0, 0.4, 0.7]) == 1
    assert vote([2, 1], [1.0, 1.0]) == 0  # the answer seen first
    assert vote([-1, 3], [9.0, 1.0]) == 1
    assert vote([-1, -1], [1.0, 1.0]) == -1
    assert vote([], []) == -1


def test_arm_without_samples_has_an_average_confidence() -> None:
    model = fit(*informative(), n_arms=2)
    assert model.measure(1, [-0.1]) == (0.0, 1.0)
    assert equal_confidence(2).measure(1, []) == (0.0, 1.0)


def test_logistic_regression_has_no_slope_of_its_penalised_likelihood() -> None:
    rng = np.random.default_rng(4)
    values, share = rng.normal(size=(60, 3)), rng.random(60)
    for ridge, weight in ((1.0, 1.0), (3.0, 0.1)):
        fitted = fit_logistic(values, share, ridge=ridge, weight=weight)

        def loss(coefficients: FloatArray, ridge: float = ridge, weight: float = weight) -> float:
            chance = 1 / (1 + np.exp(-(coefficients[0] + values @ coefficients[1:])))
            likelihood = share * np.log(chance) + (1 - share) * np.log(1 - chance)
            penalty = coefficients[0] ** 2 / 100 + (coefficients[1:] ** 2).sum()
            return float(ridge * penalty / 2 - weight * likelihood.sum())

        for step in 0.01 * np.vstack([np.eye(4), -np.eye(4)]):
            assert loss(fitted + step) > loss(fitted)


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
