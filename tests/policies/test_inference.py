from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from adacompute.core.errors import BundleError
from adacompute.core.types import Float32Array
from adacompute.policies.inference import UNSEEN_LEVEL_SCORE, OnnxModel, trees_to_onnx
from adacompute.policies.learners import fit_classifier


def questions(size: int, *, seed: int = 0, missing: float = 0.0) -> Float32Array:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 6)).astype(np.float32)
    features[:, 5] = rng.integers(0, 3, size)  # many values exactly on a split
    features[rng.random((size, 6)) < missing] = np.nan
    return features


def boost(features: Float32Array, target: Any, **settings: Any) -> xgboost.Booster:
    data = xgboost.DMatrix(features, target)
    return xgboost.train({"max_depth": 5, "nthread": 1, **settings}, data, 40)


def margins(booster: xgboost.Booster, features: Float32Array) -> Any:
    return booster.predict(xgboost.DMatrix(features), output_margin=True)


def convert(booster: xgboost.Booster, outputs: int, output_of: list[int]) -> OnnxModel:
    raw = bytes(booster.save_raw("json"))
    return OnnxModel(
        trees_to_onnx(raw, n_features=6, n_outputs=outputs, output_of=np.array(output_of))
    )


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("output_of", [[0, 1, 2], [0, 2, 4], [1, 3, 4]])
def test_a_converted_classifier_equals_xgboost(output_of: list[int], missing: float) -> None:
    features = questions(300, missing=missing)
    label = np.nan_to_num(features[:, 0] * 2 + features[:, 5]).astype(int) % 3
    booster = boost(features, label, objective="multi:softprob", num_class=3)
    model = convert(booster, 5, output_of)
    fresh = questions(500, seed=1, missing=missing)
    scores = model.predict(fresh)
    assert model.n_outputs == 5
    np.testing.assert_allclose(scores[:, output_of], margins(booster, fresh), atol=1e-5)
    absent = [level for level in range(5) if level not in output_of]
    assert (scores[:, absent] == np.float32(UNSEEN_LEVEL_SCORE)).all()


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("targets", [1, 4])
def test_a_converted_regressor_equals_xgboost(targets: int, missing: float) -> None:
    features = questions(300, missing=missing)
    plain = np.nan_to_num(features)
    target = np.stack([plain[:, k] * plain[:, 5] + k for k in range(targets)], axis=1)
    booster = boost(features, target, objective="reg:squarederror", subsample=0.8)
    fresh = questions(500, seed=1, missing=missing)
    scores = convert(booster, targets, list(range(targets))).predict(fresh)
    expected = margins(booster, fresh).reshape(len(fresh), targets)
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_feature_on_a_split_takes_the_same_branch() -> None:
    features = questions(300)
    booster = boost(features, features[:, 5], objective="reg:squarederror")
    model = convert(booster, 1, [0])
    on_split = questions(50)
    trees = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    splits = [tree["split_conditions"][0] for tree in trees if tree["split_indices"][0] == 5]
    on_split[:, 5] = np.resize(splits, 50)
    np.testing.assert_allclose(model.predict(on_split)[:, 0], margins(booster, on_split), atol=1e-5)


def test_a_question_scores_the_same_alone_and_in_a_block() -> None:
    features = questions(200)
    model = fit_classifier(features, (features[:, 0] > 0).astype(np.int64), n_levels=3)
    alone = np.concatenate([model.predict(features[i : i + 1]) for i in range(len(features))])
    assert (alone == model.predict(features)).all()


@cache
def good_bytes() -> bytes:
    fitted = fit_classifier(questions(40), np.arange(40) % 2, n_levels=2)
    assert isinstance(fitted, OnnxModel)
    return fitted.data


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return garbage, a truncated model, or a model with one byte changed."""
    good = good_bytes()
    at = draw(st.integers(0, len(good) - 1))
    flipped = bytes([good[at] ^ draw(st.integers(1, 255))])
    return draw(
        st.sampled_from([draw(st.binary()), good[:at], good[:at] + flipped + good[at + 1 :]])
    )


@given(damaged())
def test_damaged_bytes_raise_bundle_error_or_load(data: bytes) -> None:
    said = ""
    try:
        OnnxModel(data)
    except BundleError as error:
        said = str(error)
    assert "\n" not in said
    assert said or data


def test_garbage_is_rejected_without_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    broken = good_bytes().replace(b"BRANCH_LT", b"BRANCH_\xe6\x96")
    for data in (b"", b"garbage", good_bytes()[:-9], broken):
        with pytest.raises(BundleError):
            OnnxModel(data)
    assert capfd.readouterr() == ("", "")


def test_a_model_with_other_inputs_is_rejected() -> None:
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Identity", ["text"], ["scores"])],
        "other",
        [helper.make_tensor_value_info("text", kind, [None, 2])],
        [helper.make_tensor_value_info("scores", kind, [None, 2])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(BundleError):
        OnnxModel(made.SerializeToString())
