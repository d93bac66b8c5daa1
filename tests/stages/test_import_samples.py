"""Imports count what they import and refuse what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import DataError
from adacompute.stages.import_samples import import_samples

Rows = list[dict[str, Any]]


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


def test_import_counts_questions_and_samples(source: Path, tmp_path: Path) -> None:
    result = import_samples(source, tmp_path / "run", model="m", grader="numeric")
    assert result == {
        "questions": 24,
        "samples": 192,
        "min_samples": 8,
        "max_samples": 8,
        "without_text": 0,
        "unparsed": 18,
        "correct": 96,
        "model": "m",
        "grader": "numeric",
    }


def test_samples_of_another_source_are_refused(
    run: Path, rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    before = artifacts(run)
    other = write(tmp_path / "other.parquet", rows[:-1])
    with pytest.raises(DataError, match="another source"):
        import_samples(other, run)
    assert artifacts(run) == before


def test_same_samples_can_be_imported_with_a_model_name(run: Path, source: Path) -> None:
    before = artifacts(run)["samples.parquet"]
    assert import_samples(source, run, model="m")["model"] == "m"
    assert artifacts(run)["samples.parquet"] == before


def test_file_as_run_is_refused(source: Path) -> None:
    with pytest.raises(DataError, match="directory"):
        import_samples(source, source)


def test_equal_answers_with_different_grades_are_refused_with_the_question(tmp_path: Path) -> None:
    rows = {
        "question_id": ["a", "a", "b", "b"],
        "question": ["A?", "A?", "B?", "B?"],
        "sample": [0, 1, 0, 1],
        "answer": ["1", "2", "7", "7"],
        "correct": [True, False, True, False],
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    with pytest.raises(DataError, match="'b'"):
        import_samples(tmp_path / "samples.parquet", tmp_path / "run")
    kept = import_samples(
        tmp_path / "samples.parquet", tmp_path / "run", allow_inconsistent_grades=True
    )
    assert kept["samples"] == 4


def test_import_says_how_many_samples_and_texts_there_are(tmp_path: Path) -> None:
    rows = {
        "question_id": ["a", "a", "b"],
        "question": pa.array(["A?", "A?", None], pa.string()),
        "sample": [0, 1, 0],
        "answer": ["1", "2", "7"],
        "correct": [True, False, True],
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    result = import_samples(tmp_path / "samples.parquet", tmp_path / "run")
    assert (result["min_samples"], result["max_samples"], result["without_text"]) == (1, 2, 1)


def test_a_grader_that_finds_no_answer_at_all_is_refused(tmp_path: Path) -> None:
    rows = {
        "question_id": ["a", "a"],
        "sample": [0, 1],
        "gold": ["1", "1"],
        "response": ["It is 1", "It is 2"],
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    with pytest.raises(DataError, match="completion"):
        import_samples(tmp_path / "samples.parquet", tmp_path / "run", grader="numeric")
