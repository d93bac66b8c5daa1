"""A finished stage is skipped, and a stopped one runs again to equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import DataError
from adacompute.stages.evaluate import evaluate_run
from adacompute.stages.import_samples import import_samples
from adacompute.storage import store

MIXTURE: dict[str, Any] = {"budgets": (2.0,), "levels": (1, 2), "policies": ("mixture",)}


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.is_file()}


def times(run: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(run.iterdir())}


STAGES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "import": lambda run: import_samples(run.with_name("source.parquet"), run),
    "evaluate": lambda run: evaluate_run(run, **MIXTURE),
}


def test_finished_stage_is_skipped_with_the_same_result(run: Path) -> None:
    results = {name: stage(run) for name, stage in STAGES.items()}
    before = times(run)
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


def test_missing_earlier_stage_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no .*: first run"):
        evaluate_run(tmp_path / "nowhere", **MIXTURE)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file, not a run"):
        evaluate_run(tmp_path / "file", **MIXTURE)
