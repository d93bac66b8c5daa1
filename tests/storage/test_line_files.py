"""Lines of any number of writers, from a file that loses others meanwhile."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from adacompute.storage.line_files import append_line, remove_lines

MANY = 1_000_000


def test_no_line_is_lost_while_others_are_removed(tmp_path: Path) -> None:
    path, n_lines, n_writers = tmp_path / "lines.jsonl", 200, 4

    def write(writer: int) -> None:
        for number in range(n_lines):
            append_line(path, {"writer": writer, "number": number}, MANY)

    threads = [threading.Thread(target=write, args=(one,)) for one in range(n_writers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        remove_lines(path, lambda line: b'"writer": 0' in line)
    remove_lines(path, lambda line: b'"writer": 0' in line)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    by_writer = [[one["number"] for one in kept if one["writer"] == w] for w in range(n_writers)]
    assert by_writer == [[], *[list(range(n_lines))] * (n_writers - 1)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_lines_are_appended_while_others_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for number in range(3):
        append_line(path, {"number": number}, MANY)
    began, may_end = threading.Event(), threading.Event()

    def is_first(line: bytes) -> bool:
        began.set()
        assert may_end.wait(10)
        return b'"number": 0' in line

    remover = threading.Thread(target=remove_lines, args=(path, is_first))
    remover.start()
    assert began.wait(10)
    writer = threading.Thread(target=append_line, args=(path, {"number": 3}, MANY))
    writer.start()
    writer.join(10)
    is_written = not writer.is_alive()
    may_end.set()
    remover.join(10)
    writer.join(10)
    assert is_written
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_file_that_was_taken_away_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, {"number": 0}, MANY)

    def take_away(_: bytes) -> bool:
        path.rename(tmp_path / "taken.jsonl")
        append_line(path, {"number": 1}, MANY)
        return False

    remove_lines(path, take_away)
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1]
    assert {one.name for one in tmp_path.iterdir()} == {"lines.jsonl", "taken.jsonl"}


def test_a_full_file_takes_no_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, {"id": 1}, 20)
    with pytest.raises(OSError, match=r"lines\.jsonl") as failure:
        append_line(path, {"id": 2, "more": "text"}, 20)
    assert failure.value.errno == errno.ENOSPC
    assert path.read_text() == '{"id": 1}\n'


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="lines"):
        append_line(tmp_path / "lines.jsonl", {"id": 1}, MANY)
    assert not (tmp_path / "other").exists()
