"""Policies are fitted to a run whose truth is known, and saved as bundles."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import BundleError, ConfigError, DataError
from adacompute.evaluation.factories import TRAINABLE
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages.import_samples import import_samples
from adacompute.stages.train import train_run

Rows = list[dict[str, Any]]


QUICK: dict[str, Any] = {"budgets": (1.5, 2.0), "levels": (1, 2, 4), "policies": ("mixture",)}


def artifacts(run: Path) -> dict[str, bytes]:
    found = sorted(path for path in run.iterdir() if not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.parametrize("policy", TRAINABLE)
def test_every_policy_is_trained_and_loads(run: Path, tmp_path: Path, policy: str) -> None:
    out = tmp_path / "deep" / "bundle"
    digest = train_run(run, policy=policy, out=out, levels=(1, 2, 4, 16), budgets=(1.5, 2.0))
    bundle = load_bundle(out, digest=digest)
    assert (bundle.notes["questions"], bundle.unit) == (24, "samples")
    assert bundle.notes["policy"] == policy
    assert bundle.policy.levels[-1].n_samples == 4


@pytest.mark.parametrize("policy", ["mixture", "router"])
def test_training_is_deterministic(run: Path, tmp_path: Path, policy: str) -> None:
    places = tmp_path / "one", tmp_path / "two", tmp_path / "one"
    written = []
    for place in places:
        train_run(run, policy=policy, out=place, levels=(1, 4), budgets=(2.0,))
        written.append(artifacts(place))
    assert written[0] == written[1] == written[2]
    assert "bundle.json" in written[0]


def test_bundle_records_the_model_and_the_grader(source: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "named", tmp_path / "bundle"
    import_samples(source, run, model="m", grader="choice")
    train_run(run, policy="mixture", out=out)
    assert (load_bundle(out).model, load_bundle(out).grader) == ("m", "choice")
    train_run(run, policy="mixture", out=out, model="other", grader="exact")
    assert (load_bundle(out).model, load_bundle(out).grader) == ("other", "exact")


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"policy": "oracle"}, ConfigError, "'oracle'"),
        ({"levels": (9, 16)}, DataError, "8 samples .* 9:"),
        ({"levels": (1, 9)}, DataError, "8 samples .* 1, 9,"),
        ({"levels": ()}, ConfigError, "levels"),
        ({"budgets": (math.nan,)}, ConfigError, "nan"),
        ({"seed": -1}, ConfigError, "seed"),
    ],
)
def test_invalid_options_are_refused(
    run: Path, tmp_path: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    out = tmp_path / "bundle"
    with pytest.raises(kind, match=sentence):
        train_run(run, **{"policy": "mixture", "out": out, "levels": (1, 4), **options})
    assert not out.exists()


@pytest.mark.parametrize("policy", ["mixture", "adaptive-consistency", "sequential"])
def test_one_sample_per_question_is_refused(
    rows: Rows, make_run: Callable[[Rows], Path], tmp_path: Path, policy: str
) -> None:
    run, out = make_run([row for row in rows if row["sample"] == 0]), tmp_path / "bundle"
    with pytest.raises(DataError, match=r"1 samples .* 1, 2"):
        train_run(run, policy=policy, out=out)
    assert not out.exists()


def test_other_directories_are_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    with pytest.raises(BundleError, match="use another path"):
        train_run(run, policy="mixture", out=tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").exists()
