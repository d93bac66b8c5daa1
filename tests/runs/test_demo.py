"""The demo goes down the whole line with a file of the user's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.runs.demo import POLICIES, run_demo

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_the_demo_imports_estimates_solves_and_evaluates(source: Path, temporary: Path) -> None:
    said: list[str] = []
    result = run_demo(source, progress=said.append)
    assert said[:3] == ["import", "estimate", "solve"]
    assert result["import"]["questions"] == 24
    assert [row["level"] for row in result["estimate"]["levels"]] == [1, 2, 4, 8]
    assert result["solve"]["cost"] <= 2.0
    assert [row["policy"] for row in result["evaluation"]["rows"]][::4] == list(POLICIES)
    assert Path(result["run"]).parent == temporary


def test_the_demo_takes_as_many_levels_as_the_question_with_fewest_samples_has(
    rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    ragged = [row for row in rows if row["sample"] < 5 or row["question_id"] != "fair/0"]
    result = run_demo(write(tmp_path / "ragged.parquet", ragged))
    assert [row["level"] for row in result["estimate"]["levels"]] == [1, 2, 4]


def test_a_demo_without_a_file_says_that_none_is_shipped() -> None:
    with pytest.raises(ConfigError, match="adacompute demo FILE"):
        run_demo(None)


def test_a_demo_of_a_wrong_file_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        run_demo(tmp_path / "missing.parquet")
    assert list(temporary.iterdir()) == []
