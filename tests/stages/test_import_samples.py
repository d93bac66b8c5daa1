"""Imports count what they import and refuse what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
