"""Results are read as they were written, or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacompute.storage.result_files import ResultFiles

ARRAYS = {"cost": np.arange(6.0).reshape(2, 3), "is_stepped": np.array(True)}


@pytest.fixture
def files(tmp_path: Path) -> ResultFiles:
    return ResultFiles(tmp_path / "kept", "1")


def only_file(files: ResultFiles) -> Path:
    (path,) = files.directory.iterdir()
    return path


def test_arrays_are_read_as_they_were_written(files: ResultFiles) -> None:
    assert files.read("folds") is None
    files.write("folds", ARRAYS)
    found = files.read("folds")
    assert found is not None
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert files.read("refits") is None


def test_damage_at_any_byte_is_noticed(files: ResultFiles) -> None:
    files.write("folds", ARRAYS)
    path = only_file(files)
    content = path.read_bytes()
    for i in range(0, len(content), 7):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        assert files.read("folds") is None
        path.write_bytes(content[:i])
        assert files.read("folds") is None
    files.write("folds", ARRAYS)
    assert path.read_bytes() == content


def test_results_of_another_version_are_not_read(files: ResultFiles) -> None:
    files.write("folds", ARRAYS)
    newer = replace(files, version="2")
    assert newer.read("folds") is None
    newer.write("folds", ARRAYS)
    assert newer.read("folds") is not None
    assert files.read("folds") is None


def test_objects_are_neither_written_nor_read(files: ResultFiles) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        files.write("folds", {"cost": np.array([object()])})
    files.write("folds", ARRAYS)
    path = only_file(files)
    np.savez(path.with_suffix(".npz"), cost=np.array([{}], dtype=object))
    content = path.with_suffix(".npz").read_bytes()
    path.write_bytes(files._head("folds", content) + b"\n" + content)
    assert files.read("folds") is None


def test_bytes_are_bounded_and_the_oldest_go_first(files: ResultFiles) -> None:
    small = replace(files, max_bytes=10_000)
    for i in range(8):
        small.write(f"{i}", {"cost": np.zeros(200)})
        for path in files.directory.iterdir():
            age = path.stat().st_mtime_ns - 1_000_000_000
            os.utime(path, ns=(age, age))
    assert sum(path.stat().st_size for path in files.directory.iterdir()) <= 10_000
    assert small.read("0") is None
    assert small.read("7") is not None
    small.write("large", {"cost": np.zeros(10_000)})
    assert small.read("large") is None
    assert small.read("7") is not None


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    files = ResultFiles(tmp_path / "kept", "1")
    files.write("folds", ARRAYS)
    assert files.read("folds") is None
