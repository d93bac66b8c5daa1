"""The batch stage: from files of questions to answers, in the unit of the bundle."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import load_bundle, save_bundle
from adacompute.stages.batch import run_batch
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import make_bundle, make_curve


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": f"q{i}", "text": f"What is {i} + {i % 7}?"} for i in range(200)]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.fixture
def options(tmp_path: Path) -> BatchOptions:
    return BatchOptions(
        bundle=Path("example"),
        out=tmp_path / "out",
        budget=2.0,
        model="fake",
        columns={"question": "text", "question_id": "id"},
        concurrency=16,
        max_output_tokens=30,
    )


def answer(questions: Path, options: BatchOptions) -> dict[str, Any]:
    return run_batch([str(questions)], options=options)


def test_the_shipped_policy_answers_a_file(questions: Path, options: BatchOptions) -> None:
    with serve_fake() as fake:
        url = fake.base_url
        result = answer(questions, replace(options, base_url=url))
        choices = fake.stats()["choices"]
    table = pq.read_table(options.out / "answers")
    assert table["question_id"].to_pylist() == [f"q{i}" for i in range(200)]
    assert choices == result["samples"] == result["cost"] <= 400
    assert result["error"] == 0
    changed = {
        "grader": replace(options, grader="exact"),
        "columns": replace(options, columns={"question": "id"}),
        "engine=local": replace(options, engine="ray"),
    }
    for named, other in changed.items():
        with pytest.raises(ConfigError, match=f"belongs to a batch (with|of) {named}"):
            answer(questions, replace(other, base_url=url))


def test_unsure_answers_go_to_a_file_of_their_own(
    questions: Path, options: BatchOptions, tmp_path: Path
) -> None:
    bundle = load_bundle_of(options)
    sure = replace(bundle.correctness, threshold=0.4, prices=(0.0, 1.0))
    save_bundle(replace(bundle, correctness=sure), tmp_path / "sure")
    with serve_fake() as fake:
        result = answer(
            questions, replace(options, base_url=fake.base_url, bundle=tmp_path / "sure")
        )
    answers = pq.read_table(options.out / "answers").to_pylist()
    unsure = [one for one in answers if one["sure"] is not True]
    assert {one["sure"] for one in answers if one["answer"] is not None} == {False, True}
    assert all((one["p_correct"] >= 0.4) is one["sure"] for one in answers if one["answer"])
    with Path(result["unsure_answers"]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(unsure) == result["unsure"]
    texts = [json.loads(line) for line in questions.read_text().splitlines()]
    for row, one in zip(rows, unsure, strict=True):
        assert row["question_id"] == one["question_id"]
        assert row["question"] == texts[one["position"]]["text"]
        assert row["answer"] == (one["answer"] or "")


def test_only_the_plan_is_written_without_a_server(questions: Path, options: BatchOptions) -> None:
    result = answer(questions, replace(options, plan_only=True))
    assert result["questions"] == 200
    assert result["total"] == 400
    parts = [pq.read_table(path) for path in sorted(Path(result["out"]).glob("*.parquet"))]
    assert pa.concat_tables(parts).num_rows == 200


def test_what_a_batch_needs_is_named(
    questions: Path, options: BatchOptions, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        answer(questions, options)
    served = replace(options, base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="total"):
        answer(questions, replace(served, total=9.0))
    with pytest.raises(InfeasibleBudget):
        answer(questions, replace(served, budget=1.0))
    bundle = replace(load_bundle_of(options), model=None, arms=())
    save_bundle(bundle, tmp_path / "nameless")
    with pytest.raises(ConfigError, match="--model"):
        answer(questions, replace(served, bundle=tmp_path / "nameless", model=None))


def load_bundle_of(options: BatchOptions):  # type: ignore[no-untyped-def]  # noqa: ANN201
    from adacompute.datasets.example import locate_bundle

    return load_bundle(locate_bundle(options.bundle))


def test_a_policy_without_a_gain_must_be_accepted(
    questions: Path, options: BatchOptions, tmp_path: Path
) -> None:
    bundle = load_bundle_of(options)
    calibration = bundle.notes["calibration"] | {"budget": 2.0, "verdict": "loss"}
    save_bundle(replace(bundle, notes={"calibration": calibration}), tmp_path / "lossy")
    served = replace(options, base_url="http://127.0.0.1:9/v1", bundle=tmp_path / "lossy")
    with pytest.raises(BundleError, match="accept-verdict"):
        answer(questions, served)


def test_a_total_in_money_is_kept_with_token_prices(
    questions: Path, options: BatchOptions, tmp_path: Path
) -> None:
    bundle, curve = make_bundle("money"), make_curve("money")
    frontier = tuple(
        replace(load_bundle_of(options).frontier[0], budget=cost, price=price, cost=cost)
        for cost, price in zip(curve.costs.tolist(), curve.prices.tolist(), strict=True)
    )
    save_bundle(replace(bundle, frontier=frontier, grader="numeric"), tmp_path / "money")
    prices = tmp_path / "prices.toml"
    prices.write_text('[models."fake"]\ninput = 1.0\noutput = 10.0\n')
    asked = replace(options, bundle=tmp_path / "money", budget=None, total=0.2)
    settings = FakeSettings(vary_tokens=True, completion_tokens=30)
    with serve_fake(settings) as fake:
        served = replace(asked, base_url=fake.base_url)
        with pytest.raises(ConfigError, match="--token-prices"):
            answer(questions, served)
        result = answer(questions, replace(served, token_prices=prices))
        prices.write_text('[models."fake"]\ninput = 2.0\noutput = 10.0\n')
        with pytest.raises(ConfigError, match="belongs to a batch with token_prices"):
            answer(questions, replace(served, token_prices=prices))
    assert 0.1 < result["cost"] <= 0.2
