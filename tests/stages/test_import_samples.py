"""Imports count what they import and refuse what does not fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.stages.import_samples import import_samples
from adacompute.storage.store import Run

Rows = list[dict[str, Any]]
DATA = Path(__file__).parents[2] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
ARMS = DATA / "samples" / "arms"
recorded_arms = pytest.mark.skipif(
    not ARMS.is_dir(), reason="recorded samples of several arms are not there: ADACOMPUTE_DATA"
)


def artifacts(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


def test_import_counts_questions_and_samples(source: Path, tmp_path: Path) -> None:
    result = import_samples(source, tmp_path / "run", model="m", grader="numeric")
    assert result == {
        "questions": 24,
        "independent_questions": 24,
        "samples": 192,
        "min_samples": 8,
        "max_samples": 8,
        "without_text": 0,
        "unparsed": 18,
        "correct": 96,
        "model": "m",
        "grader": "numeric",
        "arms": [
            {
                "arm": "default",
                "questions": 24,
                "samples": 192,
                "min_samples": 8,
                "max_samples": 8,
                "unparsed": 18,
            }
        ],
    }


def test_samples_of_another_source_are_refused(
    run: Path, rows: Rows, write: Callable[[Path, Rows], Path], tmp_path: Path
) -> None:
    before = artifacts(run)
    other = write(tmp_path / "other.parquet", rows[:-1])
    with pytest.raises(DataError, match="another source"):
        import_samples(other, run)
    assert artifacts(run) == before


def test_equal_answers_with_different_grades_are_refused_with_the_question(tmp_path: Path) -> None:
    rows = {
        "question_id": ["a", "a", "b", "b"],
        "question": ["A?", "A?", "B?", "B?"],
        "sample": [0, 1, 0, 1],
        "answer": ["1", "2", "7", "7"],
        "correct": [True, False, True, False],
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    with pytest.raises(DataError, match="'b'"):
        import_samples(tmp_path / "samples.parquet", tmp_path / "run")


def test_a_grader_that_finds_no_answer_at_all_is_refused(tmp_path: Path) -> None:
    rows = {
        "question_id": ["a", "a"],
        "sample": [0, 1],
        "gold": ["1", "1"],
        "said": ["It is 1", "It is 2"],
    }
    pq.write_table(pa.table(rows), tmp_path / "samples.parquet")
    with pytest.raises(DataError, match="completion"):
        import_samples(tmp_path / "samples.parquet", tmp_path / "run", grader="numeric")


AnswersOf = Mapping[str, Sequence[str | None]]


def arm_file(path: Path, answers: AnswersOf, **columns: Any) -> Path:
    """Write samples of one arm, whose gold answers are ``gold``."""
    rows = [
        {"question_id": name, "sample": i, "answer": answer, **columns}
        for name, own in answers.items()
        for i, answer in enumerate(own)
    ]
    gold = columns.get("gold", "5")
    rows = [{**row, "gold": gold, "correct": row["answer"] == gold} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def two_arms(tmp_path: Path) -> dict[str, Path]:
    """Return the files of two arms with different questions."""
    low: AnswersOf = {"a": ["5", "6", None], "b": ["5"]}
    high = {"a": ["005", "6"], "c": ["6", "6"]}
    return {
        "low": arm_file(tmp_path / "low.parquet", low),
        "high": arm_file(tmp_path / "high.parquet", high),
    }


def test_files_of_several_arms_are_imported_with_all_questions(
    two_arms: dict[str, Path], tmp_path: Path
) -> None:
    result = import_samples(None, tmp_path / "run", arms=two_arms)
    assert (result["questions"], result["samples"]) == (3, 8)
    assert [tuple(arm.values()) for arm in result["arms"]] == [
        ("low", 2, 4, 1, 3, 1),
        ("high", 2, 4, 2, 2, 0),
    ]
    recorded = Run(tmp_path / "run").encoded_samples()
    assert recorded.arms == ("low", "high")
    assert recorded.arm.tolist() == [0, 0, 0, 1, 1, 0, 1, 1]
    assert recorded.answers.answer.tolist() == [0, 1, -1, 2, 1, 0, 0, 0]


def test_answers_with_different_grades_in_different_arms_are_refused(tmp_path: Path) -> None:
    low = arm_file(tmp_path / "low.parquet", {"a": ["5"]})
    high = arm_file(tmp_path / "high.parquet", {"a": ["5"]}, gold="6")
    with pytest.raises(DataError, match="'a'"):
        import_samples(None, tmp_path / "run", arms={"low": low, "high": high})
    assert not (tmp_path / "run").exists()


def test_a_grader_pools_answers_of_several_arms(tmp_path: Path) -> None:
    low = arm_file(tmp_path / "low.parquet", {"a": ["5", "6"]}, gold="005")
    high = arm_file(tmp_path / "high.parquet", {"a": ["005", "5.0"]}, gold="005")
    run = tmp_path / "run"
    result = import_samples(None, run, arms={"low": low, "high": high}, grader="numeric")
    assert result["correct"] == 3
    assert Run(run).encoded_samples().answers.answer.tolist() == [0, 1, 0, 0]
    assert Run(run).samples()["answer"].to_pylist() == ["5", "6", "5", "5"]


def test_grades_stay_where_there_is_no_gold_answer(tmp_path: Path) -> None:
    rows = {"question_id": ["a"] * 3, "sample": [0, 0, 1], "arm": ["x", "y", "y"]}
    columns = {"answer": ["5", "005", "7"], "correct": [True, True, False]}
    pq.write_table(pa.table({**rows, **columns}), tmp_path / "samples.parquet")
    result = import_samples(tmp_path / "samples.parquet", tmp_path / "run", grader="numeric")
    assert [arm["arm"] for arm in result["arms"]] == ["x", "y"]
    assert result["correct"] == 2
    assert Run(tmp_path / "run").encoded_samples().answers.answer.tolist() == [0, 0, 1]


def test_ungraded_arms_are_graded_by_the_gold_answer_of_the_question(tmp_path: Path) -> None:
    rows = {"question_id": ["a"] * 4, "sample": [0, 1, 0, 1], "arm": ["x", "x", "y", "y"]}
    columns = {"answer": ["A", "B", "A", "B"], "gold": ["A", "A", "B", "B"]}
    pq.write_table(pa.table({**rows, **columns}), tmp_path / "samples.parquet")
    run = tmp_path / "run"
    import_samples(tmp_path / "samples.parquet", run, grader="exact")
    assert Run(run).samples()["correct"].to_pylist() == [True, False, True, False]


def test_samples_come_from_a_source_or_from_arms(
    source: Path, two_arms: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        import_samples(source, tmp_path / "run", arms=two_arms)
    with pytest.raises(ConfigError):
        import_samples(None, tmp_path / "run")


@recorded_arms
def test_recorded_integers_pool_across_arms(tmp_path: Path) -> None:
    names = ("low", "medium", "high")
    arms = {name: ARMS / f"otis-mock-aime__gpt-5.2-2025-12-11@{name}.parquet" for name in names}
    result = import_samples(None, tmp_path / "run", arms=arms, grader="numeric")
    assert [arm["samples"] for arm in result["arms"]] == [360, 360, 360]
    assert {arm["questions"] for arm in result["arms"]} == {45}
    before = sum(sum(pq.read_table(path)["correct"].to_pylist()) for path in arms.values())
    assert result["correct"] == before
    recorded = Run(tmp_path / "run").encoded_samples()
    assert recorded.columns["reasoning_tokens"].null_count == 0
    assert recorded.columns["prompt_tokens"].null_count == 0
    assert recorded.columns["latency_s"].null_count == 0
    padded = [
        i
        for i, row in enumerate(recorded.answers.offsets[:-1])
        if recorded.columns["gold"][int(recorded.order[row])].as_py().startswith("0")
    ]
    assert padded
    for i in padded:
        own = slice(*recorded.answers.offsets[i : i + 2].tolist())
        is_correct = recorded.answers.correct[own]
        assert len(set(recorded.answers.answer[own][is_correct].tolist())) == 1
        assert len(set(recorded.arm[own][is_correct].tolist())) > 1


@recorded_arms
def test_recorded_log_probabilities_are_kept(tmp_path: Path) -> None:
    arms = {
        name: ARMS / f"svamp144__qwen2.5-coder-0.5b@{name}.parquet" for name in ("short", "cot")
    }
    import_samples(None, tmp_path / "run", arms=arms, grader="numeric")
    samples = Run(tmp_path / "run").samples()
    for name in ("min_logprob_window", "answer_logprob", "finish_reason", "mean_logprob"):
        files = [pq.read_table(path)[name].to_pylist() for path in arms.values()]
        assert samples[name].to_pylist() == files[0] + files[1]
