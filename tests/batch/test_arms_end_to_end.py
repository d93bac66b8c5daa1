"""Batches over two arms, with confidence: from a file to answers within the total."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import BundleError
from adacompute.models.messages import Settings
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.policies.bundles.bundle import Bundle, save_bundle
from adacompute.stages.batch import run_batch
from adacompute.testing.fake_openai import serve_fake

ARMS = tuple(
    ArmSettings(name, name, settings=Settings(max_tokens=20)) for name in ("small", "large")
)


@pytest.fixture
def questions(make_texts: Callable[[int], list[str]], write_questions: Callable[..., str]) -> str:
    return write_questions(make_texts(120))


@pytest.fixture
def options(tmp_path: Path, corrected: Bundle) -> BatchOptions:
    save_bundle(replace(corrected, arms=ARMS, grader="numeric"), tmp_path / "bundle")
    return BatchOptions(
        bundle=tmp_path / "bundle",
        out=tmp_path / "out",
        budget=2.5,
        concurrency=8,
    )


def test_a_policy_over_arms_with_confidence_answers_a_file(
    questions: str, options: BatchOptions
) -> None:
    with serve_fake() as fake:
        result = run_batch([questions], options=replace(options, base_url=fake.base_url))
        n_choices = fake.stats()["choices"]
    answers = pq.read_table(options.out / "answers")
    assert answers.num_rows == 120
    assert result["error"] == 0
    assert n_choices == result["samples"] >= 120
    assert result["cost"] <= 2.5 * 120


def test_a_uniform_number_of_samples_of_an_arm_is_drawn_in_a_batch(
    questions: str, options: BatchOptions, corrected: Bundle, tmp_path: Path
) -> None:
    policy: Any = corrected.policy
    uniform = np.full((len(policy.schedule.prices), 2), (0, 2))
    bundle = replace(
        corrected, policy=replace(policy, uniform=uniform), arms=ARMS, grader="numeric"
    )
    save_bundle(bundle, tmp_path / "uniform")
    with serve_fake() as fake:
        result = run_batch(
            [questions],
            options=replace(options, bundle=tmp_path / "uniform", base_url=fake.base_url),
        )
        n_choices = fake.stats()["choices"]
    answers = pq.read_table(options.out / "answers")
    assert set(answers["n_samples"].to_pylist()) == {2}
    assert n_choices == result["samples"] == 240


def test_arms_that_were_imported_cannot_be_sampled(
    questions: str, options: BatchOptions, corrected: Bundle, tmp_path: Path
) -> None:
    save_bundle(replace(corrected, grader="numeric"), tmp_path / "imported")
    asked = replace(options, bundle=tmp_path / "imported", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(BundleError, match="small, large"):
        run_batch([questions], options=asked)
