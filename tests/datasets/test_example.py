"""The samples that ship are what their card says, and the questions can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import adacompute as ada
from adacompute.datasets.example import (
    find_example,
    locate_bundle,
)
from adacompute.datasets.rows import read_samples
from adacompute.datasets.sources import read_question_source, read_source, resolve_source
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages.import_samples import import_samples
from scripts.make_samples import N_QUESTIONS, SEED
from test_support.arithmetic import generate_problems

MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_samples(find_example()).to_pylist()
    return found


def test_questions_and_golds_are_those_that_are_generated(rows: list[dict[str, Any]]) -> None:
    asked = generate_problems(N_QUESTIONS, seed=SEED)
    made = {(one.id, one.question, one.gold, one.class_name) for one in asked}
    names = ("question_id", "question", "gold", "difficulty")
    assert {tuple(row[name] for name in names) for row in rows} == made


def test_it_names_its_grader_and_no_other_source_does(tmp_path: Path) -> None:
    assert import_samples(Path("example"), tmp_path / "run")["grader"] == "numeric"
    assert import_samples(Path("example"), tmp_path / "exact", grader="exact")["grader"] == "exact"
    grader = ada.read_samples("example").grader
    assert grader is not None
    assert grader.extract("It is 7.") == "7"
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(find_example().read_bytes())
    assert import_samples(copy, tmp_path / "copied")["grader"] is None
    assert ada.read_samples(copy).grader is None


def test_the_file_is_small_and_tells_nothing_of_the_machine_it_was_made_on() -> None:
    path = find_example()
    assert path.stat().st_size < MOST_BYTES
    with pq.ParquetFile(path) as file:
        assert set(file.metadata.metadata) <= {b"ARROW:schema"}
        texts = [
            str(text)
            for name, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True)
            if str(kind) == "string"
            for text in file.read([name])[name].unique().to_pylist()
        ]
    assert not [text for text in texts if "/tmp" in text or "http" in text or "127.0" in text]  # noqa: S108 - looked for


def test_the_name_is_a_source_of_samples_and_of_questions(rows: list[dict[str, Any]]) -> None:
    assert resolve_source("example") == find_example()
    assert read_source("example").num_rows == len(rows)
    questions = read_question_source("example")
    assert questions["question_id"].to_pylist() == sorted({row["question_id"] for row in rows})
    assert questions["gold"].null_count == 0


def test_a_file_of_that_name_goes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example").mkdir()
    assert resolve_source("example") == Path("example")


def test_the_shipped_policy_records_how_its_samples_were_collected() -> None:
    bundle = load_bundle(locate_bundle(Path("example")))
    assert bundle.settings is not None
    assert (bundle.settings.max_tokens, bundle.settings.stop) == (20, ("\n",))
    assert bundle.template is not None
    assert bundle.verdict(2.0) == "gain"
