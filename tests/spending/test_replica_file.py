"""Replica files: rows that survive a killed process, and locks that keep two processes apart."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.spending.caps.accounts import Entry
from adacompute.spending.caps.counters import MAX_LIMIT, MAX_NAME_BYTES, Counter
from adacompute.spending.caps.replica_file import MIN_ROWS, ROW_BYTES, ReplicaFile

WRITER = """
import sys, time
from pathlib import Path
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.replica_file import ReplicaFile

file = ReplicaFile.open(Path(sys.argv[1]))
row = file.add(Counter("a", "tokens", 100, 50.5))
row.set_granted(60)
row.set_returned(5)
row.set_used(30)
row.set_spent(10)
file.save_copies({"cap/a": "1", "cap/b": "2", "gone": "3"})
file.save_copies({"cap/b": '"é"', "gone": None, "never": None})
print(file.replica, flush=True)
time.sleep(60)
"""


def counter(name: str = "a", limit: int = 100) -> Counter:
    return Counter(name, "tokens", limit, 50.5)


def killed_writer(directory: Path) -> str:
    """Write a row in another process, kill it, and return the name of its replica."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        with opened(directory) as other:
            assert other.path.name == "replica-1"
        process.send_signal(signal.SIGKILL)
    return name


class opened:  # noqa: N801 - used as a function
    def __init__(self, directory: Path, boot_id: str | None = None) -> None:
        self.file = ReplicaFile.open(directory, boot_id=boot_id)

    def __enter__(self) -> ReplicaFile:
        return self.file

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_what_a_killed_process_used_counts_as_spent(tmp_path: Path) -> None:
    name = killed_writer(tmp_path)
    with opened(tmp_path) as file:
        assert (file.path.name, file.replica) == ("replica-0", name)
        row = file.rows["a"]
        assert row.counter == counter()
        assert row.entry == Entry(60, 5, 30)
        assert row.used == 30


def test_after_a_crash_of_the_machine_all_that_was_held_counts_as_used(tmp_path: Path) -> None:
    name = killed_writer(tmp_path)
    with opened(tmp_path, boot_id="another") as file:
        row = file.rows["a"]
        assert (file.replica, row.is_stale, row.used) == (name, True, 55)
        row.set_held_spent(returned=7)  # the register knows of a return that was not synced
        assert (row.entry, row.used) == (Entry(60, 7, 53), 53)
    with opened(tmp_path, boot_id="another") as file:
        assert file.rows["a"].entry == Entry(60, 7, 53)
        assert not file.rows["a"].is_stale


def test_a_second_crash_before_the_register_answered_changes_nothing(tmp_path: Path) -> None:
    killed_writer(tmp_path)
    for boot_id in ("another", "a third"):
        with opened(tmp_path, boot_id=boot_id) as file:
            assert file.rows["a"].used == 55
    with opened(tmp_path, boot_id="a third") as file:
        assert file.rows["a"].entry == Entry(60, 5, 55)


def test_a_file_that_is_used_is_not_opened_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adacompute.spending.caps.replica_file.MAX_FILES", 2)
    with opened(tmp_path) as first, opened(tmp_path) as second:
        assert (first.path.name, second.path.name) == ("replica-0", "replica-1")
        assert first.replica != second.replica
        assert (first.is_first, second.is_first) == (True, False)
        with pytest.raises(DataError):
            ReplicaFile.open(tmp_path)
    with opened(tmp_path) as again:
        assert (again.replica, again.is_first) == (first.replica, False)


def test_rows_are_kept_when_the_file_grows_and_reused_when_they_are_removed(tmp_path: Path) -> None:
    names = [f"ä{i}" for i in range(3 * MIN_ROWS)]
    with opened(tmp_path) as file:
        for i, name in enumerate(names):
            file.add(counter(name)).set_used(0 if i == 1 else i)
        file.rows[names[1]].set_used(1)  # it was added before the file grew
        size = file.path.stat().st_size
        removed = file.rows[names[0]]
        file.remove(removed)
        added = file.add(Counter("ü" * (MAX_NAME_BYTES // 2), "money", MAX_LIMIT))
        removed.set_used(99)
        assert added.used == 0
        assert file.path.stat().st_size == size
    with opened(tmp_path) as file:
        assert {n: r.used for n, r in file.rows.items() if n in names} == {
            name: i for i, name in enumerate(names) if i
        }
        (long,) = (row for name, row in file.rows.items() if name not in names)
        assert (long.counter.ends_at, long.counter.unit, long.used) == (math.inf, "money", 0)
        assert long.counter.limit == MAX_LIMIT


def test_rows_of_a_closed_file_are_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        row = file.add(counter())
        row.set_used(3)
    row.set_used(7)
    with opened(tmp_path) as file:
        assert file.rows["a"].used == 3


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with opened(tmp_path) as file:
        for i in range(MIN_ROWS - 1):
            file.add(counter(str(i))).set_used(i)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", fail)
            with pytest.raises(OSError, match="space"):
                file.add(counter("more"))
        assert "more" not in file.rows
        file.rows["7"].set_used(70)
        assert file.add(counter("more")).used == 0
    with opened(tmp_path) as file:
        assert (file.rows["7"].used, len(file.rows)) == (70, MIN_ROWS)


def test_disk_space_is_allocated_in_advance(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        status = file.path.stat()
        assert status.st_blocks * 512 >= status.st_size == MIN_ROWS * ROW_BYTES


def test_copies_survive_a_killed_process(tmp_path: Path) -> None:
    killed_writer(tmp_path)
    with opened(tmp_path) as file:
        assert file.read_copies() == {"cap/a": "1", "cap/b": '"é"'}
        file.save_copies({"cap/a": None})
    with opened(tmp_path) as file, opened(tmp_path) as other:
        assert (file.read_copies(), other.read_copies()) == ({"cap/b": '"é"'}, {})


def test_copies_that_cannot_be_read_are_dropped(tmp_path: Path) -> None:
    copies = {f"cap/{n}": json.dumps({"entries": "x" * 300 * n}) for n in range(20)}
    path = tmp_path / "replica-0.sqlite"
    with opened(tmp_path) as file:
        file.add(counter()).set_used(3)
        file.save_copies(copies)
    intact = path.read_bytes()
    pages = range(0, len(intact), 4096)
    damaged = [intact[:at] + bytes(4096) + intact[at + 4096 :] for at in pages]
    for content in [b"no database" * 1000, *damaged]:
        path.write_bytes(content)
        with opened(tmp_path) as file:
            assert file.rows["a"].used == 3
            assert file.read_copies() == {}
            file.save_copies(copies)
        with opened(tmp_path) as file:
            assert file.read_copies() == copies


FULL = """
import resource, sys
from pathlib import Path
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.replica_file import ReplicaFile

file = ReplicaFile.open(Path(sys.argv[1]))
row = file.add(Counter("a", "tokens", 100))
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), most))
file.read_copies()
try:
    file.save_copies({"cap/a": "x" * 200_000})
except OSError:
    row.set_used(7)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    file.save_copies({"cap/a": "1" * 200_000 + ".0"})
    sys.exit(17)
"""
"""A process whose files may have only so many bytes for a while."""


@pytest.mark.parametrize("n_bytes", [1_000, 100_000])
def test_copies_for_which_there_is_no_space_can_be_saved_later(
    tmp_path: Path, n_bytes: int
) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), str(n_bytes)]
    assert subprocess.run(command, check=False).returncode == 17
    with opened(tmp_path) as file:
        assert file.read_copies() == {"cap/a": "1" * 200_000 + ".0"}
        assert file.rows["a"].used == 7


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    content = b"other" + bytes(MIN_ROWS * ROW_BYTES)
    (tmp_path / "replica-0").write_bytes(content)
    with pytest.raises(DataError):
        ReplicaFile.open(tmp_path)
    assert (tmp_path / "replica-0").read_bytes() == content


def test_a_row_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.add(counter())
    data = bytearray((tmp_path / "replica-0").read_bytes())
    data[ROW_BYTES + 6 * 8] = 9  # a unit that does not exist
    (tmp_path / "replica-0").write_bytes(data)
    with pytest.raises(DataError):
        ReplicaFile.open(tmp_path)


@pytest.mark.parametrize(("name", "limit"), [("", 1), ("x" * 441, 1), ("a", -1), ("a", 2**63)])
def test_counters_that_do_not_fit_a_row_are_refused(name: str, limit: int) -> None:
    with pytest.raises(ConfigError):
        Counter(name, "samples", limit)
