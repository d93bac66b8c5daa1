"""Recorded files load as they are described, and no wrong file ends in anything but a sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.core.utility import estimate_windows
from adacompute.datasets.rows import QUESTION_SCHEMA, SAMPLE_SCHEMA, read_questions, read_samples
from adacompute.storage.store import encode_samples

ROOT = Path(__file__).parents[2]
DATA = ROOT / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
SAMPLE_FILES = sorted(DATA.glob("samples/**/*.parquet"))
QUESTION_FILES = sorted(DATA.glob("questions/*.parquet"))
recorded = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded samples are not here")

TWO: dict[str, Any] = {
    "question_id": ["a", "a"],
    "sample": [0, 1],
    "answer": ["7", None],
    "correct": [True, False],
}


def write(path: Path, **columns: Any) -> Path:
    """Write two samples with some columns added, changed, or left out (...)."""
    table = {name: column for name, column in {**TWO, **columns}.items() if column is not ...}
    pq.write_table(pa.table(table), path)
    return path


def refusal(path: Path) -> str:
    """Return the one sentence that refuses a file of samples."""
    with pytest.raises(DataError) as caught:
        read_samples(path)
    sentence = str(caught.value)
    assert len(sentence.splitlines()) == 1
    assert str(path) in sentence
    return sentence


@recorded
@pytest.mark.parametrize("path", SAMPLE_FILES, ids=lambda path: path.stem)
def test_every_recorded_file_of_samples_loads(path: Path) -> None:
    table = read_samples(path)
    assert table.schema == SAMPLE_SCHEMA
    found = pq.read_table(path, partitioning=None)
    assert table["question_id"].to_pylist() == found["question_id"].to_pylist()
    assert table["difficulty"].to_pylist() == found["level"].to_pylist()
    counts = encode_samples(table).answers.n_samples
    if path.parent.name != "arms":
        assert int(counts.min()) == int(counts.max())
        assert int(counts.min()) == 8 if path.parent.name == "n8" else int(counts.min()) >= 16


@recorded
def test_there_are_as_many_recorded_files_as_described() -> None:
    single_arm = [path for path in SAMPLE_FILES if path.parent.name != "arms"]
    assert (len(single_arm), len(QUESTION_FILES)) == (42, 9)


@recorded
@pytest.mark.parametrize("path", QUESTION_FILES, ids=lambda path: path.stem)
def test_every_question_set_loads(path: Path) -> None:
    table = read_questions(path)
    assert table.schema == QUESTION_SCHEMA
    assert table.num_rows >= 30
    assert table["question"].null_count == 0
    assert table["gold"].null_count == 0


@recorded
@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("mcqa10x100__gpt-3.5-turbo", (57.4, 59.9, 63.2, 64.8, 65.8)),
        ("arith110__smollm2-135m", (23.8, 24.1, 29.2, 32.7, 35.7)),
        ("svamp141__qwen2.5-coder-1.5b", (65.1, 65.2, 69.9, 74.8, 75.5)),
        ("game24__gpt-4-cot", (4.0, 4.8, 5.6, 6.5, 7.9)),
        ("gpqa-diamond__claude-2.0", (34.7, 34.8, 36.0, 35.9, 36.1)),
        ("n8/amc23__deepseek-r1-distill-qwen-7b", (73.1, 75.3, 84.8, 87.9)),
    ],
)
def test_window_means_are_those_that_the_files_are_described_by(
    name: str, means: tuple[float, ...]
) -> None:
    answers = encode_samples(read_samples(DATA / f"samples/{name}.parquet")).answers
    found = estimate_windows(answers, (1, 2, 4, 8, 16)[: len(means)])
    np.testing.assert_allclose(100 * found.mean(axis=0), means, rtol=0, atol=0.051)


@pytest.mark.parametrize("blank", ["", "  ", "\t\n", "\u00a0"])
def test_a_blank_answer_could_not_be_read(tmp_path: Path, blank: str) -> None:
    table = read_samples(write(tmp_path / "blank.parquet", answer=[" 7", blank]))
    assert table["answer"].to_pylist() == [" 7", None]
    table = read_samples(write(tmp_path / "group.parquet", group=["a", blank]))
    assert table["group"].to_pylist() == ["a", None]


def test_absent_columns_that_may_be_null_are_null(tmp_path: Path) -> None:
    table = read_samples(write(tmp_path / "few.parquet", answer=..., correct=[False, False]))
    absent = set(SAMPLE_SCHEMA.names) - {"question_id", "sample", "correct"}
    assert all(table[name].null_count == 2 for name in absent)


def test_the_characters_of_a_completion_are_counted_where_they_are_not_given(
    tmp_path: Path,
) -> None:
    texts = ["So it is π.", None]
    table = read_samples(write(tmp_path / "texts.parquet", completion=texts))
    assert table.schema == SAMPLE_SCHEMA
    assert table["completion_chars"].to_pylist() == [len("So it is π."), None]
    given = write(tmp_path / "given.parquet", completion=texts, completion_chars=[5, 6])
    assert read_samples(given)["completion_chars"].to_pylist() == [5, 6]


def test_unknown_columns_are_left_out_whatever_they_hold(tmp_path: Path) -> None:
    odd = {"notes": [{"a": 1}, {"a": 2}], "answer.raw": ["x", "y"], "": [1, 2]}
    table = read_samples(write(tmp_path / "odd.parquet", **odd))
    assert table.schema == SAMPLE_SCHEMA
    assert table["answer"].to_pylist() == ["7", None]


def test_level_is_loaded_as_difficulty_and_difficulty_goes_before_it(tmp_path: Path) -> None:
    table = read_samples(write(tmp_path / "level.parquet", level=["hard", "easy"]))
    assert table["difficulty"].to_pylist() == ["hard", "easy"]
    both = write(tmp_path / "both.parquet", level=["hard", "easy"], difficulty=["1", "2"])
    assert read_samples(both)["difficulty"].to_pylist() == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("question_id", pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        ("question_id", pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        ("question_id", pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        ("question_id", pa.array([4, 5]), ["4", "5"]),
        ("sample", pa.array([0, 1], pa.int64()), [0, 1]),
        ("sample", pa.array([0.0, 1.0], pa.float64()), [0, 1]),
        ("sample", pa.array([0, 1], pa.uint8()).dictionary_encode(), [0, 1]),
        ("correct", pa.array([1, 0], pa.int8()), [True, False]),
        ("correct", pa.array([1.0, 0.0]), [True, False]),
        ("correct", pa.array(["true", "false"]), [True, False]),
        ("correct", pa.array([True, False]).dictionary_encode(), [True, False]),
        ("completion_tokens", pa.array([3.0, None]), [3, None]),
        ("completion_tokens", pa.array([3, 4], pa.int64()), [3, 4]),
        ("mean_logprob", pa.array([-0.5, None], pa.float64()), [-0.5, None]),
        ("mean_logprob", pa.array([-1, -2]), [-1.0, -2.0]),
        ("question", pa.nulls(2), [None, None]),
        ("question", pa.array([b"What?", b"How?"]), ["What?", "How?"]),
    ],
)
def test_columns_of_another_type_are_cast(
    tmp_path: Path, name: str, column: Any, expected: list[Any]
) -> None:
    table = read_samples(write(tmp_path / "cast.parquet", **{name: column}))
    assert table.schema == SAMPLE_SCHEMA
    assert table[name].to_pylist() == expected


INVALID = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"question_id": ...}, "no column of questions"),
        ({"correct": ...}, "no column 'correct'"),
        ({"question_id": ["a", None]}, "null in 1 rows"),
        ({"sample": [0, None]}, "null in 1 rows"),
        ({"correct": [True, None]}, "null in 1 rows"),
        ({"correct": ["maybe", "no"]}, "neither true nor false"),
        ({"correct": [0.5, 0.0]}, "0 or 1"),
        ({"correct": [2, 0]}, "0 or 1"),
        ({"correct": [float("nan"), 0.0]}, "0 or 1"),
        ({"sample": [0.5, 1.0]}, "cannot be int32"),
        ({"sample": ["first", "second"]}, "cannot be int32"),
        ({"sample": [0, 2**40]}, "cannot be int32"),
        ({"question": [["a"], ["b"]]}, "cannot be string"),
        ({"question": [{"a": 1}, {"a": 2}]}, "cannot be string"),
        ({"question": [b"a", b"\xff"]}, "UTF8"),
        ({"question": INVALID}, "UTF8"),
        ({"question_id": INVALID}, "UTF8"),
        ({"mean_logprob": ["low", "high"]}, "cannot be float"),
        ({"sample": [0, 0]}, "sample 0 of question 'a' is there 2 times"),
        ({"correct": [True, True]}, "sample 1 of question 'a' is correct but"),
    ],
)
def test_a_file_with_a_wrong_column_is_refused_in_a_sentence_that_says_which(
    tmp_path: Path, columns: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(write(tmp_path / "wrong.parquet", **columns))


def test_the_sentence_names_hostile_ids_without_their_control_characters(tmp_path: Path) -> None:
    ids = ["\x1b[31m\n\u202e", "\x1b[31m\n\u202e"]
    sentence = refusal(write(tmp_path / "hostile.parquet", question_id=ids, sample=[0, 0]))
    assert sentence.isprintable()
    assert r"\x1b[31m\n\u202e" in sentence


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    names = ["question_id", "sample", "answer", "correct", "answer"]
    pq.write_table(pa.table([*map(pa.array, TWO.values()), pa.array(["x", "y"])], names), path)
    assert "2 columns are named 'answer'" in refusal(path)


def test_a_directory_named_like_a_column_adds_no_column(tmp_path: Path) -> None:
    place = tmp_path / "difficulty=hard"
    place.mkdir()
    table = read_samples(write(place / "samples.parquet"))
    assert table["difficulty"].null_count == 2


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (2, 0)])
def test_an_empty_file_is_refused(tmp_path: Path, rows: int, columns: int) -> None:
    path = tmp_path / "empty.parquet"
    pq.write_table(pa.table(TWO).slice(0, rows).select(list(TWO)[:columns]), path)
    assert ("holds no samples" if columns else "no column") in refusal(path)


def test_a_missing_file_a_directory_and_no_bytes_at_all_are_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "missing.parquet")
    assert "there is no file" in refusal(tmp_path)
    nothing = tmp_path / "nothing.parquet"
    nothing.touch()
    assert "cannot be read as Parquet" in refusal(nothing)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", question=["What?", "What?"]).read_bytes()
    cut = tmp_path / "cut.parquet"
    for size in np.linspace(0, len(whole) - 1, 40).astype(int).tolist():
        cut.write_bytes(whole[:size])
        assert "cannot be read as Parquet" in refusal(cut)


@given(data=st.binary(max_size=200), framed=st.booleans())
def test_random_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, *, framed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.parquet"
    path.write_bytes(b"PAR1" + data + b"PAR1" if framed else data)
    assert "cannot be read as Parquet" in refusal(path)


@given(st.data())
def test_a_file_with_flipped_bytes_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.getbasetemp()
    whole = bytearray(write(place / "flipped.parquet", question=["What?", None]).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (place / "flipped.parquet").write_bytes(whole)
    try:
        table = read_samples(place / "flipped.parquet")
    except DataError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - it need not be raised
    else:
        assert table.schema == SAMPLE_SCHEMA
        encode_samples(table)


def test_question_sets_need_an_id_for_every_question(tmp_path: Path) -> None:
    path = tmp_path / "questions.parquet"
    pq.write_table(pa.table({"question_id": ["a", "b"], "level": ["1", "2"]}), path)
    table = read_questions(path)
    assert table.schema == QUESTION_SCHEMA
    assert table["difficulty"].to_pylist() == ["1", "2"]
    pq.write_table(pa.table({"question_id": ["a", "a"]}), path)
    with pytest.raises(DataError, match="question_id"):
        read_questions(path)
    pq.write_table(pa.table({"gold": ["a"]}), path)
    with pytest.raises(DataError, match="no column of questions"):
        read_questions(path)


def test_questions_without_ids_are_known_by_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "questions.parquet"
    pq.write_table(pa.table({"Prompt": ["a?", "b?", "a?"], "label": ["1", "2", "1"]}), path)
    table = read_questions(path)
    assert table["question"].to_pylist() == ["a?", "b?"]
    assert table["gold"].to_pylist() == ["1", "2"]


def test_a_file_of_an_older_version_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    columns = {"question_id": ["a"], "sample": [0], "correct": [True], "answer": ["1"]}
    pq.write_table(pa.table({**columns, "operating_level": ["big"], "shared": [4]}), path)
    with pytest.raises(DataError, match="samples_per_call"):
        read_samples(path)


def test_columns_that_were_not_read_are_named_where_others_were_guessed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "adacompute.datasets.layout")
    table = pa.table({"prompt": ["1 + 1?"], "answer": ["2"], "correct": [True], "ok?": ["yes"]})
    path = tmp_path / "samples.parquet"
    pq.write_table(table, path)
    read_samples(path)
    assert caplog.messages[0].endswith("; not read: ok?")
