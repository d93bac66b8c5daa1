from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.datasets import text_rows
from adacompute.datasets.rows import SAMPLE_SCHEMA, read_questions, read_samples

ROW = {"question_id": "q", "sample": 0, "answer": "4", "correct": True}
TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1, max_size=8)


def write_jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def refusal(path: Path) -> str:
    """Return the sentence in which a file is refused: one line that names it."""
    with pytest.raises(DataError) as caught:
        read_samples(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@given(TEXTS, st.booleans())
def test_jsonl_gives_back_any_text(texts: list[str | None], ascii_only: bool) -> None:  # noqa: FBT001
    with TemporaryDirectory() as directory:
        path = Path(directory) / "q.jsonl"
        rows = [{"question_id": str(i), "question": t} for i, t in enumerate(texts)]
        lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
        write(path, "\n".join(lines))
        assert read_questions(path)["question"].to_pylist() == texts


@given(TEXTS, st.sampled_from(["\n", "\r\n"]))
def test_csv_gives_back_any_text_and_tells_null_from_empty(
    texts: list[str | None], end: str
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "q.csv"
        cells = ["" if text is None else '"' + text.replace('"', '""') + '"' for text in texts]
        lines = ["question_id,question", *(f"{i},{cell}" for i, cell in enumerate(cells))]
        write(path, end.join(lines) + end)
        assert read_questions(path)["question"].to_pylist() == texts


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8))
def test_csv_reads_what_pythons_own_writer_writes(texts: list[str]) -> None:
    with TemporaryDirectory() as directory:
        buffer = io.StringIO(newline="")
        writer = csv.writer(buffer)
        writer.writerows([["question_id", "question"], *enumerate(texts)])
        path = write(Path(directory) / "q.csv", buffer.getvalue())
        assert read_questions(path)["question"].to_pylist() == texts


def samples_table() -> pa.Table:
    """Samples with a value in every column, and one row that is null wherever it may be."""
    full: dict[str, Any] = {}
    for field in SAMPLE_SCHEMA:
        kinds = {"string": "007", "int32": 7, "bool": True, "float": -0.5, "double": 0.25}
        full[field.name] = kinds[str(field.type)]
    bare = {"question_id": "q", "sample": 1, "correct": False}
    return pa.Table.from_pylist([full, bare], schema=SAMPLE_SCHEMA)


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".ndjson", ".csv", ".JSONL"])
def test_every_form_reads_to_the_same_table(tmp_path: Path, ending: str) -> None:
    table, path = samples_table(), tmp_path / f"samples{ending}"
    if ending == ".parquet":
        pq.write_table(table, path)
    elif ending == ".csv":
        pa.csv.write_csv(table, path)
    else:
        write_jsonl(path, *table.to_pylist())
    assert read_samples(path).equals(table)


def test_a_json_number_where_a_text_belongs_stays_as_it_is_spelled(tmp_path: Path) -> None:
    line = '{"question_id": 7, "sample": 0, "answer": 1.0, "gold": 1e3, "level": 3, "correct": 1}\n'
    [row] = read_samples(write(tmp_path / "s.jsonl", line)).to_pylist()
    assert (row["question_id"], row["answer"], row["gold"]) == ("7", "1.0", "1e3")
    assert row["difficulty"] == "3"
    assert row["correct"] is True


def test_csv_answers_stay_texts_and_numbers_may_be_spelled_as_pandas_does(tmp_path: Path) -> None:
    text = (
        "question_id,level,sample,answer,correct,completion_tokens,mean_logprob,unknown\n"
        "1,add,0,007,True,12.0,-0.5,x\n"
        '1,add,1,1.0,FALSE,"",NaN,x\n'
        "1,add,2,NA,1,NA,,x\n"
        "1,add,3,,0, 3 ,-1e-1,x\n"
    )
    table = read_samples(write(tmp_path / "s.csv", text))
    assert table["answer"].to_pylist() == ["007", "1.0", "NA", None]
    assert table["correct"].to_pylist() == [True, False, True, False]
    assert table["completion_tokens"].to_pylist() == [12, None, None, 3]
    assert table["mean_logprob"].to_pylist() == pytest.approx([-0.5, None, None, -0.1])
    assert table["difficulty"].to_pylist() == ["add"] * 4


def test_json_that_is_not_a_number_is_null(tmp_path: Path) -> None:
    line = (
        '{"question_id": "q", "sample": 0, "answer": "4", "correct": true, "mean_logprob": NaN}\n'
    )
    assert read_samples(write(tmp_path / "s.jsonl", line))["mean_logprob"].to_pylist() == [None]


def test_batches_and_empty_lines_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_rows, "BATCH_ROWS", 3)
    rows = [ROW | {"sample": i} for i in range(6)]
    path = write(tmp_path / "s.jsonl", "\ufeff" + "\n\n".join(map(json.dumps, rows)))
    assert read_samples(path)["sample"].to_pylist() == list(range(6))


def test_half_a_surrogate_pair_becomes_a_question_mark(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", ROW | {"answer": "4\ud800"})
    assert read_samples(path)["answer"].to_pylist() == ["4?"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample": "0"}, "line 2: 'sample' is '0', not a number"),
        ({"sample": 0.5}, "line 2: 'sample' is 0.5, not an integer"),
        ({"sample": 1e99}, "'sample' cannot be int32"),
        ({"correct": 0.5}, "line 2: 'correct' is '0.5', neither true nor false"),
        ({"correct": "maybe"}, "line 2: 'correct' is 'maybe', neither"),
        ({"answer": ["4"]}, "line 2: 'answer' is .*, not a text"),
        ({"answer": True}, "line 2: 'answer' is True, not a text"),
        ({"question_id": None}, "'question_id' is null in 1 rows"),
        ({"answer": None, "sample": 1}, "has no answer"),
        ({"answer": "", "sample": 1}, "has no answer"),
        ({"answer": " \n", "sample": 1}, "has no answer"),
        ({}, "sample 0 of question 'q' is there 2 times"),
    ],
)
def test_a_wrong_json_value_is_refused_where_it_stands(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = write_jsonl(tmp_path / "s.jsonl", ROW, ROW | change)
    with pytest.raises(DataError, match=said):
        read_samples(path)
    refusal(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rows"),
        ("\n\n", "holds no rows"),
        ('{"question_id": "q", "sam', "line 1 .* cannot be read as JSON"),
        ("[1]\n", "line 1 .* JSON object"),
        ('{"a": 1}\n', "no column of questions"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "no column"),
    ],
)
def test_damaged_json_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "s.jsonl", text)
    with pytest.raises(DataError, match=said):
        read_samples(path)
    refusal(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read as CSV: Empty"),
        ("question_id,sample\n1\n", "cannot be read as CSV: .*Expected 2 columns, got 1"),
        ("question_id,sample\n1,0\n", "no column 'correct'"),
        ("question_id,sample,correct\nq,0,0\nq,x,0\n", "row 2: 'sample' is 'x', not a num"),
        ("question_id,sample,correct\nq,0,maybe\n", "row 1: 'correct' is 'maybe', neither"),
        ("question_id,sample,correct\nq,0.5,0\n", "row 1: 'sample' is 0.5, not an integer"),
        ("question_id,sample,correct\nq,,0\n", "'sample' is null in 1 rows"),
        ("question_id,sample,correct,correct\nq,0,0,1\n", "2 columns are named 'correct'"),
        ("question_id,sample,correct\n", "holds no samples"),
    ],
)
def test_damaged_csv_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "s.csv", text)
    with pytest.raises(DataError, match=said):
        read_samples(path)
    refusal(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("s.jsonl", b'{"question_id": "\xff"}\n'), ("s.csv", b"question_id,sample\nq\xff,1\n")],
)
def test_what_is_not_utf8_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert "UTF" in refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "s.jsonl")
