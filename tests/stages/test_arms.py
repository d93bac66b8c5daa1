"""Levels of several arms: which are efficient, what they cost, and what the best allocation is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import DataError
from adacompute.evaluation.arm_levels import list_arms, mark_efficient
from adacompute.evaluation.costs import CostModel
from adacompute.stages.import_samples import import_samples
from adacompute.stages.inputs import make_pool
from adacompute.stages.solve import solve_source
from adacompute.storage.store import Run

QUESTIONS, SAMPLES = 60, 4
RIGHT = {"low": (0.5, 10), "medium": (0.75, 20), "poor": (0.4, 30), "high": (0.9, 200)}
"""Share of correct answers and tokens per sample of each arm."""


def arm_file(path: Path, share: float, tokens: int, *, seed: int, **columns: Any) -> Path:
    """Write samples of one arm; a right answer is 7."""
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(QUESTIONS):
        is_easy = q < share * QUESTIONS
        for sample in range(SAMPLES):
            right = bool(rng.random() < (0.97 if is_easy else 0.03))
            rows.append(
                {
                    "question_id": f"q{q}",
                    "question": f"What is {q}?",
                    "sample": sample,
                    "answer": "7" if right else str(rng.integers(8, 20)),
                    "correct": right,
                    "completion_tokens": tokens,
                    "latency_s": tokens / 10 + sample,
                    **columns,
                }
            )
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with four arms, of which one costs more than a better one."""
    root = tmp_path_factory.mktemp("arms")
    files = {
        name: arm_file(root / f"{name}.parquet", share, tokens, seed=i)
        for i, (name, (share, tokens)) in enumerate(RIGHT.items())
    }
    import_samples(None, root / "run", arms=files)
    return root / "run"


def rows_of(*levels: tuple[str, int, float, float]) -> list[dict[str, Any]]:
    names = ("arm", "samples", "cost", "accuracy")
    rows = [dict(zip(names, level, strict=True)) for level in levels]
    mark_efficient(rows)
    return rows


def test_a_level_is_dominated_by_a_cheaper_one_that_is_as_accurate() -> None:
    rows = rows_of(("a", 1, 1.0, 0.6), ("b", 1, 2.0, 0.5), ("c", 1, 4.0, 0.8))
    assert [row["efficient"] for row in rows] == [True, False, True]
    assert [row["dominated_by"] for row in rows] == [None, "a", None]


def test_a_mixture_dominates_a_level_below_the_line_between_two_others() -> None:
    rows = rows_of(("a", 1, 1.0, 0.5), ("b", 2, 2.0, 0.55), ("c", 4, 3.0, 0.9))
    assert [row["efficient"] for row in rows] == [True, False, True]
    assert rows[1]["dominated_by"] == "a + c × 4"


def arms_of(run: Path, levels: tuple[int, ...]) -> dict[str, Any]:
    recorded = Run(run).encoded_samples()
    pool = make_pool(recorded, costs=CostModel("tokens")).equalise()
    return {"unit": "tokens", **list_arms(pool, recorded.arms, levels)}


def test_levels_of_a_run_have_the_costs_and_accuracies_of_their_arms(run: Path) -> None:
    result = arms_of(run, (1, 2, 4, 8))
    assert (result["questions"], result["excluded"], len(result["rows"])) == (60, 0, 12)
    first = {row["arm"]: row for row in result["rows"] if row["samples"] == 1}
    assert {name: row["cost"] for name, row in first.items()} == {
        name: tokens for name, (_, tokens) in RIGHT.items()
    }
    for name, (share, _) in RIGHT.items():
        assert first[name]["accuracy"] == pytest.approx(share, abs=0.06)
        assert first[name]["accuracy_low"] < first[name]["accuracy"] < first[name]["accuracy_high"]
    assert first["low"]["efficient"]
    assert first["medium"]["efficient"]
    assert not any(row["efficient"] for row in result["rows"] if row["arm"] == "poor")
    assert first["poor"]["dominated_by"] == "low"


def test_latency_is_that_of_the_slowest_of_the_samples(run: Path) -> None:
    rows = arms_of(run, (1, 4))["rows"]
    low = [row["latency_p50_s"] for row in rows if row["arm"] == "low"]
    assert low == pytest.approx([1 + 1.5, 1 + 3])  # the mean of 0 to 3, and the largest


def test_latency_is_none_where_it_was_not_recorded(tmp_path: Path) -> None:
    file = arm_file(tmp_path / "low.parquet", 0.5, 10, seed=0, latency_s=None)
    import_samples(None, tmp_path / "run", arms={"low": file, "again": file})
    rows = arms_of(tmp_path / "run", (1,))["rows"]
    assert [row["latency_p95_s"] for row in rows] == [None, None]


def test_levels_above_all_samples_are_refused(run: Path) -> None:
    with pytest.raises(DataError, match="no arm has the 8 samples"):
        arms_of(run, (8, 16))


def test_solve_chooses_among_the_levels_of_all_arms(run: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.parquet"
    result = solve_source(run, budget=40.0, unit="tokens", levels=(1, 4, 16), out=labels)
    assert list(result["shares"]) == [
        f"{arm} × {n}" if n > 1 else arm for arm in RIGHT for n in (1, 4)
    ]
    assert sum(result["shares"].values()) == pytest.approx(1.0)
    assert result["cost"] <= 40.0
    best = max(row["accuracy"] for row in arms_of(run, (1, 4))["rows"] if row["cost"] < 40)
    assert result["bound"] >= result["utility"] > best
    chosen = pq.read_table(labels)["level"].to_pylist()
    assert result["shares"]["low"] == chosen.count("low") / QUESTIONS
    pairs = [level.split(" × ") for level in chosen]
    costs = [RIGHT[arm][1] * int(n[0] if n else 1) for arm, *n in pairs]
    assert result["cost"] == pytest.approx(np.mean(costs))


def test_questions_without_samples_of_an_arm_are_left_out(tmp_path: Path) -> None:
    whole = arm_file(tmp_path / "low.parquet", 0.5, 10, seed=0)
    table = pq.read_table(whole)
    pq.write_table(table.slice(2 * SAMPLES), tmp_path / "high.parquet")
    files = {"low": whole, "high": tmp_path / "high.parquet"}
    import_samples(None, tmp_path / "run", arms=files)
    labels = tmp_path / "labels.parquet"
    result = solve_source(tmp_path / "run", budget=1.5, levels=(1, 2), out=labels)
    assert (result["questions"], result["excluded"]) == (QUESTIONS - 2, 2)
    ids = dict.fromkeys(table["question_id"].to_pylist())
    assert pq.read_table(labels)["question"].to_pylist() == list(ids)[2:]
    pq.write_table(table.slice(20 * SAMPLES), tmp_path / "high.parquet")
    import_samples(None, tmp_path / "few", arms=files)
    with pytest.raises(DataError, match="arm 'high'"):
        solve_source(tmp_path / "few", budget=1.5, levels=(1, 2))
