from __future__ import annotations

import copy
import json
import random
import shutil
import zipfile
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.datasets.logs import eval_files
from adacompute.datasets.logs.inspect_logs import find_inspect_logs, read_inspect_logs
from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.graders.grader import grade
from adacompute.graders.numeric import NumericGrader

LOGS = Path(__file__).parents[1] / "data" / "inspect"
DOCUMENT: dict[str, Any] = json.loads((LOGS / "choices.json").read_text(encoding="utf-8"))


def documents(path: Path) -> dict[str, bytes]:
    """Return the documents of an archive, unpacked."""
    with zipfile.ZipFile(path) as archive:
        return {
            entry.filename: eval_files._read_zstandard(archive, entry)
            for entry in archive.infolist()
        }


def write_archive(path: Path, content: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def write_log(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def changed(**changes: Any) -> dict[str, Any]:
    """Return a real log with fields of all its samples changed."""
    document = copy.deepcopy(DOCUMENT)
    for sample in document["samples"]:
        sample.update(copy.deepcopy(changes))
    return document


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_inspect_logs(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_real_archive_gives_ten_questions_four_times() -> None:
    table = read_inspect_logs(LOGS / "sums.eval")
    assert table.schema.equals(SAMPLE_SCHEMA)
    assert table["sample"].to_pylist() == [0, 1, 2, 3] * 10
    assert table["question_id"].to_pylist()[:5] == ["sums/add1-0"] * 4 + ["sums/add1-1"]
    assert set(table["difficulty"].to_pylist()) == {"add1", "sub1", "mul1", "add2", "mul2"}
    assert set(table["model"].to_pylist()) == {"openai-api/local/smollm2-135m"}
    assert set(table["finish_reason"].to_pylist()) == {"stop", "length"}
    first = table.slice(0, 1).to_pylist()[0]
    assert first["question"] == "What is 7 + 6?"
    assert first["gold"] == "13"
    assert first["temperature"] == pytest.approx(0.7)


def test_a_real_archive_agrees_with_what_inspect_says_of_it() -> None:
    table = read_inspect_logs(LOGS / "sums.eval")
    header = json.loads(documents(LOGS / "sums.eval")["header.json"])
    said = header["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    assert sum(table["correct"].to_pylist()) / 40 == said
    usage = header["stats"]["model_usage"]["openai-api/local/smollm2-135m"]
    tokens = ("completion_tokens", "cached_tokens", "prompt_tokens")
    prompts = usage["input_tokens"] + usage["input_tokens_cache_read"]
    expected = [usage["output_tokens"], usage["input_tokens_cache_read"], prompts]
    assert [sum(table[name].to_pylist()) for name in tokens] == expected


def test_answers_agree_with_the_completions() -> None:
    for row in read_inspect_logs(LOGS / "sums.eval").to_pylist():
        if row["answer"] is None:
            assert "= " not in row["completion"]
            assert not row["correct"]
        else:
            assert f"= {row['answer']}" in row["completion"]
            assert row["correct"] == (row["answer"] == row["gold"])
        assert row["completion_chars"] == len(row["completion"])
        assert row["mean_logprob"] < 0
        assert row["latency_s"] > 0


def test_a_real_document_gives_its_choices_and_what_could_not_be_read() -> None:
    table = read_inspect_logs(LOGS / "choices.json")
    rows = table.to_pylist()
    assert rows[0]["question"] == "Which is a colour?\nA) red\nB) dog\nC) table"
    assert table["answer"].to_pylist() == [None, "A", "C", "C", "C", "C", "C", "C"]
    assert table["correct"].to_pylist() == [False, True, False, False, True, True, True, True]


def test_samples_in_chunks_read_as_samples_in_one_piece() -> None:
    assert read_inspect_logs(LOGS / "chunked.eval").equals(read_inspect_logs(LOGS / "choices.json"))


def test_long_texts_in_chunks_are_found(tmp_path: Path) -> None:
    content = documents(LOGS / "chunked.eval")
    for name in [name for name in content if name.endswith("/sample.json")]:
        sample = json.loads(content[name])
        sample["output"]["completion"] = "attachment://1"
        content[name] = json.dumps(sample).encode()
        folder = name.removesuffix("sample.json")
        content[f"{folder}attachments/0.json"] = b'["other"]'
        content[f"{folder}attachments/1.json"] = b'["a long text"]'
        content[f"{folder}metadata.json"] = b'{"difficulty": "hard"}'
    table = read_inspect_logs(write_archive(tmp_path / "chunked.eval", content))
    assert set(table["completion"].to_pylist()) == {"a long text"}
    assert set(table["difficulty"].to_pylist()) == {"hard"}


def test_a_directory_counts_a_sample_once() -> None:
    whole = read_inspect_logs(LOGS)
    parts = [read_inspect_logs(LOGS / name) for name in ("choices.json", "sums.eval")]
    assert whole.num_rows == sum(part.num_rows for part in parts)
    assert set(whole["question_id"].to_pylist()) == {
        name for part in parts for name in part["question_id"].to_pylist()
    }


def test_a_deflated_archive_reads_as_one_by_zstandard(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "sums.eval", documents(LOGS / "sums.eval"))
    assert read_inspect_logs(path).equals(read_inspect_logs(LOGS / "sums.eval"))


def test_a_run_that_was_cut_short_gives_what_it_has(tmp_path: Path) -> None:
    content = documents(LOGS / "sums.eval")
    del content["header.json"]
    for name in [name for name in content if name.endswith("_epoch_4.json")]:
        del content[name]
    path = write_archive(tmp_path / "cut.eval", content)
    assert read_inspect_logs(path).num_rows == 30


def test_a_further_run_adds_samples(tmp_path: Path) -> None:
    shutil.copy(LOGS / "choices.json", tmp_path / "b.json")
    later = copy.deepcopy(DOCUMENT)
    later["eval"]["created"] = "2999-01-01T00:00:00+00:00"
    for number, sample in enumerate(later["samples"]):
        sample["uuid"] = str(number)
    write_log(tmp_path / "a.json", later)
    table = read_inspect_logs(tmp_path)
    assert table["sample"].to_pylist() == [0, 1, 2, 3] * 2 + [4, 5, 6, 7] * 2
    first = read_inspect_logs(LOGS / "choices.json")
    assert table.slice(0, 8).equals(first)


def test_logs_of_several_models_are_refused(tmp_path: Path) -> None:
    shutil.copy(LOGS / "choices.json", tmp_path / "one.json")
    other = changed(uuid=None)
    other["eval"]["model"] = "another"
    write_log(tmp_path / "two.json", other)
    assert "2 models (another, openai-api/local/smollm2-135m)" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("C", True),
        ("I", False),
        ("P", True),
        ("N", False),
        (1, True),
        (0, False),
        (True, True),
        (0.5, True),
        (0.49, False),
        ("yes", True),
        ("No", False),
        ("0.7", True),
    ],
)
def test_scores_become_right_or_wrong(tmp_path: Path, value: object, right: bool) -> None:  # noqa: FBT001
    log = changed(scores={"judge": {"value": value, "answer": "x"}})
    table = read_inspect_logs(write_log(tmp_path / "log.json", log))
    assert set(table["correct"].to_pylist()) == {right}
    assert (
        table["score"].null_count == table.num_rows
    )  # a grade is no signal: no one knows it later


@pytest.mark.parametrize("value", [{"a": 1}, [1, 0], "excellent"])
def test_a_score_that_is_neither_is_refused(tmp_path: Path, value: object) -> None:
    log = changed(scores={"judge": {"value": value, "answer": "x"}})
    assert "the scorer 'judge' gives" in refusal(write_log(tmp_path / "log.json", log))


def test_where_no_answer_is_recorded_the_completion_stands_for_it(tmp_path: Path) -> None:
    log = changed(scores={"judge": {"value": "C"}})
    table = read_inspect_logs(write_log(tmp_path / "log.json", log))
    assert table["answer"].to_pylist() == table["completion"].to_pylist()


def test_samples_that_failed_or_have_no_score_are_left_out(tmp_path: Path) -> None:
    log = changed()
    log["samples"][0] |= {"scores": None, "error": {"message": "timed out"}}
    log["samples"][1]["scores"]["choice"]["value"] = float("nan")
    log["samples"][2]["scores"] = {}
    table = read_inspect_logs(write_log(tmp_path / "log.json", log))
    assert table.num_rows == len(log["samples"]) - 3


def test_a_log_without_scores_needs_a_grader(tmp_path: Path) -> None:
    content = documents(LOGS / "sums.eval")
    for name in [name for name in content if name.startswith("samples/")]:
        sample = json.loads(content[name])
        del sample["scores"]
        content[name] = json.dumps(sample).encode()
    path = write_archive(tmp_path / "sums.eval", content)
    assert "name a grader" in refusal(path)
    table = read_inspect_logs(path, grade=partial(grade, NumericGrader()))
    assert table.num_rows == 40
    assert 0 < sum(table["correct"].to_pylist()) < 40
    assert table["score"].null_count == 40
    gold = pa.array([None] * 40, pa.string())
    assert not table["gold"].equals(pa.chunked_array([gold]))


def test_a_question_that_cannot_be_graded_is_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.json", changed(scores=None, target="no number"))
    with pytest.raises(DataError, match="question 'choices/1': the numeric grader"):
        read_inspect_logs(path, grade=partial(grade, NumericGrader()))


def test_targets_and_parts_of_messages_become_texts(tmp_path: Path) -> None:
    parts = [{"type": "image", "image": "x"}, {"type": "text", "text": "What is it?"}]
    log = changed(input=[{"role": "user", "content": parts}], target=["7", "seven"], choices=None)
    log["samples"][0] |= {"choices": ["a", "b"], "target": ["A", "B"]}
    log["samples"][1]["target"] = []
    log["samples"][2]["input"] = [{"role": "system", "content": "Be kind."}]
    table = read_inspect_logs(write_log(tmp_path / "log.json", log))
    assert table["gold"].to_pylist().count("A, B") == 1
    assert set(table["gold"].to_pylist()) == {"A, B", "7", None}
    assert set(table["question"].to_pylist()) == {
        "What is it?\nA) a\nB) b",
        "What is it?",
        None,
    }


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("name", ["sums.eval", "choices.json"])
def test_a_truncated_log_is_refused(tmp_path: Path, name: str, share: float) -> None:
    whole = (LOGS / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: int(len(whole) * share)])
    assert "Inspect log" in (said := refusal(path)) or "cannot be read as JSON" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "no header.json"),
        ({"header.json": b"{}"}, "it names no task"),
        ({"header.json": b"[]"}, "it names no task"),
        ({"header.json": b'{"eval": {"task": "t"}}'}, "holds no samples"),
        (
            {"header.json": b'{"eval": {"task": "t"}}', "samples/1_epoch_1.json": b"{}"},
            "without an id or an epoch",
        ),
        (
            {"header.json": b'{"eval": {"task": "t"}}', "samples/1_epoch_1.json": b"[]"},
            "without an id or an epoch",
        ),
        (
            {"header.json": b'{"eval": {"task": "t"}}', "samples/1_epoch_1.json": b'{"id": 1'},
            "samples/1_epoch_1.json in .* cannot be read as JSON",
        ),
    ],
)
def test_an_archive_that_is_no_log_is_refused(
    tmp_path: Path, content: dict[str, bytes], said: str
) -> None:
    path = write_archive(tmp_path / "log.eval", content)
    with pytest.raises(DataError, match=said):
        read_inspect_logs(path)
    refusal(path)


def test_a_document_that_claims_to_be_huge_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_files, "MAX_DOCUMENT_BYTES", 1000)
    path = Path(shutil.copy(LOGS / "sums.eval", tmp_path))
    assert "limit of 1000" in refusal(path)


def test_other_files_are_no_logs(tmp_path: Path) -> None:
    write_log(tmp_path / "other.json", {"version": 2})
    assert find_inspect_logs(tmp_path) == []
    assert "holds no Inspect log" in refusal(tmp_path)
    assert "there is no file" in refusal(tmp_path / "none.eval")
    assert "holds no Inspect log" in refusal(tmp_path / "none.json")


def outcome(path: Path) -> str:
    """Return the name of a file that could be read, or the sentence in which it was refused."""
    try:
        read_inspect_logs(path)
    except DataError as error:
        return str(error)
    return str(path)


@given(st.integers(0, 2**32), st.integers(1, 255))
def test_a_flipped_byte_is_read_or_refused(place: int, flip: int) -> None:
    content = bytearray((LOGS / "chunked.eval").read_bytes())
    content[place % len(content)] ^= flip
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log.eval"
        path.write_bytes(content)
        assert str(path) in outcome(path)


def lose_fields(value: Any, chance: random.Random) -> Any:
    """Return a document that lost some of its fields, or has others in their place."""
    if chance.random() < 0.03:
        return chance.choice([None, 7, "text", [], {}, True])
    if isinstance(value, dict):
        kept = (key for key in value if chance.random() < 0.97)
        return {key: lose_fields(value[key], chance) for key in kept}
    if isinstance(value, list):
        return [lose_fields(item, chance) for item in value]
    return value


@given(st.integers(0, 2**32))
def test_a_document_that_lost_fields_is_read_or_refused(seed: int) -> None:
    trimmed = copy.deepcopy(DOCUMENT)
    for sample in trimmed["samples"]:
        sample["events"] = []
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log.eval"
        lost = lose_fields(trimmed, random.Random(seed))
        samples = lost.pop("samples", []) if isinstance(lost, dict) else []
        content = {"header.json": json.dumps(lost).encode()}
        for i, sample in enumerate(samples if isinstance(samples, list) else []):
            content[f"samples/{i}_epoch_1.json"] = json.dumps(sample).encode()
        write_archive(path, content)
        assert str(path) in outcome(path)
