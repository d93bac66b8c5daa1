from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.datasets.competition_math import last_boxed, parse_difficulty, read_math
from adacompute.datasets.rows import QUESTION_SCHEMA

PROBLEM: dict[str, Any] = {
    "problem": "What is half of one?",
    "level": "Level 3",
    "type": "Prealgebra",
    "solution": r"First \boxed{no}. So it is $\boxed{\frac{1}{2}}$, not $\frac{1}{3}$.",
}


def write_tree(root: Path, **problems: dict[str, Any]) -> Path:
    for name, problem in problems.items():
        path = root / name.replace("__", "/")
        path = path.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(problem, indent=4), encoding="utf-8")
    return root


def test_a_tree_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    unknown = PROBLEM | {"level": "Level ?"}
    write_tree(
        tmp_path, test__algebra__10=PROBLEM, test__algebra__9=unknown, train__sums__1=PROBLEM
    )
    table = read_math(tmp_path)
    assert table.schema.equals(QUESTION_SCHEMA)
    names = ["test/algebra/9.json", "test/algebra/10.json", "train/sums/1.json"]
    assert table["question_id"].to_pylist() == names
    assert table["gold"].to_pylist() == [r"\frac{1}{2}"] * 3
    assert table["difficulty"].to_pylist() == [None, "3", "3"]
    assert table["subject"].to_pylist() == ["Prealgebra"] * 3


def test_a_split_keeps_its_name_when_it_is_read_alone(tmp_path: Path) -> None:
    write_tree(tmp_path, test__algebra__1=PROBLEM)
    assert read_math(tmp_path / "test")["question_id"].to_pylist() == ["test/algebra/1.json"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_file_may_give_the_answer_the_subject_and_an_id(tmp_path: Path, ending: str) -> None:
    given_all = {
        "problem": "What is one?",
        "solution": "No box.",
        "answer": "1",
        "subject": "Algebra",
        "level": 5,
        "unique_id": "test/algebra/1.json",
    }
    plain = {"problem": PROBLEM["problem"], "solution": PROBLEM["solution"], "level": None}
    path = tmp_path / f"math_test{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist([given_all, plain]), path)
    else:
        path.write_text(f"{json.dumps(given_all)}\n{json.dumps(plain)}\n", encoding="utf-8")
    first, second = read_math(path).to_pylist()
    assert first == {
        "question_id": "test/algebra/1.json",
        "question": "What is one?",
        "gold": "1",
        "difficulty": "5",
        "subject": "Algebra",
    }
    assert second["question_id"] == "math-test/1"
    assert second["gold"] == r"\frac{1}{2}"
    assert second["difficulty"] is None
    assert second["subject"] is None


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"$\boxed{42}$", "42"),
        (r"\boxed{1} and \fbox{2}", "2"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {x}", "x"),
        (r"so $\boxed 5$", "5"),
        (r"\boxed{\text{a } b}.", r"\text{a } b"),
        (r"\boxed{\left\{x \mid x > {1}\right\}}", r"\left\{x \mid x > {1}\right\}"),
        ("no box", None),
        (r"\boxed{1", None),
        (r"\boxed", None),
        (r"\boxedx{1}", None),
    ],
)
def test_the_last_box_is_read_with_balanced_braces(solution: str, answer: str | None) -> None:
    assert last_boxed(solution) == answer


@given(st.recursive(st.text("ab1 ", max_size=4), lambda inner: inner.map(lambda x: f"{{{x}}}")))
def test_what_is_boxed_comes_back(content: str) -> None:
    assert last_boxed(rf"\boxed{{0}} so \boxed{{{content}}} }}") == content.strip()


@pytest.mark.parametrize(
    ("level", "difficulty"),
    [("Level 5", "5"), ("level 2", "2"), ("4", "4"), (1, "1"), ("Level ?", None), ("", None)],
)
def test_a_level_becomes_a_difficulty(level: str | int, difficulty: str | None) -> None:
    assert parse_difficulty(level) == difficulty


@pytest.mark.parametrize(
    "change",
    [{"problem": None}, {"solution": "no box"}, {"solution": r"\boxed{1"}, {"solution": 1}],
)
def test_a_problem_without_an_answer_is_refused_by_its_file(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    write_tree(tmp_path, algebra__1=PROBLEM, algebra__2=PROBLEM | change)
    with pytest.raises(DataError, match=r"^\S*2\.json .*[^\n]+\Z"):
        read_math(tmp_path)


def test_a_damaged_tree_is_refused_by_its_file(tmp_path: Path) -> None:
    write_tree(tmp_path, algebra__1=PROBLEM)
    damaged = tmp_path / "algebra" / "3.json"
    damaged.write_text('{"problem": "half', encoding="utf-8")
    with pytest.raises(DataError, match=r"3\.json cannot be read as JSON"):
        read_math(tmp_path)
    damaged.write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match=r"3\.json .* MATH"):
        read_math(tmp_path)


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    path.write_text((json.dumps(PROBLEM | {"unique_id": "a"}) + "\n") * 2, encoding="utf-8")
    with pytest.raises(DataError, match="question_id"):
        read_math(path)
