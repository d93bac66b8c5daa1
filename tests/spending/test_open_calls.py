"""Open calls: what a killed process leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from adacompute.core.errors import DataError
from adacompute.spending.open_calls import OpenCall, OpenCalls


def _open_and_die(path: Path) -> None:
    calls = OpenCalls(path)
    first = calls.begin(OpenCall(1, 5, 0, 0, 40))
    calls.begin(OpenCall(2, 6, 1, 2, 41))
    calls.end(first)
    os.kill(os.getpid(), signal.SIGKILL)


def test_calls_under_way_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "open-calls.bin"
    process = multiprocessing.get_context("spawn").Process(target=_open_and_die, args=(path,))
    process.start()
    process.join()
    calls = OpenCalls(path)
    assert calls.lost == [OpenCall(2, 6, 1, 2, 41)]
    calls.clear_lost()
    calls.close()
    assert OpenCalls(path).lost == []


def test_the_file_grows_with_the_calls_under_way(tmp_path: Path) -> None:
    calls = OpenCalls(tmp_path / "open")
    begun = [OpenCall(i + 1, i, 0, 0, 1) for i in range(5000)]
    places = [calls.begin(one) for one in begun]
    calls.end(places[7])
    calls.close()
    again = OpenCalls(tmp_path / "open")
    assert sorted(again.lost) == [one for one in begun if one.attempt != 8]


def test_a_disk_without_room_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DataError, match=r"open cannot be written: No space left"):
        OpenCalls(tmp_path / "open")
