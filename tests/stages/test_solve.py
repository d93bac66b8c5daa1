"""Allocations are the best within a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.stages.research.estimate import estimate_run
from adacompute.stages.research.grade import grade_run
from adacompute.stages.research.solve import solve_run

Rows = list[dict[str, Any]]


def by_question(rows: Rows) -> dict[str, Rows]:
    questions: dict[str, Rows] = {}
    for row in rows:
        questions.setdefault(row["question_id"], []).append(row)
    return questions


def test_solve_refuses_stale_utilities(run: Path) -> None:
    estimate_run(run, levels=(1, 2))
    solve_run(run, budget=1.5)
    grade_run(run, grader="exact")
    with pytest.raises(DataError, match="'adacompute research estimate"):
        solve_run(run, budget=1.5)
    estimate_run(run, levels=(1, 2))
    assert solve_run(run, budget=1.5)["utility"] == 0.0


def test_allocation_is_optimal(run: Path) -> None:
    estimate_run(run, levels=(1, 4))
    found = solve_run(run, budget=1.75)
    table = pq.read_table(run / "allocation.parquet").to_pylist()
    bought = {row["question_id"].partition("/")[0] for row in table if row["level"] == 4}
    assert found["cost"] == 1.75
    assert bought == {"slow"}
    assert found["shares"] == {"1": 0.75, "4": 0.25}
    assert found["split"] == []
    assert found["gap"] == pytest.approx(0.0, abs=1e-12)


def test_remaining_budget_is_spent_by_a_split(run: Path) -> None:
    estimate_run(run, levels=(1, 4))
    found = solve_run(run, budget=1.8)
    assert found["cost"] == 1.75
    (split,) = found["split"]
    assert split["level"] == 4
    assert found["mixed_cost"] == pytest.approx(1.8)
    assert found["utility"] < found["mixed_utility"] <= found["bound"] + 1e-12
    assert found["gap"] == pytest.approx(found["bound"] - found["utility"])


def question_means(rows: Rows, column: str) -> list[float]:
    return [float(np.mean([row[column] for row in own])) for own in by_question(rows).values()]


@pytest.mark.parametrize(
    ("unit", "column"),
    [
        ("tokens", "completion_tokens"),
    ],
)
def test_costs_in_a_unit_are_as_recorded(run: Path, rows: Rows, unit: str, column: str) -> None:
    estimate_run(run, levels=(1, 2))
    each = float(np.mean(question_means(rows, column)))
    whole = solve_run(run, budget=2.1 * each, unit=unit)
    assert whole["unit"] == unit
    bought = {
        row["question_id"]: row["level"]
        for row in pq.read_table(run / "allocation.parquet").to_pylist()
    }
    means = dict(zip(by_question(rows), question_means(rows, column), strict=True))
    spent = np.mean([means[name] * level for name, level in bought.items()])
    assert whole["cost"] == pytest.approx(spent, abs=1e-6)
    with pytest.raises(InfeasibleBudget, match="below"):
        solve_run(run, budget=0.9 * each, unit=unit)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"budget": 0.5}, InfeasibleBudget, "below 1"),
        ({"budget": 0.0}, InfeasibleBudget, r"below 1"),
        ({"budget": -3.0}, InfeasibleBudget, r"below 1"),
        ({"budget": math.nan}, ConfigError, "nan"),
        ({"budget": math.inf}, ConfigError, "inf"),
        ({"budget": 2.0, "unit": "bananas"}, ConfigError, "'bananas'"),
        ({"budget": 2.0, "unit": "money"}, ConfigError, r"token prices"),
    ],
)
def test_unsolvable_budgets_are_refused(
    run: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    estimate_run(run, levels=(1, 2))
    with pytest.raises(kind, match=sentence):
        solve_run(run, **options)
    assert not (run / "allocation.parquet").exists()


def test_huge_budget_reaches_the_bound(run: Path) -> None:
    estimate_run(run, levels=(1, 2, 4))
    found = solve_run(run, budget=1e300)
    assert found["price"] == 0.0
    assert found["cost"] <= 4.0
    assert found["utility"] == pytest.approx(found["bound"])


@pytest.mark.parametrize("value", [-1.0, math.inf, -math.inf, math.nan, None])
def test_invalid_costs_are_refused(
    rows: Rows, make_run: Callable[[Rows], Path], value: float | None
) -> None:
    run = make_run([{**row, "cost": value if i % 9 == 7 else 1.0} for i, row in enumerate(rows)])
    estimate_run(run, levels=(1, 2))
    with pytest.raises(DataError, match="cost"):
        solve_run(run, budget=5.0, unit="money")
