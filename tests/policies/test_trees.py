"""Trees in numpy score exactly what xgboost does; files of anything else are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import BundleError
from adacompute.core.types import Float32Array
from adacompute.policies.learners import fit_classifier
from adacompute.policies.trees import (
    KINDS,
    MAX_DEPTH,
    UNSEEN_LEVEL_SCORE,
    Trees,
    from_arrays,
    from_booster,
)


def questions(size: int, *, seed: int = 0) -> Float32Array:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 6)).astype(np.float32)
    features[:, 5] = rng.integers(0, 3, size)  # many values exactly on a split
    return features


def boost(features: Float32Array, target: Any, **settings: Any) -> xgboost.Booster:
    data = xgboost.DMatrix(features, target)
    return xgboost.train({"max_depth": 5, "nthread": 1, **settings}, data, 100)


def margins(booster: xgboost.Booster, features: Float32Array) -> Any:
    return booster.predict(xgboost.DMatrix(features), output_margin=True)


def convert(booster: xgboost.Booster, n_levels: int, level: list[int]) -> Trees:
    return from_booster(bytes(booster.save_raw("json")), level=np.array(level), n_levels=n_levels)


@pytest.mark.parametrize("level", [[0, 1, 2], [0, 2, 4], [1, 3, 4]])
def test_scores_are_the_margins_of_xgboost(level: list[int]) -> None:
    features = questions(300)
    label = (features[:, 0] * 2 + features[:, 5]).astype(int) % 3
    booster = boost(features, label, objective="multi:softprob", num_class=3)
    made = convert(booster, 5, level)
    fresh = questions(3000, seed=1)
    for trees in (made, from_arrays(made.to_arrays(), 5)):
        scores = trees.predict(fresh)
        np.testing.assert_allclose(scores[:, level], margins(booster, fresh), rtol=0, atol=1e-6)
        absent = [one for one in range(5) if one not in level]
        assert (scores[:, absent] == UNSEEN_LEVEL_SCORE).all()


def test_a_feature_on_a_split_takes_the_same_branch() -> None:
    features = questions(300)
    booster = boost(features, features[:, 5], objective="reg:squarederror")
    on_split = questions(50)
    trees = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    splits = [tree["split_conditions"][0] for tree in trees if tree["split_indices"][0] == 5]
    on_split[:, 5] = np.resize(splits, 50)
    scores = convert(booster, 1, [0]).predict(on_split)[:, 0]
    np.testing.assert_allclose(scores, margins(booster, on_split), rtol=0, atol=1e-6)


def test_a_question_scores_the_same_alone_and_in_a_block() -> None:
    features = questions(2500)
    label = (features[:, 0] > 0).astype(np.int64) + (features[:, 1] > 0.5)
    model = fit_classifier(features, label, n_levels=3)
    alone = np.concatenate([model.predict(features[i : i + 1]) for i in range(0, 2500, 25)])
    assert (alone == model.predict(features)[::25]).all()


@cache
def good() -> dict[str, Any]:
    fitted = fit_classifier(questions(40), np.arange(40) % 2, n_levels=2)
    assert isinstance(fitted, Trees)
    return fitted.to_arrays()


def altered(name: str, index: Any, value: Any) -> dict[str, Any]:
    array = good()[name].copy()
    array[index] = value
    return {**good(), name: array}


def deep(n: int) -> dict[str, Any]:
    """Return one tree per level, the first of which goes on for n nodes on one side."""
    parent = np.arange(0, 2 * n, 2)
    children = np.full((2 * n + 2, 2), -1)
    children[parent] = np.stack([parent + 1, parent + 2], axis=1)
    size = len(children)
    found = {name: np.zeros(size, kind) for name, kind in KINDS.items()}
    return found | {
        "children": children.astype(np.int32),
        "root": np.array([0, size - 1], np.int32),
        "level": np.array([0, 1], np.int32),
        "base": np.zeros(2, np.float32),
    }


HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "its own child": lambda: altered("children", (0, 0), 0),
    "cycle": lambda: altered("children", (1, 1), 0),
    "shared child": lambda: altered("children", (0, 0), int(good()["children"][0, 1])),
    "far child": lambda: altered("children", (0, 0), 10**8),
    "next tree": lambda: altered("children", (0, 1), int(good()["root"][1]) + 1),
    "negative child": lambda: altered("children", (0, 0), -(10**8)),
    "half a leaf": lambda: altered("children", (0, 0), -1),
    "lost nodes": lambda: altered("children", 0, -1),
    "feature 16": lambda: altered("feature", 0, 16),
    "negative feature": lambda: altered("feature", 0, -1),
    "NaN threshold": lambda: altered("threshold", 0, np.nan),
    "infinite leaf": lambda: altered("leaf", -1, np.inf),
    "NaN base": lambda: altered("base", 0, np.nan),
    "far root": lambda: altered("root", -1, 10**8),
    "unordered roots": lambda: altered("root", 1, 0),
    "lost first tree": lambda: altered("root", 0, 1),
    "level 2 of 2": lambda: altered("level", 1, 2),
    "negative level": lambda: altered("level", 0, -1),
    "same level twice": lambda: altered("level", 1, 0),
    "an odd tree": lambda: {**good(), "root": good()["root"][:-1]},
    "no tree": lambda: {name: array[:0] for name, array in good().items()},
    "no level": lambda: {**good(), "level": good()["level"][:0], "base": good()["base"][:0]},
    "short": lambda: {**good(), "feature": good()["feature"][:-1]},
    "flat": lambda: {**good(), "children": good()["children"].ravel()},
    "scalar": lambda: {**good(), "leaf": np.float32(1.0)},
    "too many nodes": lambda: {**good(), "feature": np.zeros(1 << 21, np.int32)},
    "wide": lambda: {**good(), "leaf": good()["leaf"].astype(np.float64)},
    "text": lambda: {**good(), "level": good()["level"].astype("U9")},
    "missing": lambda: {name: array for name, array in good().items() if name != "leaf"},
    "further": lambda: {**good(), "code": np.zeros(1)},
    "deep": lambda: deep(MAX_DEPTH + 1),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_trees_whose_walks_may_not_end_in_bounds_are_refused(fault: str) -> None:
    from_arrays(good(), 2)
    with pytest.raises(BundleError) as refused:
        from_arrays(HOSTILE[fault](), 2)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


def test_trees_as_deep_as_the_limit_are_walked() -> None:
    scores = from_arrays(deep(MAX_DEPTH), 2).predict(np.zeros((1, 16), np.float32))
    assert scores.tolist() == [[0.0, 0.0]]


@given(st.data())
def test_any_change_of_a_number_is_refused_or_can_be_walked(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["children", "root", "feature", "level"]))
    at = data.draw(st.integers(0, good()[name].size - 1))
    array = good()[name].copy()
    array.flat[at] = data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, array.size))
    try:
        trees = from_arrays({**good(), name: array}, 2)
    except BundleError:
        return
    assert np.isfinite(trees.predict(np.zeros((3, 16), np.float32))).all()


def test_a_router_on_other_features_is_not_saved() -> None:
    features = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
    fitted = fit_classifier(features, (features[:, 18] > 0).astype(np.int64), n_levels=2)
    assert isinstance(fitted, Trees)
    with pytest.raises(BundleError, match="16 features"):
        fitted.to_arrays()
