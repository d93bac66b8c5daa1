"""Files of questions: found, counted and read in one order, whatever is in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from adacompute.batch import formats
from adacompute.batch.questions import open_questions, read_blocks
from adacompute.core.errors import ConfigError, DataError


def rows(n: int, first: int = 0) -> list[dict[str, str]]:
    return [
        {"question_id": f"q{i}", "question": f"What is {i} + 1?"} for i in range(first, first + n)
    ]


def write_lines(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def write_parquet(path: Path, content: list[dict[str, Any]], *, group: int = 7) -> Path:
    pq.write_table(pa.Table.from_pylist(content), path, row_group_size=group)
    return path


def read_all(*paths: Path | str, block_size: int = 8, **options: Any) -> list[tuple[str, Any]]:
    source = open_questions([str(path) for path in paths])
    blocks = list(read_blocks(source, block_size=block_size, **options))
    return [pair for block in blocks for pair in zip(block.ids, block.texts, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "a.parquet", rows(30))
    write_lines(tmp_path / "b.jsonl", rows(25, 30))
    write_parquet(tmp_path / "d.parquet", rows(1, 55))
    (tmp_path / "c.jsonl").write_text("")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("no questions\n")
    return tmp_path


def test_files_are_read_in_the_order_of_their_paths(folder: Path) -> None:
    source = open_questions([str(folder)])
    assert [Path(file.path).name for file in source.files] == [
        "a.parquet",
        "b.jsonl",
        "c.jsonl",
        "d.parquet",
    ]
    assert [file.first_position for file in source.files] == [0, 30, 55, 55]
    assert source.n_questions == 56
    assert read_all(folder) == [(row["question_id"], row["question"]) for row in rows(56)]


@pytest.mark.parametrize("block_size", [1, 3, 8, 50, 1000])
@pytest.mark.parametrize(("start", "stop"), [(0, None), (5, 41), (29, 31), (31, 55), (55, 99)])
def test_blocks_end_at_multiples_of_their_size(
    folder: Path, block_size: int, start: int, stop: int | None
) -> None:
    source = open_questions([str(folder)])
    blocks = list(read_blocks(source, block_size=block_size, start=start, stop=stop))
    expected = rows(56)[start:stop]
    assert [one for block in blocks for one in block.ids] == [r["question_id"] for r in expected]
    assert [one for block in blocks for one in block.texts] == [r["question"] for r in expected]
    position = start
    for block in blocks:
        assert block.position == position
        position += len(block)
        assert position % block_size == 0 or block is blocks[-1]
        assert len(block) <= block_size


def test_globs_select_files_and_a_file_named_twice_is_read_once(folder: Path) -> None:
    expected = [row["question_id"] for row in rows(30)] + ["q55"]
    found = read_all(folder / "*.parquet", folder / "a.parquet")
    assert [one for one, _ in found] == expected


def test_globs_without_a_directory_start_in_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert len(read_all(f"{folder.name}/[ad].*")) == 31
    monkeypatch.chdir(folder)
    assert len(read_all("?.jsonl")) == 25


def test_lines_are_read_from_any_row_by_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "INDEX_STEP", 4)
    monkeypatch.setattr("adacompute.batch.questions.INDEX_STEP", 4)
    monkeypatch.setattr(formats, "CHUNK_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + "\n \n".join(json.dumps(row) for row in rows(23)) + "\n\n")
    source = open_questions([str(path)])
    assert source.n_questions == 23
    assert len(source.files[0].starts) == 6
    for start in range(23):
        blocks = read_blocks(source, block_size=5, start=start)
        ids = [one for block in blocks for one in block.ids]
        assert ids == [row["question_id"] for row in rows(23)[start:]]


def test_compressed_lines_are_read(tmp_path: Path) -> None:
    plain = write_lines(tmp_path / "a.jsonl", rows(9)).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain))
    found = read_all(tmp_path / "b.jsonl.gz", start=4)
    assert found == [(row["question_id"], row["question"]) for row in rows(9)[4:]]


def test_a_bad_line_is_a_row_without_a_text(tmp_path: Path) -> None:
    lines = [
        '{"question_id": 7, "question": "seven"}',
        "{broken",
        '{"question": "no id"}',
        '{"question_id": "x", "question": 5}',
        '{"question_id": "y", "question": ""}',
        '{"question_id": "z", "question": "\\ud800"}',
        "[1, 2]",
        '{"question_id": true, "question": "t"}{"question": "u"}',
        '{"question_id": "last", "question": "é"}',
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_all(path) == [
        ("7", "seven"),
        ("1", None),
        ("2", "no id"),
        ("x", None),
        ("y", None),
        ("z", None),
        ("6", None),
        ("7", None),
        ("last", "é"),
    ]


def test_two_objects_on_a_line_are_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a"}{"question": "b"}\n{"question": "c"}\n')
    assert read_all(path) == [("0", None), ("1", "c")]


def test_parquet_rows_without_text_or_id_are_kept(tmp_path: Path) -> None:
    table = pa.table({"question": pa.array(["a", None, ""]), "question_id": pa.array([5, None, 6])})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_all(tmp_path) == [("5", "a"), ("1", None), ("6", None)]
    pq.write_table(table.select(["question"]), tmp_path / "a.parquet")
    assert read_all(tmp_path) == [("0", "a"), ("1", None), ("2", None)]


def test_bytes_that_are_no_text_do_not_stop_the_other_rows(tmp_path: Path) -> None:
    column = pa.array([b"a", b"\xff\xfe", b"c"])
    for kind in (pa.binary(), pa.string(), pa.large_string()):
        damaged = column.view(pa.string()) if kind != pa.binary() else column
        if kind == pa.large_string():
            damaged = column.cast(pa.large_binary()).view(pa.large_string())
        pq.write_table(pa.table({"question": damaged}), tmp_path / "a.parquet")
        assert [text for _, text in read_all(tmp_path)] == ["a", None, "c"]


def test_other_columns_and_types_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"asked": ["a"]}), path)
    with pytest.raises(DataError, match="asked"):
        open_questions([str(path)])
    assert open_questions([str(path)], {"question": "asked"}).n_questions == 1
    pq.write_table(pa.table({"question": [[1]]}), path)
    with pytest.raises(DataError, match="list"):
        read_all(path)


def test_missing_files_and_empty_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_questions([str(tmp_path / "missing")])
    with pytest.raises(DataError, match="no Parquet"):
        open_questions([str(tmp_path)])
    (tmp_path / "a.txt").write_text("?")
    with pytest.raises(DataError, match=r"a\.txt"):
        open_questions([str(tmp_path / "a.txt")])
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no questions"):
        open_questions([str(tmp_path)])
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"a\.parquet"):
        open_questions([str(tmp_path)])


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", rows(10))
    source = open_questions([str(path)])
    write_parquet(path, rows(4))
    with pytest.raises(DataError, match="4 rows"):
        list(read_blocks(source, block_size=4))


def test_sources_have_a_fingerprint(folder: Path) -> None:
    before = open_questions([str(folder)])
    assert open_questions([str(folder)]).fingerprint == before.fingerprint
    write_parquet(folder / "d.parquet", rows(2, 55))
    assert open_questions([str(folder)]).fingerprint != before.fingerprint


def test_addresses_are_opened_by_their_filesystem(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", rows(3))
    assert len(read_all(f"file://{tmp_path}/a.parquet")) == 3
    with pytest.raises(ConfigError, match="nowhere"):
        open_questions(["nowhere://a/b.parquet"])


def test_fsspec_opens_what_pyarrow_cannot() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    with memory.open("/questions/a.jsonl", "wb") as file:
        file.write(b'{"question": "a"}\n{"question": "b"}\n')
    assert read_all("memory://questions/*.jsonl") == [("0", "a"), ("1", "b")]
    assert read_all("memory://questions/a.jsonl") == [("0", "a"), ("1", "b")]


def test_block_sizes_start_at_one(folder: Path) -> None:
    with pytest.raises(ConfigError, match="block_size"):
        read_all(folder, block_size=0)


CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "What is 1 + 1?"},
]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_chats_are_read_as_the_last_message_of_the_user(tmp_path: Path, ending: str) -> None:
    content = [{"id": "a", "messages": CHAT}, {"id": "b", "messages": CHAT[:1]}]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        write_parquet(path, content)
    elif ending == "jsonl":
        write_lines(path, content)
    else:
        texts = [{**row, "messages": json.dumps(row["messages"])} for row in content]
        pa.csv.write_csv(pa.Table.from_pylist(texts), path)
    assert read_all(path) == [("a", "What is 1 + 1?"), ("b", "Hello")]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_files_are_read_with_other_names(tmp_path: Path, name: str) -> None:
    content = b'prompt,n\n"What is 1\n+ 1?",1\n,2\nWhy?,3\n'
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_all(path) == [("0", "What is 1\n+ 1?"), ("1", None), ("2", "Why?")]
    assert read_all(path, start=2) == [("2", "Why?")]
    path.write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        open_questions([str(path)])
