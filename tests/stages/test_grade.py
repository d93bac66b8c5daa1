"""Grades go to their samples, from completions or answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import DataError, GraderError
from adacompute.stages.research.grade import grade_run
from adacompute.storage import store

Rows = list[dict[str, Any]]


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


@pytest.mark.parametrize(
    ("grader", "unparsed", "correct"), [("numeric", 18, 96), ("exact", 0, 0), ("choice", 18, 96)]
)
def test_completions_are_graded_again(run: Path, grader: str, unparsed: int, correct: int) -> None:
    result = grade_run(run, grader=grader)
    assert result["from"] == "completion"
    assert (result["samples"], result["correct"]) == (192, correct)
    assert (result["unparsed"], result["changed"]) == (unparsed, 96 - correct)
    assert result["unparsed_share"] == unparsed / 192


def test_answers_are_graded_if_a_completion_is_missing(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    without = [{**row, "completion": None} if i == 5 else row for i, row in enumerate(rows)]
    result = grade_run(make_run(without), grader="exact")
    assert (result["from"], result["correct"], result["unparsed"]) == ("answer", 96, 18)


def test_grades_do_not_depend_on_the_order_of_the_file(
    rows: Rows, make_run: Callable[[Rows], Path]
) -> None:
    mixed = sorted(rows, key=lambda row: (row["sample"] * 5 % 8, row["question_id"]))
    run = make_run([{**row, "answer": None, "correct": False} for row in mixed])
    assert grade_run(run, grader="numeric")["correct"] == 96
    graded = store.Run(run).samples().to_pylist()
    assert [row["answer"] for row in graded] == [row["answer"] for row in mixed]
    assert [row["correct"] for row in graded] == [row["correct"] for row in mixed]


SCRIPT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "extract":
        last = asked["text"].rstrip(".").split()[-1]
        answer = {"answer": last if last.isdigit() else None}
    else:
        answer = {"equal": int(asked["left"]) % 2 == int(asked["right"]) % 2}
    print(json.dumps(answer), flush=True)
"""


def test_command_grader_runs_every_time(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "grader.py"
    script.write_text(SCRIPT)
    command = f"cmd:{sys.executable} {script}"
    result = grade_run(run, grader=command)
    assert (result["unparsed"], result["correct"]) == (18, 96 + 2 * 6 + 6)  # 9 is odd as 7 is
    script.write_text(SCRIPT.replace("% 2", "% 8"))
    assert grade_run(run, grader=command)["correct"] == 96


def test_failing_command_grader_leaves_the_run_unchanged(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "grader.py"
    script.write_text("import sys; sys.exit('no licence')")
    before = artifacts(run)
    with pytest.raises(GraderError, match=r"ended with code 1; it printed 'no licence'"):
        grade_run(run, grader=f"cmd:{sys.executable} {script}")
    assert artifacts(run) == before


def test_ungradable_question_is_named(rows: Rows, make_run: Callable[[Rows], Path]) -> None:
    without = [{**row, "gold": None} for row in rows]
    with pytest.raises(DataError, match=r"question 'easy/0': .* no gold answer"):
        grade_run(make_run(without), grader="numeric")
    unparsed = [{**row, "gold": "seven" if "fair/3" in row["question_id"] else "7"} for row in rows]
    with pytest.raises(DataError, match=r"question 'fair/3': the numeric grader .*seven"):
        grade_run(make_run(unparsed), grader="numeric")
