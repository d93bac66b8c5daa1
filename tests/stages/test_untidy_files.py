"""Files that nobody tidied are read, or all that is wrong with them is said in one sentence."""

from __future__ import annotations

import csv
import gzip
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.stages.import_samples import import_samples
from adacompute.storage.store import Run

Rows = Sequence[Mapping[str, Any]]

QUESTIONS = {"What is 1 + 1?": "2", "What is 2 + 3?": "5"}
ANSWERS = {"What is 1 + 1?": ("2", "3", "2"), "What is 2 + 3?": ("5", "5", "6")}
LONG = [
    {"text": text, "answer": answer, "correct": answer == QUESTIONS[text]}
    for text, answers in ANSWERS.items()
    for answer in answers
]
GRADES = [True, False, True, True, True, False]


def write_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_file(path: Path, **options: Any) -> dict[str, Any]:
    """Read a file as ``fit`` does, and return the counts."""
    return import_samples(path, path.with_name("run"), **options)


def read(path: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[list[Any], str]:
    """Read a file; return texts, answers and grades of its samples, and what was guessed."""
    with caplog.at_level(logging.INFO, "adacompute.datasets.layout"):
        caplog.clear()
        read_file(path, **options)
    samples = Run(path.with_name("run")).samples()
    assert samples["sample"].to_pylist() == [0, 1, 2] * 2
    names = ("question", "answer", "correct")
    return [samples[name].to_pylist() for name in names], "\n".join(caplog.messages)


def refusal(path: Path, **options: Any) -> str:
    """Return the sentence in which a file is refused."""
    with pytest.raises(DataError) as error:
        read_file(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


TEXTS = [row["text"] for row in LONG]
EXPECTED = [TEXTS, [row["answer"] for row in LONG], GRADES]


def test_other_names(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    names = {"text": "Asked", "answer": "modelAnswer", "correct": "is_right"}
    rows = [{names[name]: value for name, value in row.items()} for row in LONG]
    path = write_csv(tmp_path / "x.csv", rows)
    assert "(question_id)" not in refusal(path)
    found, said = read(path, caplog, columns={"question": "Asked"})
    assert found == EXPECTED
    assert len(said.splitlines()) == 1
    for guess in ("answer=modelAnswer", "correct=is_right", "order of the rows"):
        assert guess in said


def test_wide_columns(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rows = [
        {"prompt": text, **{f"response_{i}": f"= {own}" for i, own in enumerate(answers, 1)}}
        for text, answers in ANSWERS.items()
    ]
    rows = [{**row, "label": QUESTIONS[row["prompt"]]} for row in rows]
    found, said = read(write_csv(tmp_path / "x.csv", rows), caplog, grader="numeric")
    assert found == EXPECTED
    assert "completion=response_1…response_3" in said


def test_wide_columns_of_grades_end_with_the_last_sample(tmp_path: Path) -> None:
    rows = [
        {"question": "a?", "answer_1": "2", "correct_1": "1", "answer_2": "3", "correct_2": "0"},
        {"question": "b?", "answer_1": "5", "correct_1": "1", "answer_2": "", "correct_2": ""},
    ]
    assert read_file(write_csv(tmp_path / "x.csv", rows))["samples"] == 3


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv", "json"])
def test_wide_lists(caplog: pytest.LogCaptureFixture, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    rows: list[dict[str, Any]] = [
        {"question": text, "answers": answers, "is_correct": [own == gold for own in answers]}
        for (text, answers), gold in zip(ANSWERS.items(), QUESTIONS.values(), strict=True)
    ]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "csv":
        lists = ("answers", "is_correct")
        write_csv(
            path, [{**row, **{name: json.dumps(row[name]) for name in lists}} for row in rows]
        )
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        write_lines(path, rows)
    assert read(path, caplog)[0] == EXPECTED


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    row = {"question": "a?", "answers": ["2", "3"], "correct": [True]}
    assert "row 1 has 2 values of 'answer' and 1 of 'correct'" in refusal(
        write_lines(tmp_path / "x.jsonl", [row])
    )


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    said = refusal(write_csv(tmp_path / "x.csv", [{"when": 1, "who": "me"}]))
    for problem in ("3 problems", "no column of questions", "no column of samples", "'correct'"):
        assert problem in said
    assert "its columns are when, who" in said
    assert "--columns" in said


@pytest.mark.parametrize("words", [("yes", "no"), ("TRUE", "FALSE"), ("1", "0"), ("Yes ", "No")])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_grades_in_words(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, words: tuple[str, str], ending: str
) -> None:
    rows = [{**row, "correct": words[0] if row["correct"] else words[1]} for row in LONG]
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        (write_csv if ending == "csv" else write_lines)(path, rows)
    assert read(path, caplog)[0] == EXPECTED


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_compressed_files(caplog: pytest.LogCaptureFixture, tmp_path: Path, ending: str) -> None:
    plain = (write_csv if ending == "csv" else write_lines)(tmp_path / "plain", LONG)
    path = tmp_path / f"x.{ending}.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(path, caplog)[0] == EXPECTED
    path.write_bytes(path.read_bytes()[:-12])
    assert "cannot be read" in refusal(path)


def test_mixed_types(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in LONG]
    rows[0] |= {"answer": 2, "correct": "yes"}
    rows[1] |= {"correct": 0}
    assert read(write_lines(tmp_path / "x.jsonl", rows), caplog)[0] == EXPECTED
    rows[4] |= {"correct": "perhaps"}
    assert "line 5: 'correct' is 'perhaps'" in refusal(write_lines(tmp_path / "y.jsonl", rows))


def test_two_problems_at_once(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**row, "sample": 0, "cost": 1.0} for row in LONG]
    rows[1] |= {"correct": "perhaps", "cost": "dear"}
    said = refusal(write_csv(tmp_path / "x.csv", rows))
    for problem in ("row 2: 'correct' is 'perhaps'", "row 2: 'cost' is 'dear'", "3 times"):
        assert problem in said


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("is_last", [True, False])
def test_chat_messages(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, ending: str, *, is_last: bool
) -> None:
    rows: list[dict[str, Any]] = []
    for i, row in enumerate(LONG):
        said = [
            ("system", "Be brief."),
            ("user", "Hello"),
            ("assistant", "Hi"),
            ("user", row["text"]),
        ]
        said += [("assistant", row["answer"])] if is_last else []
        chat = [{"role": role, "content": text} for role, text in said]
        reply = {} if is_last else {"response": row["answer"]}
        rows.append({"id": f"chat-{i}", "messages": chat, **reply, "correct": row["correct"]})
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "csv":
        write_csv(path, [{**row, "messages": json.dumps(row["messages"])} for row in rows])
    else:
        write_lines(path, rows)
    assert "--grader" in refusal(path)
    found, guessed = read(path, caplog, grader="numeric")
    assert found == EXPECTED
    assert "question=messages" in guessed


def test_a_chat_without_a_user_is_named(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "assistant", "content": "2"}], "correct": True}]
    assert "line 1: 'messages'" in refusal(write_lines(tmp_path / "x.jsonl", rows))


def test_unknown_and_absent_columns_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", LONG)
    with pytest.raises(ConfigError):
        read_file(path, columns={"verdict": "correct"})
    assert "no column 'right'" in refusal(path, columns={"correct": "right"})
