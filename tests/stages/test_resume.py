"""A finished stage is skipped, and a stopped one runs again to equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import DataError
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.grade import grade_run
from adacompute.stages.research.import_samples import import_samples
from adacompute.stages.research.solve import solve_run
from adacompute.storage import store


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


def times(run: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(run.iterdir())}


STAGES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "import": lambda run: import_samples(run.with_name("source.parquet"), run),
    "grade": lambda run: grade_run(run, grader="numeric"),
    "estimate": lambda run: estimate_run(run, levels=(1, 2, 4)),
    "solve": lambda run: solve_run(run, budget=2.0),
}


def test_finished_stage_is_skipped_with_the_same_result(run: Path) -> None:
    results = {name: stage(run) for name, stage in STAGES.items()}
    before = times(run)
    assert len(before) == 8
    for name, stage in STAGES.items():
        assert stage(run) == results[name]
    assert times(run) == before


@pytest.mark.parametrize("stage", STAGES)
def test_interrupted_stage_runs_again_to_equal_bytes(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    assert source.is_file()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run in (whole, stopped):
        for name, do in STAGES.items():
            if run == stopped and name == stage:
                with monkeypatch.context() as patch:
                    patch.setattr(store, "write_manifest", _crash)
                    with pytest.raises(KeyboardInterrupt):
                        do(run)
                assert f"{stage}.manifest.json" not in artifacts(run)
            do(run)
    assert artifacts(stopped) == artifacts(whole)


def _crash(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "stage",
    [
        lambda run: grade_run(run, grader="numeric"),
        estimate_run,
        lambda run: solve_run(run, budget=2.0),
    ],
)
def test_missing_earlier_stage_is_named(tmp_path: Path, stage: Callable[[Path], Any]) -> None:
    with pytest.raises(
        DataError, match=r"has no .*: first run 'adacompute research (import|estimate) "
    ):
        stage(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file, not a run"):
        stage(tmp_path / "file")
