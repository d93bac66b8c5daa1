from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.logs.inspect_logs import read_inspect_logs
from adacompute.datasets.logs.lm_eval_logs import read_lm_eval_logs
from adacompute.datasets.rows import QUESTION_SCHEMA
from adacompute.datasets.sources import choose_questions, read_question_source, read_source
from adacompute.graders.grader import grade
from adacompute.graders.numeric import NumericGrader

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("ADACOMPUTE_DATA", ROOT.parent / "shared" / "data"))
LOGS = Path(__file__).parents[1] / "data"
SAMPLE = {"question_id": "q", "question": "1 + 1?", "sample": 0, "answer": "2", "correct": True}
TIDY = {"question_id": "q", "question": "1 + 1?", "gold": "2"}


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_tidy_samples_are_read_in_every_form(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([SAMPLE]), tmp_path / "s.parquet")
    pa.csv.write_csv(pa.Table.from_pylist([SAMPLE]), tmp_path / "s.csv")
    write_lines(tmp_path / "s.jsonl", SAMPLE)
    write_lines(tmp_path / "s.ndjson", SAMPLE)
    tables = [read_source(tmp_path / f"s.{end}") for end in ("parquet", "csv", "jsonl", "ndjson")]
    assert all(table.equals(tables[0]) for table in tables)
    assert tables[0]["answer"].to_pylist() == ["2"]


@pytest.mark.parametrize("name", ["inspect", "inspect/sums.eval", "inspect/choices.json"])
def test_logs_of_inspect_are_known_by_what_they_are(name: str) -> None:
    assert read_source(LOGS / name).equals(read_inspect_logs(LOGS / name))


def test_logs_of_the_harness_are_known_by_what_they_are() -> None:
    whole = read_source(str(LOGS / "lm_eval"))
    assert whole.equals(read_lm_eval_logs(LOGS / "lm_eval"))
    for path in (LOGS / "lm_eval").rglob("samples_*.jsonl"):
        assert read_source(path).equals(read_lm_eval_logs(path))


def test_a_grader_is_used_only_where_the_source_does_not_tell(tmp_path: Path) -> None:
    log = next((LOGS / "lm_eval").rglob("samples_sums_2*.jsonl"))
    grading = partial(grade, NumericGrader())
    assert read_source(log, grade=grading).equals(read_source(log))
    alone = shutil.copy(log, tmp_path)
    with pytest.raises(DataError, match="name a grader"):
        read_source(alone)
    assert read_source(alone, grade=grading).num_rows == 40


@pytest.mark.parametrize("end", ["parquet", "jsonl"])
def test_the_questions_of_tidy_samples_can_be_asked_again(tmp_path: Path, end: str) -> None:
    rows = [
        {**SAMPLE, "gold": "2", "question_id": name, "sample": i} for name in "ba" for i in (1, 0)
    ]
    path = tmp_path / f"s.{end}"
    if end == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_lines(path, *rows)
    asked = read_question_source(path)
    assert asked["question_id"].to_pylist() == ["b", "a"]
    assert asked["gold"].to_pylist() == ["2", "2"]
    assert asked.schema.equals(QUESTION_SCHEMA)


@pytest.mark.parametrize("name", ["notes.txt", "log.json", "table.xlsx", "empty"])
def test_what_is_no_source_is_refused_with_the_forms_that_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "empty":
        path.mkdir()
    else:
        path.write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(DataError, match=r"tidy samples .* Inspect .* lm-evaluation-harness"):
        read_source(path)
    with pytest.raises(DataError, match=r"tidy questions .* samples or of logs"):
        read_question_source(path)


@pytest.mark.parametrize("read", [read_source, read_question_source])
def test_what_is_not_there_is_refused(tmp_path: Path, read: partial[pa.Table]) -> None:
    with pytest.raises(DataError, match=r"there is no file or directory .*nowhere"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [read_source, read_question_source])
@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x.csv", "x.eval"])
def test_what_is_damaged_is_refused_with_the_reason(
    tmp_path: Path, name: str, read: partial[pa.Table]
) -> None:
    path = tmp_path / name
    path.write_bytes(b'{"question_id": "half\xff')
    with pytest.raises(DataError, match=rf"{name} .*(cannot be read|is not UTF-8|no column)"):
        read(path)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".json"])
def test_question_sets_are_known_by_their_first_record(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"test{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist([TIDY]), path)
    elif ending == ".json":
        path.write_text(json.dumps([TIDY], indent=2), encoding="utf-8")
    else:
        write_lines(path, TIDY)
    [found] = read_question_source(path).to_pylist()
    assert (found["question"], found["gold"]) == ("1 + 1?", "2")


def test_a_csv_of_questions_is_known(tmp_path: Path) -> None:
    pa.csv.write_csv(pa.Table.from_pylist([TIDY]), tmp_path / "q.csv")
    assert read_question_source(tmp_path / "q.csv")["gold"].to_pylist() == ["2"]


def test_a_log_gives_the_questions_that_it_asked(tmp_path: Path) -> None:
    table = read_question_source(LOGS / "inspect" / "sums.eval")
    assert table.schema.equals(QUESTION_SCHEMA)
    assert table.num_rows == 10
    assert table["gold"].to_pylist()[:3] == ["13", "9", "6"]
    assert table["difficulty"].to_pylist()[:3] == ["add1", "add1", "sub1"]
    log = next((LOGS / "lm_eval").rglob("samples_sums_2*.jsonl"))
    alone = Path(shutil.copy(log, tmp_path))
    assert read_question_source(alone)["gold"].to_pylist() == table["gold"].to_pylist()


@pytest.mark.skipif(not DATA.is_dir(), reason="no recorded data here; see ADACOMPUTE_DATA")
def test_recorded_data_are_read() -> None:
    for path in sorted((DATA / "questions").glob("*.parquet")):
        assert read_question_source(path).num_rows > 0
    path = DATA / "samples" / "arith110__smollm2-135m.parquet"
    assert read_source(path).num_rows == 110 * 32


def questions(n: int) -> pa.Table:
    return pa.Table.from_pylist([{"question_id": f"q{i}"} for i in range(n)], QUESTION_SCHEMA)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 2**64), st.randoms())
def test_a_choice_depends_on_the_ids_and_the_seed_alone(
    size: int, count: int, seed: int, chance: Random
) -> None:
    table, order = questions(size), list(range(size))
    chance.shuffle(order)
    chosen = choose_questions(table, count, seed=seed)
    assert len(set(chosen["question_id"].to_pylist())) == chosen.num_rows == min(count, size)
    assert chosen.equals(choose_questions(table.take(pa.array(order)), count, seed=seed))
    larger = choose_questions(table, count + 3, seed=seed)
    assert larger.slice(0, chosen.num_rows).equals(chosen)


def test_seeds_choose_differently() -> None:
    choices = {
        tuple(choose_questions(questions(50), 5, seed=s)["question_id"].to_pylist())
        for s in range(9)
    }
    assert len(choices) == 9


def test_a_choice_of_no_questions_is_refused() -> None:
    assert choose_questions(questions(3), seed=0).num_rows == 3
    with pytest.raises(ConfigError, match="1 or more"):
        choose_questions(questions(3), 0, seed=0)


def test_the_documented_lines_write_questions_of_the_hugging_face_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets", reason="the group 'partners' is not installed")
    page = (ROOT / "docs" / "tutorials" / "collect.md").read_text()
    block = page.partition("```python\nfrom datasets import")[2].partition("```")[0]
    rows = [{"question": "2 * 600?", "answer": "It is 1200.\n#### 1,200"}]
    local = datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: local)
    monkeypatch.chdir(tmp_path)
    exec(f"from datasets import{block}", {})  # noqa: S102 - a page of ours
    (found,) = read_question_source(tmp_path / "gsm8k.parquet").to_pylist()
    assert (found["question"], found["gold"]) == ("2 * 600?", "1200")
