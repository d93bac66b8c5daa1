from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import hash_text
from adacompute.stages.import_samples import import_samples
from adacompute.storage.decisions import DecisionLog


def logged(place: Path, *questions: str, decision: str = "d", draws: int = 3) -> Path:
    """A gateway's log of one decision a question, without texts, as it is rolled: its last file."""
    log = DecisionLog(place)
    for number, text in enumerate(questions):
        samples = [{"answer": "4"}, {"answer": None}, {"answer": "5"}][:draws]
        name = f"{decision}{number}"
        answered = {"today": True, "incomplete": False, "answers": [0] * draws}
        log.append(
            {"id": name, "time": 0.0, "key": hash_text(text), "samples": samples, **answered}
        )
    log.rotate()
    log.compact()
    return max(place.glob("samples-*.parquet"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.csv"
    path.write_text("question_id,question,gold\nq1,2 + 2?,4.0\nq2,2 + 3?,5\n")
    return path


def test_a_gateways_log_is_graded_by_the_text_that_it_does_not_keep(
    tmp_path: Path, key: Path
) -> None:
    path = logged(tmp_path / "log", "2 + 2?", "2 + 3?", "unknown?")
    found = import_samples(path, tmp_path / "run", grader="numeric", gold=str(key))
    assert (found["questions"], found["samples"], found["correct"]) == (2, 6, 2)
    assert (found["excluded"], found["excluded_samples"]) == (1, 3)
    table = pq.read_table(tmp_path / "run" / "samples.parquet")
    right = dict(zip(table["question"].to_pylist(), table["correct"].to_pylist(), strict=True))
    assert right == {"2 + 2?": False, "2 + 3?": True}  # of each question's last sample


def test_a_key_needs_a_grader_and_a_question_that_it_knows(tmp_path: Path, key: Path) -> None:
    path = logged(tmp_path / "log", "unknown?")
    with pytest.raises(ConfigError, match="--grader"):
        import_samples(path, tmp_path / "run", gold=str(key))
    with pytest.raises(DataError, match="none of the 1 questions"):
        import_samples(path, tmp_path / "run", grader="numeric", gold=str(key))


def test_a_question_without_a_reference_answer_is_left_out(tmp_path: Path) -> None:
    key = tmp_path / "key.csv"
    key.write_text("question_id,question,gold\nq1,2 + 2?,4\nq2,2 + 3?,\n")
    path = logged(tmp_path / "log", "2 + 2?", "2 + 3?")
    found = import_samples(path, tmp_path / "run", grader="numeric", gold=str(key))
    assert (found["questions"], found["excluded"], found["excluded_samples"]) == (1, 1, 3)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adacompute.stages.import_samples.MIN_TODAY", 1)


def test_a_log_with_few_requests_that_were_answered_as_today_is_refused(
    tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "log"
    logged(log, *(f"{n} + 1?" for n in range(99)))
    DecisionLog(log).append({"id": "policy", "time": 0.0, "key": 1, "answers": [0], "samples": []})
    with pytest.raises(DataError, match=r"99 requests .* as today, of 100, and at least 100"):
        import_samples(log, tmp_path / "run", grader="numeric", gold=str(key))
    logged(log, "2 + 2?", decision="last")
    found = import_samples(log, tmp_path / "run", grader="numeric", gold=str(key))
    assert (found["questions"], found["samples"], found["excluded"]) == (1, 3, 99)


@pytest.mark.usefixtures("few")
def test_a_directory_is_read_whole_and_its_samples_are_numbered_over_its_files(
    tmp_path: Path, key: Path
) -> None:
    log = tmp_path / "log"
    logged(log, "2 + 2?", "2 + 3?")
    logged(log, "2 + 3?", decision="later")
    asked: dict[str, Any] = {"grader": "numeric", "gold": str(key)}
    found = import_samples(log, tmp_path / "run", **asked)
    assert (found["questions"], found["samples"], found["excluded"]) == (2, 9, 0)
    table = pq.read_table(tmp_path / "run" / "samples.parquet")
    assert sorted(table["sample"].to_pylist()) == sorted([*range(3), *range(6)])
    assert import_samples(log, tmp_path / "run", **asked) == found
    logged(log, "2 + 2?", decision="last")
    with pytest.raises(DataError, match="another source"):
        import_samples(log, tmp_path / "run", **asked)


def test_a_directory_without_decisions_is_no_log(tmp_path: Path, key: Path) -> None:
    with pytest.raises(DataError, match="no samples in a supported format"):
        import_samples(tmp_path, tmp_path / "run", grader="numeric", gold=str(key))


@pytest.mark.usefixtures("few")
def test_samples_that_nobody_graded_ask_for_a_key(tmp_path: Path) -> None:
    path = logged(tmp_path / "log", "2 + 2?")
    with pytest.raises(DataError, match=r"'correct' is null in 3 rows: .*gold="):
        import_samples(path, tmp_path / "run")
    with pytest.raises(DataError, match="gold="):
        import_samples(path.parent, tmp_path / "run")
    bare = tmp_path / "bare.csv"
    bare.write_text("question_id,sample,answer\nq1,0,4\n")
    with pytest.raises(DataError, match=r"no column 'correct': .*gold="):
        import_samples(bare, tmp_path / "run")


def test_questions_are_found_by_their_id_too(tmp_path: Path, key: Path) -> None:
    rows = [{"question_id": "q1", "sample": 0, "answer": "4"}]
    schema = pa.schema(
        {
            "question_id": pa.string(),
            "sample": pa.int32(),
            "answer": pa.string(),
            "correct": pa.bool_(),
        }
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "s.parquet")
    found = import_samples(
        tmp_path / "s.parquet", tmp_path / "run", grader="numeric", gold=str(key)
    )
    assert found["correct"] == 1


def test_another_key_grades_again(tmp_path: Path, key: Path) -> None:
    path = logged(tmp_path / "log", "2 + 2?")
    before = import_samples(path, tmp_path / "run", grader="numeric", gold=str(key))
    key.write_text("question_id,question,gold\nq1,2 + 2?,9\n")
    after = import_samples(path, tmp_path / "other", grader="numeric", gold=str(key))
    assert (before["correct"], after["correct"]) == (1, 0)
    with pytest.raises(DataError, match="another source"):
        import_samples(path, tmp_path / "run", grader="numeric", gold=str(key))


@pytest.mark.parametrize("correct", [{}, {"correct": None}])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_samples_that_hold_their_reference_answers_need_no_key(
    tmp_path: Path, correct: dict[str, None], ending: str
) -> None:
    answers = {"q1": ("4", "4.0", "5"), "q2": ("", "5", "six")}
    gold = {"q1": "4", "q2": "5"}
    rows = [
        {"question_id": name, "sample": i, "gold": gold[name], "answer": answer, **correct}
        for name, drawn in answers.items()
        for i, answer in enumerate(drawn)
    ]
    rows.append({**rows[0], "question_id": "q3", "gold": None})
    path = tmp_path / f"bare.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        cells = [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
        lines = [",".join(line) for line in cells]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    found = import_samples(path, tmp_path / "run", grader="numeric")
    assert (found["questions"], found["samples"], found["correct"]) == (2, 6, 3)
    assert (found["unparsed"], found["excluded"], found["excluded_samples"]) == (2, 1, 1)
    assert import_samples(path, tmp_path / "run", grader="numeric") == found
    with pytest.raises(DataError, match=r"grader= .* column 'gold' .*gold="):
        import_samples(path, tmp_path / "other")


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_of_another_format_is_refused(
    tmp_path: Path,
    key: Path,
    whole: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    log = tmp_path / "log"
    path = logged(log, "2 + 2?")
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    with pytest.raises(DataError, match="format 1"):
        import_samples(log if whole else path, tmp_path / "run", grader="numeric", gold=str(key))


@pytest.mark.usefixtures("few")
def test_a_gateways_log_can_be_imported_without_grades(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logged(log, "2 + 2?", "2 + 3?")
    logged(log, "2 + 3?", decision="later")
    with pytest.raises(DataError, match="fit SOURCE --today N"):
        import_samples(log, tmp_path / "run", grader="numeric")
    found = import_samples(log, tmp_path / "run", grader="numeric", allow_ungraded=True)
    assert (found["graded"], found["correct"], found["unparsed"]) == (False, None, 3)
    assert (found["questions"], found["samples"], found["max_samples"]) == (2, 9, 6)
    table = pq.read_table(tmp_path / "run" / "samples.parquet")
    assert table["correct"].null_count == 9
    assert set(table["answer"].to_pylist()) == {"4", "5", None}


def test_samples_with_grades_keep_them_where_none_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    rows: list[dict[str, Any]] = [{"question_id": "q", "sample": 0, "answer": "4", "correct": True}]
    path.write_text(json.dumps(rows[0]) + "\n")
    found = import_samples(path, tmp_path / "run", allow_ungraded=True)
    assert found["correct"] == 1
    assert "graded" not in found
    rows.append({"question_id": "q", "sample": 1, "answer": "5"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"'correct' is null in 1 rows"):
        import_samples(path, tmp_path / "other", allow_ungraded=True)
