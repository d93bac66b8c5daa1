"""The batch stage: from files of questions to answers, in the unit of the bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import BundleError, ConfigError, InfeasibleBudget
from adacompute.policies.bundle import load_bundle, save_bundle
from adacompute.stages.batch import BatchOptions, plan_only_batch, run_batch
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from test_support.batches import make_bundle, make_curve


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": f"q{i}", "text": f"What is {i} + {i % 7}?"} for i in range(200)]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.fixture
def options(tmp_path: Path, questions: Path) -> BatchOptions:
    return BatchOptions(
        questions=[str(questions)],
        bundle=Path("example"),
        out=tmp_path / "out",
        budget=2.0,
        model="fake",
        text_column="text",
        id_column="id",
        concurrency=16,
        max_output_tokens=30,
    )


def test_the_shipped_policy_answers_a_file(options: BatchOptions) -> None:
    with serve_fake() as first, serve_fake() as second:
        urls = (first.base_url, second.base_url)
        result = run_batch(replace(options, base_urls=urls))
        choices = [fake.stats()["choices"] for fake in (first, second)]
    table = pq.read_table(options.out / "answers")
    assert table["question_id"].to_pylist() == [f"q{i}" for i in range(200)]
    assert sum(choices) == result["samples"] == result["cost"] <= 400
    assert min(choices) > 50
    assert result["error"] == 0
    changed = {
        "grader": replace(options, grader="exact"),
        "columns": replace(options, text_column="id"),
        "--engine local": replace(options, engine="ray"),
    }
    for named, other in changed.items():
        with pytest.raises(ConfigError, match=f"belongs to a batch (with|of) {named}"):
            run_batch(replace(other, base_urls=urls))


def test_only_the_plan_is_written_without_a_server(options: BatchOptions) -> None:
    result = plan_only_batch(options)
    assert result["questions"] == 200
    assert result["total"] == 400
    parts = [pq.read_table(path) for path in sorted(Path(result["out"]).glob("*.parquet"))]
    assert pa.concat_tables(parts).num_rows == 200


def test_what_a_batch_needs_is_named(options: BatchOptions, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        run_batch(options)
    served = replace(options, base_urls=["http://127.0.0.1:9/v1"])
    with pytest.raises(ConfigError, match="total"):
        run_batch(replace(served, total=9.0))
    with pytest.raises(InfeasibleBudget):
        run_batch(replace(served, budget=1.0))
    bundle = replace(load_bundle_of(options), model=None, arms=())
    save_bundle(bundle, tmp_path / "nameless")
    with pytest.raises(ConfigError, match="--model"):
        run_batch(replace(served, bundle=tmp_path / "nameless", model=None))


def load_bundle_of(options: BatchOptions):  # type: ignore[no-untyped-def]  # noqa: ANN201
    from adacompute.datasets.example import locate_bundle

    return load_bundle(locate_bundle(options.bundle))


def test_a_policy_without_a_gain_must_be_accepted(options: BatchOptions, tmp_path: Path) -> None:
    bundle = load_bundle_of(options)
    calibration = bundle.notes["calibration"] | {"budget": 2.0, "verdict": "loss"}
    save_bundle(replace(bundle, notes={"calibration": calibration}), tmp_path / "lossy")
    served = replace(options, base_urls=["http://127.0.0.1:9/v1"], bundle=tmp_path / "lossy")
    with pytest.raises(BundleError, match="accept-verdict"):
        run_batch(served)


def test_a_total_in_money_is_kept_with_token_prices(options: BatchOptions, tmp_path: Path) -> None:
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
        served = replace(asked, base_urls=[fake.base_url])
        with pytest.raises(ConfigError, match="--token-prices"):
            run_batch(served)
        result = run_batch(replace(served, token_prices=prices))
        prices.write_text('[models."fake"]\ninput = 2.0\noutput = 10.0\n')
        with pytest.raises(ConfigError, match="belongs to a batch with token_prices"):
            run_batch(replace(served, token_prices=prices))
    assert 0.1 < result["cost"] <= 0.2
