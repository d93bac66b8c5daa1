"""Plans of files of questions: what is written, what is printed, what is not done twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError
from adacompute.core.progress import no_progress
from adacompute.datasets.example import locate_bundle
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.stages.batch import plan_questions


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(locate_bundle(Path("example")))


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": f"q{i}", "question": f"What is {i} + {i}?"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    return str(path)


def make_plan(
    questions: list[str], bundle: Bundle, *, report: Any = no_progress, **options: Any
) -> dict[str, Any]:
    given = BatchOptions(bundle=Path("in memory"), **options)
    return plan_questions(questions, bundle=bundle, options=given, report=report)


def test_a_plan_says_what_it_will_spend_and_writes_first_actions(
    bundle: Bundle, questions: str, tmp_path: Path
) -> None:
    steps: list[str] = []
    out = tmp_path / "job"
    result = make_plan([questions], bundle, total=100.0, report=steps.append, out=out)
    assert result["questions"] == 40
    assert result["without_text"] == 1
    assert result["expected_cost"] == pytest.approx(100.0)
    assert result["first_actions"] == [{"samples": 1, "questions": 40}]
    table = pq.read_table(result["out"])
    assert table.column_names == ["question_id", "n_samples", "cell"]
    assert table["question_id"].to_pylist() == [*(f"q{i}" for i in range(40)), "40"]
    assert table["n_samples"].to_pylist() == [1] * 40 + [None]
    assert any("41 of 41 questions" in step for step in steps)


def test_either_a_total_or_a_budget_is_needed(
    bundle: Bundle, questions: str, tmp_path: Path
) -> None:
    every: list[dict[str, Any]] = [{}, {"total": 9.0, "budget": 1.0}]
    for given in every:
        with pytest.raises(ConfigError):
            make_plan([questions], bundle, **given, out=tmp_path)
    with pytest.raises(ConfigError, match="engine"):
        make_plan([questions], bundle, total=99.0, engine="spark", out=tmp_path)
