"""The commands that the documentation gives for the paper's own setting, run with --dry-run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adacompute.collection.plan import read_plan

ROOT = Path(__file__).parents[2]
DATA = ROOT / os.environ.get("ADACOMPUTE_DATA", "../shared/data") / "questions"
PAGE = ROOT / "docs" / "tutorials" / "collect.md"

Rows = Sequence[dict[str, Any]]


def commands() -> list[list[str]]:
    """The commands of the page."""
    section = PAGE.read_text().partition("## The paper's own setting")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block
    lines = block[1].replace("\\\n", " ").strip().splitlines()
    return [shlex.split(line) for line in lines]


def write_math(place: Path, rows: Rows) -> None:
    """Write questions as MATH is published: a JSON file each."""
    for number, row in enumerate(rows):
        file = place / "MATH" / "test" / "algebra" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "problem": row["question"],
            "level": f"Level {row['level']}",
            "type": "Algebra",
            "solution": rf"It is $\boxed{{{row['gold']}}}$.",
        }
        file.write_text(json.dumps(record))


def write_gsm8k(place: Path, rows: Rows) -> None:
    """Write questions as GSM8K is published: lines of JSON, the number after ####."""
    file = place / "gsm8k" / "test.jsonl"
    file.parent.mkdir()
    records = [{"question": row["question"], "answer": f"So\n#### {row['gold']}"} for row in rows]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def run_dry(place: Path) -> list[dict[str, Any]]:
    found = []
    for command in commands():
        assert command[0] == "adacompute"
        done = subprocess.run(
            [sys.executable, "-m", *command, "--dry-run", "--json"],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        found.append(json.loads(done.stdout))
    return found


def check(place: Path) -> None:
    found = run_dry(place)
    assert [result["questions"] for result in found] == [200, 200]
    for result in found:
        (arm,) = result["arms"]
        assert (arm["samples"], arm["max_calls"]) == (9600, 9600)
        assert arm["prompt_tokens"] >= 9600
    plan = read_plan(
        str(place / "MATH/test"),
        base_url="http://127.0.0.1:9/v1",
        model="m",
        grader="math",
        max_questions=200,
        difficulties=["2", "3", "4"],
        stratify=True,
    )
    chosen = Counter(plan.questions["difficulty"].to_pylist())
    assert sorted(chosen) == ["2", "3", "4"]
    assert sorted(chosen.values()) == [66, 67, 67]
    assert {path.name for path in place.iterdir()} == {"MATH", "gsm8k"}, "it writes nothing"


def test_documented_commands_have_the_paper_settings() -> None:
    math, gsm8k = commands()
    for command in (math, gsm8k):
        assert command[command.index("--samples") + 1] == "48"
        assert {"max-questions=200", "temperature=0.7", "prompt=cot"} <= set(command)
    assert "difficulties=2,3,4" in math
    assert ["stratify=true" in command for command in (math, gsm8k)] == [True, False]


@pytest.mark.slow
def test_documented_commands_plan_the_paper_collection(tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {i} + {i}?", "gold": f"{2 * i}", "level": i % 5 + 1}
        for i in range(400)
    ]
    write_math(tmp_path, rows)
    write_gsm8k(tmp_path, rows)
    check(tmp_path)


@pytest.mark.skipif(not DATA.is_dir(), reason="no question sets here; see ADACOMPUTE_DATA")
@pytest.mark.slow
def test_documented_commands_plan_the_real_question_sets(tmp_path: Path) -> None:
    write_math(tmp_path, pq.read_table(DATA / "math-test.parquet").to_pylist())
    write_gsm8k(tmp_path, pq.read_table(DATA / "gsm8k-test.parquet").to_pylist())
    check(tmp_path)
