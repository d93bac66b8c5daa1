"""Runs keep what finished stages made, and strings become numbers that do not depend on order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED
from adacompute.core.errors import DataError
from adacompute.core.types import hash_strings
from adacompute.datasets.rows import SAMPLE_SCHEMA as SCHEMA
from adacompute.storage import store
from adacompute.storage.regular_files import write_atomically
from adacompute.storage.store import (
    SAMPLES,
    Run,
    SampleSet,
    encode_samples,
)

Rows = list[dict[str, Any]]


def tidy(rows: Rows) -> pa.Table:
    """Return samples as the reader would; what a row lacks is null."""
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def sample(name: str, number: int, answer: str | None, **more: Any) -> dict[str, Any]:
    return {
        "question_id": name,
        "sample": number,
        "answer": answer,
        "correct": answer == "7",
        **more,
    }


FEW = [sample("a", 0, "7"), sample("a", 1, None), sample("b", 0, "3")]


def finish(run: Run, stage: str, name: str, content: pa.Table, **more: Any) -> None:
    arguments, inputs = more.get("arguments", {}), more.get("inputs", {})
    run.finish(stage, arguments=arguments, inputs=inputs, outputs={name: content}, result={"n": 1})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    finish(made, "import", SAMPLES, tidy(FEW))
    return made


def test_artifacts_are_read_as_written(run: Run) -> None:
    assert run.recorded_samples().equals(tidy(FEW))
    assert run.samples().equals(tidy(FEW))
    manifest = run.manifest("import")
    assert manifest is not None
    assert manifest.outputs == run.hashes([SAMPLES, "absent.parquet"])


def test_find_finished_matches_arguments_and_inputs(run: Run) -> None:
    inputs = run.hashes([SAMPLES])
    finish(run, "estimate", "utility.parquet", tidy(FEW), arguments={"k": (1, 2)}, inputs=inputs)
    found = run.find_finished("estimate", {"k": [1, 2]}, inputs)
    assert found is not None
    assert found.result == {"n": 1}
    assert run.find_finished("estimate", {"k": [1, 3]}, inputs) is None
    assert run.find_finished("estimate", {"k": [1, 2]}, {}) is None
    assert run.find_finished("estimate", {"k": [1, 2]}, {SAMPLES: "other"}) is None
    assert run.find_finished("solve", {"k": [1, 2]}, inputs) is None


def test_find_finished_rejects_missing_or_altered_artifacts(run: Run) -> None:
    assert run.find_finished("import", {}, {}) is not None
    path = run.file(SAMPLES)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert run.find_finished("import", {}, {}) is None
    path.unlink()
    assert run.find_finished("import", {}, {}) is None
    path.write_bytes(whole)
    assert run.find_finished("import", {}, {}) is not None


def test_the_manifest_is_written_after_all_artifacts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def note(path: Path, data: bytes) -> None:
        written.append(path.name)
        write_atomically(path, data)

    monkeypatch.setattr(store, "write_atomically", note)
    monkeypatch.setattr(store, "write_manifest", lambda path, _: written.append(path.name))
    outputs = {"one.parquet": tidy(FEW), "two.json": {"a": 1}}
    run.finish("stage", arguments={}, inputs={}, outputs=outputs, result={})
    assert written == ["one.parquet", "two.json", "stage.manifest.json"]


def crash(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_crash_during_a_rerun_leaves_the_stage_unfinished(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "write_manifest", crash)
    with pytest.raises(KeyboardInterrupt):
        finish(run, "import", SAMPLES, tidy(FEW[:2]))
    assert run.find_finished("import", {}, {}) is None
    with pytest.raises(DataError, match="altered"):
        run.samples()


def test_a_missing_run_and_a_file_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no samples.parquet: first run 'adacompute fit"):
        Run(tmp_path / "nowhere").samples()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"is a file, not a run: first 'adacompute fit"):
        Run(tmp_path / "file").samples()


def test_an_altered_artifact_is_rejected_in_one_sentence(run: Run) -> None:
    path = run.file(SAMPLES)
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError) as caught:
            run.samples()
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_an_artifact_that_was_never_a_table_is_rejected_in_one_sentence(run: Run) -> None:
    run.finish("import", arguments={}, inputs={}, outputs={SAMPLES: {"no": "table"}}, result={})
    with pytest.raises(DataError, match=r"cannot be read \(.*\): run 'adacompute fit .*' again$"):
        run.samples()


def test_equal_tables_are_written_as_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        finish(Run(tmp_path / name), "import", SAMPLES, tidy(FEW))
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["import.manifest.json", SAMPLES]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


TABLES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c", "\u202e", "a\n", ""]), st.integers(-2, 9)),
    st.tuples(st.sampled_from([None, "", "7", "8", "9"]), st.sampled_from([None, "t", "u", "a"])),
    min_size=1,
    max_size=25,
).flatmap(lambda cells: st.permutations(list(cells.items())))


def reference(rows: Rows) -> dict[str, list[tuple[int, int, bool]]]:
    """Number the answers of each question in plain words: (sample, class, right)."""
    questions: dict[str, Rows] = {}
    for row in rows:
        questions.setdefault(row["question_id"], []).append(row)
    numbered = {}
    for name, own in questions.items():
        own.sort(key=lambda row: row["sample"])
        seen: dict[str, int] = {}
        numbered[name] = [
            (
                row["sample"],
                UNPARSED if row["answer"] is None else seen.setdefault(row["answer"], len(seen)),
                row["correct"],
            )
            for row in own
        ]
    return numbered


def as_lists(found: SampleSet) -> dict[str, list[tuple[int, int, bool]]]:
    numbers = np.asarray(found.columns["sample"])[found.order]
    answers = found.answers
    parts = zip(numbers.tolist(), answers.answer.tolist(), answers.correct.tolist(), strict=True)
    flat, ends = list(parts), answers.offsets.tolist()
    return {name: flat[a:b] for name, a, b in zip(found.id, ends[:-1], ends[1:], strict=True)}


@given(TABLES)
def test_encoding_agrees_with_a_plain_implementation(
    cells: list[tuple[tuple[str, int], tuple[str | None, str | None]]],
) -> None:
    rows = [sample(q, n, answer, question=text) for (q, n), (answer, text) in cells]
    found = encode_samples(tidy(rows))
    expected = reference(rows)
    assert found.id == list(expected)
    assert as_lists(found) == expected


@given(TABLES, st.randoms())
def test_keys_groups_and_samples_do_not_depend_on_the_order_of_rows(
    cells: list[tuple[tuple[str, int], tuple[str | None, str | None]]], chance: Any
) -> None:
    texts = {q: text for (q, _), (_, text) in cells}
    rows = [sample(q, n, answer, question=texts[q]) for (q, n), (answer, _) in cells]
    found = encode_samples(tidy(rows))
    chance.shuffle(rows)
    again = encode_samples(tidy(rows))
    for column in ("key", "group", "text"):
        before = dict(zip(found.id, getattr(found, column), strict=True))
        assert dict(zip(again.id, getattr(again, column), strict=True)) == before
    assert as_lists(again) == as_lists(found)


@given(
    cells=TABLES,
    arm=st.sampled_from([None, "small"]),
    model=st.sampled_from([None, "m"]),
)
def test_one_arm_is_encoded_as_samples_without_arms(
    cells: list[tuple[tuple[str, int], tuple[str | None, str | None]]],
    arm: str | None,
    model: str | None,
) -> None:
    plain = [sample(q, n, answer, question=text) for (q, n), (answer, text) in cells]
    rows = [{**row, "arm": arm, "model": model} for row in plain]
    found = encode_samples(tidy(rows))
    assert as_lists(found) == reference(plain)
    assert found.order.tolist() == encode_samples(tidy(plain)).order.tolist()
    assert found.arms == (arm or model or "default",)
    assert found.arm.tolist() == [0] * len(rows)


ARMS = [
    sample("a", 1, "7", arm="big"),
    sample("a", 0, "8", model="small"),
    sample("b", 0, "7"),
    sample("a", 0, "7", arm="big", model="small"),
    sample("a", 1, "7", model="small"),
    sample("a", 2, None, model="small"),
]


def test_copies_of_a_text_share_a_group_and_questions_without_text_share_none() -> None:
    rows = [
        sample("a", 0, "7", question="What?"),
        sample("b", 0, "7", question="What?"),
        sample("c", 0, "7", question="Who?"),
        sample("d", 0, "7"),
        sample("e", 0, "7"),
    ]
    group = encode_samples(tidy(rows)).group
    assert group[0] == group[1]
    assert len(set(group.tolist())) == 4


def test_a_recorded_group_takes_the_place_of_the_text() -> None:
    rows = [
        sample("a", 0, "7", question="Where?", group="x"),
        sample("b", 0, "7", question="Why?", group="x"),
        sample("c", 0, "7", question="where"),
        sample("d", 0, "7", question="Where? "),
        sample("a", 1, "7", question="Where?", group="x"),
    ]
    found = encode_samples(tidy(rows))
    assert found.group_name == ["x", "x", None, None]
    assert found.group[0] == found.group[1]
    assert found.group[2] == found.group[3]
    assert found.n_groups == 2
    part = encode_samples(tidy([rows[1], rows[3]]))
    assert part.group_name == ["x", None]
    assert found.find_seen(part).tolist() == [True, True, True, True]
    assert part.find_seen(encode_samples(tidy([rows[0]]))).tolist() == [True, False]
    assert encode_samples(tidy(rows).drop_columns("group")).n_groups == 2


@pytest.mark.parametrize(("one", "other"), [("x", "y"), ("x", None), (None, "x")])
def test_samples_of_a_question_that_disagree_about_the_group_are_refused(
    one: str | None, other: str | None
) -> None:
    rows = [sample("a", 0, "7"), sample("b", 0, "7", group=one), sample("b", 1, "7", group=other)]
    message = f"question 'b' has samples with the groups {one!r} and {other!r}: give all"
    with pytest.raises(DataError, match=message):
        encode_samples(tidy(rows))


def test_the_text_of_a_question_is_that_of_its_first_sample() -> None:
    rows = [
        sample("a", 1, "8", question="second", difficulty="hard"),
        sample("a", 0, "7", question="first", difficulty="easy"),
    ]
    found = encode_samples(tidy(rows))
    assert (found.text, found.difficulty) == (["first"], ["easy"])


@given(st.lists(st.text(st.characters(), max_size=4), unique=True, max_size=6))
def test_lone_surrogates_are_hashed(values: list[str]) -> None:
    keys = hash_strings(values)
    assert len(set(keys.tolist())) == len(values)
    assert hash_strings(values[::-1]).tolist() == keys.tolist()[::-1]
    assert hash_strings(["\ud800"])[0] != hash_strings(["\udfff"])[0]
