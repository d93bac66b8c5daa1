"""A manifest says that a stage finished, and nothing else says so."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.storage.manifest import (
    FORMAT,
    Manifest,
    hash_bytes,
    hash_file,
    read_manifest,
    write_manifest,
)
from adacompute.storage.regular_files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = Manifest(
    stage="estimate",
    arguments={"levels": [1, 2], "note": "\u202e\ud800"},
    inputs={"samples.parquet": "0f"},
    outputs={"utility.parquet": "a1"},
    result={"questions": 3, "share": 0.1},
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run" / "estimate.manifest.json"
    assert read_manifest(path) is None
    write_manifest(path, WHOLE)
    assert read_manifest(path) == WHOLE


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "3",
        "[" * 100_000,
        f'{{"format": {FORMAT}}}',
        json.dumps({**asdict(WHOLE), "more": 1}),
        json.dumps({**asdict(WHOLE), "outputs": []}),
        json.dumps({**asdict(WHOLE), "inputs": {"a": 1}}),
        json.dumps({**asdict(WHOLE), "arguments": None}),
        json.dumps({**asdict(WHOLE), "result": [1]}),
    ],
)
def test_a_damaged_manifest_is_rejected_with_what_to_do(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "estimate.manifest.json"
    path.write_text(damage)
    with pytest.raises(DataError, match=r"is damaged: remove it to run its stage again$"):
        read_manifest(path)


@given(PLAIN)
def test_any_json_is_a_manifest_or_is_rejected(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.manifest.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError):
        read_manifest(path)
    path.write_text(json.dumps({**asdict(WHOLE), "result": {"any": content}}))
    found = read_manifest(path)
    assert found is not None
    assert found.result == {"any": content}


def test_bytes_that_are_no_text_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "estimate.manifest.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="damaged"):
        read_manifest(path)


@pytest.mark.parametrize("version", [0, FORMAT + 1, "1", None])
def test_another_format_is_rejected_with_both_versions(tmp_path: Path, version: object) -> None:
    path = tmp_path / "estimate.manifest.json"
    path.write_text(json.dumps({**asdict(WHOLE), "format": version, "new": "field"}))
    with pytest.raises(DataError, match=f"format {version!r}.* {FORMAT}"):
        read_manifest(path)


@given(st.binary(max_size=300))
def test_bytes_hash_as_a_file_of_them_does(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "hashed"
    path.write_bytes(data)
    assert hash_file(path) == hash_bytes(data)
    assert hash_bytes(data + b"\0") != hash_bytes(data)


@pytest.mark.parametrize("broken", ["fsync", "fdopen"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "artifact"
    write_atomically(path, b"old")
    opened = os.fdopen

    def full(*arguments: Any) -> Any:
        if broken == "fdopen":
            opened(*arguments).close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "artifact"
    write_atomically(path, b"old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_can_be_read_by_others(tmp_path: Path) -> None:
    write_atomically(tmp_path / "artifact", b"new")
    assert (tmp_path / "artifact").stat().st_mode & 0o777 == 0o644
