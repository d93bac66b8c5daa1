"""Runs that are solved in blocks: the result of the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError
from adacompute.datasets.example import find_example
from adacompute.stages.research import estimate_blocks, solve_blocks
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.import_samples import import_samples
from adacompute.stages.research.solve import ALLOCATION, solve_run

LEVELS = (1, 3, 8)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    import_samples(find_example(), path, grader="numeric")
    estimate_run(path, levels=LEVELS)
    return path


def _mean_level(run: Path) -> float:
    level = pq.read_table(run / ALLOCATION)["level"].to_pylist()
    return float(sum(level) / len(level))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (estimate_blocks, "MAX_SAMPLES_IN_MEMORY"),
        (solve_blocks, "MAX_QUESTIONS_IN_MEMORY"),
    ],
)
def test_blocks_give_the_allocation_of_the_whole_run(
    run: Path, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = solve_run(run, budget=2.3)
    table = pq.read_table(run / ALLOCATION)
    (run / "solve.manifest.json").unlink()
    monkeypatch.setattr(module, name, 10)
    monkeypatch.setattr(solve_blocks, "BLOCK_ROWS", 7)
    found = solve_run(run, budget=2.3)
    written = pq.read_table(run / ALLOCATION)
    assert found.keys() == whole.keys()
    for field in ("price", "cost", "utility", "bound", "mixed_cost", "mixed_utility"):
        assert found[field] == pytest.approx(whole[field], rel=1e-9), field
    assert found["shares"] == pytest.approx(whole["shares"])
    assert [one.keys() for one in found["split"]] == [one.keys() for one in whole["split"]]
    assert written["question_id"].to_pylist() == table["question_id"].to_pylist()
    assert _mean_level(run) == pytest.approx(found["cost"])
    assert {path.name for path in run.iterdir() if path.name.startswith(".allocation")} == set()
    assert solve_run(run, budget=2.3) == found


def test_options_that_need_the_whole_run_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate_blocks, "MAX_SAMPLES_IN_MEMORY", 10)
    with pytest.raises(ConfigError, match="blocks"):
        solve_run(run, budget=2.3, unit="tokens")
