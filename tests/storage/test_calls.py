from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adacompute.core.errors import DataError
from adacompute.storage import calls
from adacompute.storage.calls import FILES, CallFile, default_state, read_calls, sum_calls

START = {
    "upstream_model": "m",
    "purpose": "vote",
    "started_at": 1.0,
    "max_prompt_tokens": 100,
    "max_completion_tokens": 50,
    "max_cost": 0.5,
}
END = {
    "ended_at": 2.0,
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "cached_tokens": 2,
    "reasoning_tokens": 1,
    "is_estimated": False,
    "cost": 0.1,
}


def test_a_call_that_ended_is_charged_what_it_used(tmp_path: Path) -> None:
    file = CallFile(tmp_path)
    assert file.append({"call": "1", **START})
    assert file.append({"call": "1", **END})
    (call,) = read_calls(tmp_path)
    assert {**call, **END, "upstream_model": "m"} == call
    assert "max_cost" not in call


def test_a_call_of_a_killed_process_is_charged_its_bound_and_flagged(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from adacompute.storage.calls import CallFile\n"
        f"CallFile(Path(sys.argv[1])).append({{'call': '1', **{START}}})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -9
    (call,) = read_calls(tmp_path)
    charged = [call[name] for name in ("prompt_tokens", "completion_tokens", "cost")]
    assert charged == [100, 50, 0.5]
    assert call["is_estimated"]


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    file = CallFile(tmp_path)
    file.append({"call": "1", **START})
    (path,) = tmp_path.glob(FILES)
    path.write_bytes(path.read_bytes() + b'{"call": "2", "star')
    assert [call["call"] for call in read_calls(tmp_path)] == ["1"]


def test_a_call_may_end_in_another_file(tmp_path: Path) -> None:
    file = CallFile(tmp_path, rotate_bytes=10)
    file.append({"call": "1", **START})
    file.append({"call": "1", **END})
    assert len(list(tmp_path.glob(FILES))) == 2
    (call,) = read_calls(tmp_path)
    assert (call["upstream_model"], call["prompt_tokens"]) == ("m", 7)


def test_old_files_are_deleted_by_age_and_size(tmp_path: Path) -> None:
    old = tmp_path / FILES.replace("*", "1-1")
    large = tmp_path / FILES.replace("*", "2-1")
    old.write_bytes(b"{}\n")
    os.utime(old, (0, 0))
    large.write_bytes(b" " * 1000)
    CallFile(tmp_path, keep_bytes=5000).append({"call": "1", **START})
    assert (old.exists(), large.exists()) == (False, True)
    CallFile(tmp_path, keep_bytes=500).append({"call": "2", **START})
    assert not large.exists()


def test_rows_that_a_full_disk_refuses_are_reported_and_the_next_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "REOPEN_S", 0.0)
    file = CallFile(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert file.append({"call": "1", **START})
    (path,) = tmp_path.glob(FILES)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limit[1]))
        assert not file.append({"call": "2", **START})  # a part of the line is written
        assert not file.append({"call": "3", **START})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert file.append({"call": "4", **START})
    assert [call["call"] for call in read_calls(tmp_path)] == ["1", "4"]


def test_a_directory_that_cannot_be_made_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "REOPEN_S", 0.05)
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    file = CallFile(blocked / "calls")
    assert not file.append({"call": "1", **START})
    blocked.unlink()
    assert not file.append({"call": "1", **START})
    time.sleep(0.1)
    assert file.append({"call": "1", **START})


def test_sums_keep_bounds_apart(tmp_path: Path) -> None:
    file = CallFile(tmp_path)
    for number in ("1", "2", "3"):
        file.append({"call": number, **START})
    file.append({"call": "1", **END})
    file.append({"call": "2", **END, "cost": None})
    (total,) = sum_calls(read_calls(tmp_path))
    assert (total["calls"], total["estimated_calls"], total["unpriced_calls"]) == (3, 1, 1)
    assert (total["prompt_tokens"], total["estimated_prompt_tokens"]) == (114, 100)
    assert total["cost"] == pytest.approx(0.6)


def test_a_directory_without_calls_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        list(read_calls(tmp_path))


def test_the_default_state_is_in_the_users_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_state(80) == Path("/s/adacompute/80")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert default_state(80) == Path("/h/.local/state/adacompute/80")
