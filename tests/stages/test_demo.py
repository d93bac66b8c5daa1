"""The demo runs the whole pipeline, on the example samples or on a file."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adacompute.cli.main import cli
from adacompute.core import errors
from adacompute.core.errors import DataError
from adacompute.core.progress import StepProgress
from adacompute.stages.demo import BUDGETS, POLICIES, Step, run_demo
from scripts.make_samples import N_QUESTIONS, N_SAMPLES

Rows = list[dict[str, Any]]

# Of one processor; a demo alone takes half of a minute, beside other tests up to a minute.
MAX_DURATION_S = 120


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_demo_runs_every_step(source: Path, temporary: Path) -> None:
    said: list[str] = []

    def run_step(name: str, command: str, step: Step) -> dict[str, Any]:
        said.append(f"{name}: {command}")
        return step(said.append)

    result = run_demo(source, run_step=run_step)
    assert said[0].startswith("import: adacompute research import ")
    assert said[1].startswith("estimate: adacompute research estimate ")
    started = said.index(next(one for one in said if one.startswith("evaluate: adacompute")))
    assert "mixture" in said[started:]  # what a step reports follows its command
    assert any(isinstance(one, StepProgress) for one in said)
    assert result["import"]["questions"] == 24
    assert [row["level"] for row in result["estimate"]["levels"]] == [1, 2, 4, 8]
    assert result["solve"]["cost"] <= 2.0
    assert [row["policy"] for row in result["evaluate"]["rows"]][::4] == list(POLICIES)
    assert Path(result["run"]).parent == temporary
    assert result["train"]["policy"] == "sequential"
    assert "too few to calibrate" in result["skipped"]["calibrate"]
    assert "calibrate" not in result["commands"]


def test_levels_are_limited_by_the_fewest_samples(
    rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    ragged = [row for row in rows if row["sample"] < 5 or row["question_id"] != "fair/0"]
    result = run_demo(write(tmp_path / "ragged.parquet", ragged))
    assert [row["level"] for row in result["estimate"]["levels"]] == [1, 2, 4]


def test_question_with_few_samples_is_left_out(
    rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    ragged = [row for row in rows if row["sample"] < 1 or row["question_id"] != "fair/0"]
    result = run_demo(write(tmp_path / "ragged.parquet", ragged))
    assert [row["level"] for row in result["estimate"]["levels"]] == [1]
    assert result["evaluate"]["excluded"] == 1
    assert result["evaluate"]["levels"] == [1, 2, 4, 8]
    assert Path(result["report"]["out"]).exists()


@pytest.mark.nightly
def test_demo_on_the_example_ends_in_a_verdict() -> None:
    began = time.process_time()
    result = run_demo()
    assert time.process_time() - began < MAX_DURATION_S
    assert result["import"]["questions"] == N_QUESTIONS
    assert result["import"]["samples"] == N_QUESTIONS * N_SAMPLES
    assert [row["level"] for row in result["estimate"]["levels"]] == [1, 2, 4, 8, 16]
    scores = {(row["policy"], row["budget"]): row for row in result["evaluate"]["rows"]}
    for budget in BUDGETS:
        assert scores["oracle", budget]["accuracy"] > scores["mixture", budget]["accuracy"]
    assert result["skipped"] == {}
    assert result["calibrate"]["verdict"] == result["report"]["verdict"] == "gain"


def test_base_install_fits_a_policy_without_extras(
    rows: Rows,
    write: Callable[[Path, Rows], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    many = [
        {
            **row,
            "question_id": f"{i}/{row['question_id']}",
            "question": f"{i} {row['question']}",
            "mean_logprob": -0.1 if row["correct"] else -0.4,
        }
        for i in range(2)
        for row in rows
    ]
    result = run_demo(write(tmp_path / "many.parquet", many))
    assert result["calibrate"]["policy"] == "sequential"
    assert result["skipped"].keys() == {"report"}


def test_commands_of_a_demo_repeat_its_results(source: Path) -> None:
    result = run_demo(source)
    for name, command in result["commands"].items():
        words = [*shlex.split(command), "--json"]
        assert name in words[1:3]
        called = CliRunner().invoke(cli, words[1:])
        assert called.exit_code == 0, called.output
        assert json.loads(called.stdout) == json.loads(json.dumps(result[name]))


def test_missing_file_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        run_demo(tmp_path / "missing.parquet")
    assert list(temporary.iterdir()) == []
