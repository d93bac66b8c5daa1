"""Allocations of utility tables on disk: those of the table in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.core.types import FloatArray, UtilityTable
from adacompute.stages.research import solve_files as stage
from adacompute.stages.research.solve_files import solve_files

COST = (1.0, 2.0, 4.0, 8.0)


def make_utility(n: int, grid: int | None) -> FloatArray:
    rng = np.random.default_rng(n)
    utility = np.clip(rng.random((n, 1)) + rng.normal(0, 0.1, (n, 4)) * np.arange(4), 0, 1)
    utility = utility if grid is None else np.rint(utility * grid) / grid
    return np.asarray(utility.astype(np.float32), dtype=np.float64)


def write(folder: Path, utility: FloatArray, n_files: int = 3) -> Path:
    folder.mkdir()
    for i, rows in enumerate(np.array_split(utility.astype(np.float32), n_files)):
        columns = {f"utility_{n}": rows[:, k] for k, n in enumerate((1, 2, 4, 8))}
        pq.write_table(
            pa.table({"question_id": np.arange(len(rows)), **columns}), folder / f"{i}.parquet"
        )
    return folder


@pytest.mark.parametrize("grid", [None, 16])
@pytest.mark.parametrize("budget", [1.3, 2.5, 7.0, 9.0])
def test_files_are_solved_like_the_table(
    tmp_path: Path, grid: int | None, budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "BLOCK_ROWS", 700)
    monkeypatch.setattr("adacompute.core.allocation.cutoff.SAMPLE_SIZE", 1000)
    utility = make_utility(5000, grid)
    found = solve_files(
        write(tmp_path / "utilities", utility), cost=COST, budget=budget, out=tmp_path / "o.parquet"
    )
    exact = solve(UtilityTable(utility, np.array(COST)), budget)
    assert found["questions"] == 5000
    assert pq.read_table(tmp_path / "o.parquet")["level"].to_pylist() == exact.choice.tolist()
    for name in ("price", "cost", "utility", "bound", "mixed_cost", "mixed_utility"):
        assert found[name] == pytest.approx(getattr(exact, name), rel=1e-12)
    assert found["gap"] == pytest.approx(exact.gap, abs=1e-12)
    assert list(found["shares"].values()) == exact.shares(4).tolist()
    assert [one["row"] for one in found["split"]] == exact.split.question.tolist()


def test_tables_and_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "utilities", make_utility(10, None))
    known: dict[str, Any] = {"out": tmp_path / "o.parquet", "budget": 2.0}
    with pytest.raises(ConfigError, match="4 levels"):
        solve_files(path, cost=(1.0, 2.0), **known)
    with pytest.raises(DataError, match="utility_99"):
        solve_files(path, cost=(1.0,), columns=["utility_99"], **known)
    with pytest.raises(DataError, match="no Parquet"):
        solve_files(tmp_path / "missing", cost=COST, **known)
    with pytest.raises(ConfigError, match="finite"):
        solve_files(path, cost=COST, budget=float("nan"), out=tmp_path / "o.parquet")
    with pytest.raises(InfeasibleBudget):
        solve_files(path, cost=COST, budget=0.5, out=tmp_path / "o.parquet")
    empty = write(tmp_path / "empty", make_utility(0, None), 1)
    with pytest.raises(DataError, match="no questions"):
        solve_files(empty, cost=COST, **known)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="utility_"):
        solve_files(tmp_path / "other.parquet", cost=COST, **known)
