"""Allocations are the best within a budget, of samples and of tables of utilities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from adacompute.core.allocation.oracle import frontier, solve
from adacompute.core.errors import AdaComputeError, ConfigError, DataError, InfeasibleBudget
from adacompute.core.types import FloatArray, UtilityTable
from adacompute.datasets import utilities
from adacompute.stages.solve import solve_source

Rows = list[dict[str, Any]]
LEVELS = ("small", "large", "x 4", "x 8")
COST = (1.0, 2.0, 4.0, 8.0)


def question_means(rows: Rows, column: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["question_id"], []).append(row[column])
    return {name: float(np.mean(own)) for name, own in values.items()}


def labels_of(path: Path) -> dict[str, str]:
    table = pq.read_table(path)
    return dict(zip(table["question"].to_pylist(), table["level"].to_pylist(), strict=True))


def test_allocation_of_samples_is_optimal(run: Path, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.parquet"
    found = solve_source(run, budget=1.75, levels=(1, 4), out=out)
    assert {name.partition("/")[0] for name, level in labels_of(out).items() if level == "4"} == {
        "slow"
    }
    assert (found["cost"], found["split"], found["out"]) == (1.75, [], str(out))
    assert found["shares"] == {"1": 0.75, "4": 0.25}
    assert found["gap"] == pytest.approx(0.0, abs=1e-12)
    assert {**solve_source(source, budget=1.75, levels=(1, 4)), "out": str(out)} == found


def test_remaining_budget_is_spent_by_a_split(run: Path) -> None:
    found = solve_source(run, budget=1.8, levels=(1, 4))
    (split,) = found["split"]
    assert (found["cost"], split["level"]) == (1.75, "4")
    assert found["mixed_cost"] == pytest.approx(1.8)
    assert found["utility"] < found["mixed_utility"] <= found["bound"] + 1e-12
    assert found["gap"] == pytest.approx(found["bound"] - found["utility"])


def test_costs_in_tokens_are_as_recorded(run: Path, rows: Rows, tmp_path: Path) -> None:
    means = question_means(rows, "completion_tokens")
    each, out = float(np.mean(list(means.values()))), tmp_path / "labels.parquet"
    found = solve_source(run, budget=2.1 * each, unit="tokens", levels=(1, 2), out=out)
    spent = np.mean([means[name] * int(level) for name, level in labels_of(out).items()])
    assert (found["unit"], found["cost"]) == ("tokens", pytest.approx(spent, abs=1e-6))
    with pytest.raises(InfeasibleBudget, match="below"):
        solve_source(run, budget=0.9 * each, unit="tokens", levels=(1, 2))


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"budget": 0.5}, InfeasibleBudget, "below 1"),
        ({"budget": -3.0}, InfeasibleBudget, "below 1"),
        ({"budget": math.nan}, ConfigError, "nan"),
        ({"budget": math.inf}, ConfigError, "inf"),
        ({"budget": 2.0, "unit": "bananas"}, ConfigError, "'bananas'"),
        ({"budget": 2.0, "unit": "money"}, ConfigError, "token prices"),
        ({"budget": 2.0, "levels": ()}, ConfigError, "levels"),
        ({"budget": 2.0, "levels": (9,)}, DataError, "lowest level, 9"),
    ],
)
def test_what_cannot_be_solved_is_refused(
    run: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    out = run / "labels.parquet"
    with pytest.raises(kind, match=sentence):
        solve_source(run, out=out, **{"levels": (1, 2), **options})
    assert not out.exists()


def test_huge_budget_reaches_the_bound(run: Path) -> None:
    found = solve_source(run, budget=1e300, levels=(1, 2, 4))
    assert found["price"] == 0.0
    assert found["cost"] <= 4.0
    assert found["utility"] == pytest.approx(found["bound"])


def make_utility(n: int, grid: int | None) -> FloatArray:
    rng = np.random.default_rng(n)
    utility = np.clip(rng.random((n, 1)) + rng.normal(0, 0.1, (n, 4)) * np.arange(4), 0, 1)
    return utility if grid is None else np.rint(utility * grid) / grid


def tidy(utility: FloatArray, cost: FloatArray) -> pa.Table:
    """Return a table with one row per question and level; every question has its own order."""
    rng, size = np.random.default_rng(0), len(utility)
    order = np.argsort(rng.random(utility.shape), axis=1)
    order[0] = np.arange(len(LEVELS))
    names = np.array(LEVELS)[order]
    return pa.table(
        {
            "question": [f"q{i}" for i in range(size) for _ in LEVELS],
            "level": names.ravel().tolist(),
            "utility": np.take_along_axis(utility, order, axis=1).ravel(),
            "cost": np.take_along_axis(np.broadcast_to(cost, utility.shape), order, 1).ravel(),
        }
    )


@pytest.mark.parametrize("grid", [None, 16])
@pytest.mark.parametrize("budget", [1.3, 2.5, 7.0, 9.0])
@pytest.mark.parametrize("own_costs", [False, True])
def test_tables_in_blocks_are_solved_like_the_table_in_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    grid: int | None,
    budget: float,
    *,
    own_costs: bool,
) -> None:
    utility, cost = make_utility(3000, grid), np.array(COST)
    if own_costs:
        cost = cost * np.linspace(0.5, 1.0, 3000)[:, None]
    path, out, points = tmp_path / "t.parquet", tmp_path / "o.parquet", tmp_path / "f.csv"
    pq.write_table(tidy(utility, cost), path)
    monkeypatch.setattr(utilities, "MAX_ROWS_IN_MEMORY", 100)
    monkeypatch.setattr(utilities, "BLOCK_ROWS", 701)
    monkeypatch.setattr("adacompute.core.allocation.cutoff.SAMPLE_SIZE", 1000)
    found = solve_source(path, budget=budget, out=out, frontier=points)
    table = UtilityTable(utility, cost)
    exact = solve(table, budget)
    assert found["questions"] == 3000
    assert list(labels_of(out).values()) == [LEVELS[k] for k in exact.choice]
    assert list(labels_of(out)) == [f"q{i}" for i in range(3000)]
    for name in ("price", "cost", "utility", "bound", "mixed_cost", "mixed_utility"):
        assert found[name] == pytest.approx(getattr(exact, name), rel=1e-12)
    assert list(found["shares"].values()) == exact.shares(4).tolist()
    rows = [f"q{i}" for i in exact.split.question]
    assert [one["question"] for one in found["split"]] == rows
    best = frontier(table)
    for row in pa.csv.read_csv(points).to_pylist():
        assert row["cost"] == pytest.approx(row["budget"], rel=0.05)
        assert row["utility"] == pytest.approx(best.utility_at(row["cost"]), abs=1e-3)


def test_rows_of_a_short_table_may_be_anywhere(tmp_path: Path) -> None:
    path, shuffled = tmp_path / "t.parquet", tmp_path / "s.csv"
    table = tidy(make_utility(50, None), np.array(COST))
    pq.write_table(table, path)
    order = np.concatenate([np.arange(4), 4 + np.random.default_rng(0).permutation(196)])
    moved = table.take(order).rename_columns({"question": "prompt"})
    pa.csv.write_csv(moved, shuffled)
    found = solve_source(path, budget=2.0)
    again = solve_source(shuffled, budget=2.0, columns={"question": "prompt"})
    assert again["bound"] == pytest.approx(found["bound"])
    assert again["shares"].keys() == found["shares"].keys()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,low,0.5,1\na,high,1,2\nb,low,0.5,1\n", "'b' must have one row for each"),
        ("a,low,0.5,1\na,high,1,2\nb,low,0.5,1\nb,low,0.5,1\n", "'b' must have"),
        ("a,low,0.5,1\na,high,1,2\nb,low,0.5,1\nb,mid,0.5,1\n", "'b' must have"),
        ("a,low,inf,1\na,high,1,2\n", "infinite"),
        ("a,low,0.5,-1\na,high,1,2\n", "from 0 to"),
        ("a,low,0.5,\na,high,1,2\n", "rows without cost"),
        ("a,low,good,1\na,high,1,2\n", "no table of utilities"),
        ("", "no questions"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"question,level,utility,cost\n{text}")
    with pytest.raises(DataError, match=sentence):
        solve_source(path, budget=2.0, out=tmp_path / "o.parquet")
    assert not (tmp_path / "o.parquet").exists()


def test_options_for_samples_are_refused_for_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("question,level,utility,cost\na,low,0.5,1\n")
    for options in ({"grader": "numeric"}, {"unit": "tokens"}, {"levels": (1,)}):
        with pytest.raises(ConfigError, match="is for samples"):
            solve_source(path, budget=2.0, **options)
    assert solve_source(path, budget=2.0)["utility"] == 0.5


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(tidy(make_utility(50, None), np.array(COST)), path)
    whole = path.read_bytes()
    for size in (10, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(AdaComputeError):
            solve_source(path, budget=2.0)
