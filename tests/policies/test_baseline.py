"""Baseline: how far questions are from those of the training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.types import Float32Array
from adacompute.policies.bundles.baseline import MAX_DRIFT, Baseline, read_baseline

CONTENT = {"feature_mean": [0.0], "feature_std": [1.0], "agreement": 0.5, "unparsed": 0.0}


def baseline_of(features: Float32Array) -> Baseline:
    mean, std = features.mean(axis=0), features.std(axis=0)
    own = Baseline(tuple(mean.tolist()), tuple(std.tolist()), 0.5, 0.0)
    return replace(own, distance=float(own.measure_drift(features).mean()))


def test_questions_of_the_same_kind_have_a_drift_of_one_even_if_most_words_are_rare() -> None:
    rng = np.random.default_rng(0)
    words = (rng.random((2000, 300)) < 0.004).astype(np.float32)
    own = baseline_of(words[:1000])
    assert own.distance < 0.5  # a word that one question in 250 has counts for too little
    assert own.measure_drift(words[:1000]).mean() == pytest.approx(1.0)
    assert own.measure_drift(words[1000:]).mean() == pytest.approx(1.0, abs=0.1)


def test_drift_is_limited_and_does_not_depend_on_constant_features() -> None:
    features = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    features[:, 2] = 7.0
    own = baseline_of(features)
    moved = features + np.array([100.0, 0.0, 100.0], np.float32)
    assert own.measure_drift(moved).max() <= MAX_DRIFT
    assert own.measure_drift(moved).mean() > 10
    constant = baseline_of(np.ones((3, 2), np.float32))
    assert constant.measure_drift(np.zeros((2, 2), np.float32)).tolist() == [1.0, 1.0]


def test_baselines_are_read_and_damaged_ones_refused() -> None:
    own = read_baseline({**CONTENT, "distance": 0.5})
    assert own == Baseline((0.0,), (1.0,), 0.5, 0.0, distance=0.5)
    assert read_baseline(None) is None
    with pytest.raises(ValueError, match="distance must be above 0"):
        read_baseline({**CONTENT, "distance": 0.0})
    with pytest.raises(ValueError, match="same length"):
        read_baseline({**CONTENT, "feature_std": [], "distance": 1.0})
