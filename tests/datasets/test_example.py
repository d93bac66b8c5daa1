"""The samples that ship are what their card says, and the questions can be made again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import adacompute as ada
from adacompute.core.utility import estimate
from adacompute.datasets.example import (
    find_example,
    locate_bundle,
)
from adacompute.datasets.rows import read_samples
from adacompute.datasets.sources import read_question_source, read_source, resolve_source
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.stages.import_samples import import_samples
from adacompute.storage.store import encode_samples
from scripts.make_samples import N_QUESTIONS, N_SAMPLES, SEED
from test_support.arithmetic import CLASSES, generate_problems

LEVELS = (1, 4, 16)
MOST_BYTES = 400_000
CARD_FILE = find_example().with_suffix(".md")
CARD = " ".join(CARD_FILE.read_text().split())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_samples(find_example()).to_pylist()
    return found


def by_draw(rows: list[dict[str, Any]], column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of a column, a row a question and a column a draw."""
    ordered = sorted(rows, key=lambda row: (row["question_id"], row["sample"]))
    return np.array([row[column] for row in ordered], dtype=float).reshape(-1, N_SAMPLES)


def test_questions_and_golds_are_those_that_are_generated(rows: list[dict[str, Any]]) -> None:
    asked = generate_problems(N_QUESTIONS, seed=SEED)
    made = {(one.id, one.question, one.gold, one.class_name) for one in asked}
    names = ("question_id", "question", "gold", "difficulty")
    assert {tuple(row[name] for name in names) for row in rows} == made


def test_every_question_has_its_samples_once(rows: list[dict[str, Any]]) -> None:
    drawn = Counter((row["question_id"], row["sample"]) for row in rows)
    names = {one.id for one in generate_problems(N_QUESTIONS, seed=SEED)}
    assert drawn == Counter((name, number) for name in names for number in range(N_SAMPLES))


def test_counts_are_those_of_the_card(rows: list[dict[str, Any]]) -> None:
    right = sum(row["correct"] for row in rows)
    unread = sum(row["answer"] is None for row in rows)
    cut = sum(row["finish_reason"] == "length" for row in rows)
    tokens = sum(row["completion_tokens"] for row in rows)
    assert f"{len(rows):,} samples" in CARD
    assert f"{right:,} of them are correct" in CARD
    assert f"{unread} are unparsed" in CARD
    assert f"{cut} were cut off" in CARD
    assert f"{tokens:,} tokens" in CARD


def test_accuracies_by_class_are_those_of_the_card() -> None:
    recorded = encode_samples(read_samples(find_example()))
    utility = estimate(recorded.answers, LEVELS, standard_errors=False).utility
    kind = np.array(recorded.difficulty)
    lines = [
        f"| {name} | {' | '.join(f'{value:.3f}' for value in utility[kind == name].mean(0))} |"
        for name in CLASSES
    ]
    lines.append(f"| all | {' | '.join(f'{value:.3f}' for value in utility.mean(0))} |")
    assert "\n".join(lines) in CARD_FILE.read_text()


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


def test_what_a_draw_needs_is_recorded(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["mean_logprob"] < 0
        assert 0 < row["completion_tokens"] <= 20
        assert row["completion_chars"] == len(row["completion"])
        assert row["temperature"] == pytest.approx(0.7)
        assert row["samples_per_call"] == 16
        assert row["latency_s"] > 0


@pytest.mark.parametrize("column", ["correct", "completion_chars", "mean_logprob"])
def test_draws_are_independent_of_their_number(rows: list[dict[str, Any]], column: str) -> None:
    """Seeds that questions share would make a draw lucky or unlucky on all of them at once."""
    values = by_draw(rows, column)
    dice = np.random.default_rng(0)
    chance = [dice.permuted(values, axis=1).mean(0).var() for _ in range(200)]
    assert values.mean(0).var() < 2 * np.mean(chance)


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
