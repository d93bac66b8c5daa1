from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import DataError
from adacompute.datasets.gsm8k import final_answer, read_gsm8k
from adacompute.datasets.rows import QUESTION_SCHEMA, read_questions

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("ADACOMPUTE_DATA", ROOT.parent / "shared" / "data"))

ROWS = [
    {
        "question": "Natalia sold clips to 48 of her friends in April, and half as many in May.",
        "answer": "In May she sold 48/2 = <<48/2=24>>24.\nTogether 48+24 = 72 clips.\n#### 72",
    },
    {"question": "How much is it?", "answer": "It costs 2 * $600 = $1,200.\n#### 1,200"},
]


@pytest.fixture(params=["test.jsonl", "train-00000-of-00001.parquet", "gsm8k.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def test_every_form_reads_to_the_same_questions(file: Path) -> None:
    table = read_gsm8k(file)
    assert table.schema.equals(QUESTION_SCHEMA)
    assert table["question"].to_pylist() == [row["question"] for row in ROWS]
    assert table["gold"].to_pylist() == ["72", "1200"]
    assert table["difficulty"].to_pylist() == ["2", "1"]
    name = {"test.jsonl": "gsm8k-test", "gsm8k.json": "gsm8k"}.get(file.name, "gsm8k-train")
    assert table["question_id"].to_pylist() == [f"{name}/0", f"{name}/1"]


@pytest.mark.parametrize("gold", ["-5", "1,234,567", " 42 ", "3.50"])
def test_the_final_answer_stands_after_the_last_mark(gold: str) -> None:
    found = final_answer(f"#### is a mark\n1 + 1\n#### {gold}")
    assert found == gold.strip().replace(",", "")


@pytest.mark.parametrize(
    "line",
    [
        '{"question": "How many?"}',
        '{"question": "How many?", "answer": "42"}',
        '{"question": null, "answer": "#### 42"}',
        '{"question": "How many?", "answer": "#### 4',
        "[]",
    ],
)
def test_a_damaged_line_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^line 2 of .*test\.jsonl .*[^\n]+\Z"):
        read_gsm8k(path)


@pytest.mark.parametrize("name", ["test.jsonl", "test.parquet", "test.json"])
def test_a_file_that_is_not_there_or_not_what_it_says_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(DataError, match=f"there is no file .*{name}"):
        read_gsm8k(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=f"{name} cannot be read as"):
        read_gsm8k(path)


def test_a_document_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="list of records"):
        read_gsm8k(path)


@pytest.mark.skipif(not DATA.is_dir(), reason="no recorded data here; see ADACOMPUTE_DATA")
def test_the_tidy_set_has_the_same_golds_as_ours() -> None:
    make_log_samples = read_questions(DATA / "questions" / "gsm8k-train.parquet")
    [first] = make_log_samples.slice(0, 1).to_pylist()
    assert first["question_id"] == "gsm8k-train/0"
    assert first["gold"] == "72"
    assert make_log_samples.num_rows == 7473
