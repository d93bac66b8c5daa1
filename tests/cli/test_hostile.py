"""Hostile data, terminals and file systems end in one sentence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adacompute.stages import solve as solve_stage
from adacompute.stages.import_samples import import_samples
from adacompute.storage import store

Rows = list[dict[str, Any]]
Call = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]


def fit(source: Path, out: Path) -> tuple[str, ...]:
    """Return the words of a command that fits a policy."""
    return ("fit", str(source), "--budget", "1", "--out", str(out), "--config", "policy=mixture")


def test_file_in_place_of_a_directory_is_refused(call: Call, source: Path) -> None:
    for out in (source, source / "bundle"):
        assert str(source) in call(*fit(source, out)).refused()


def test_full_disk_is_reported_with_the_file_name(
    call: Call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = tmp_path / "new" / "run"
    monkeypatch.setattr(os, "fsync", full)
    sentence = call(*fit(source, tmp_path / "new")).refused()
    assert sentence == f"adacompute: {place / 'samples.parquet'}: No space left on device"
    assert list(place.iterdir()) == []


def test_missing_permission_is_reported(
    call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(path: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(store, "hash_file", forbid)
    sentence = call("evaluate", run).refused()
    assert sentence == f"adacompute: {run / 'samples.parquet'}: Permission denied"


def test_memory_error_is_reported(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(solve_stage, "find_cutoff", exhaust)
    assert "more memory than there is" in call("solve", run, "--budget", "1").refused()


def test_damaged_run_names_what_fixes_it(call: Call, run: Path, source: Path) -> None:
    (run / "import.manifest.json").write_text("{")
    assert "remove it to run its stage again" in call("evaluate", run).refused()
    (run / "import.manifest.json").unlink()
    assert "run 'adacompute fit SOURCE" in call("evaluate", run).refused()
    import_samples(source, run)
    assert call("solve", run, "--budget", "1").code == 0


HOSTILE = "\x1b[31mred\x1b[0m\r\n\0\u202eevil\u2066\x9b"


def test_control_characters_in_data_are_escaped(
    call: Call, tmp_path: Path, population: Population, write_samples: Write
) -> None:
    rows = population(question=HOSTILE, gold="\x1b\nevil")
    rows = [{**row, "question_id": f"{HOSTILE}{row['question_id']}"} for row in rows]
    source = write_samples(tmp_path / "hostile.parquet", rows)
    solve = ("solve", source, "--budget", "1.6")
    said = call(*solve)
    assert (said.code, said.err) == (0, "")
    printed = said.out
    assert all(line.isprintable() for line in printed.splitlines())
    assert r"\x1b[31mred" in printed
    rows = [{name: row[name] for name in row if name != "correct"} for row in rows]
    ungraded = write_samples(tmp_path / "ungraded.parquet", rows)
    failed = call("solve", ungraded, "--budget", "1.6", "--grader", "numeric").refused()
    assert r"\x1b[31mred" in failed
    assert r"\x1b\nevil" in failed
    split = call(*solve, "--json").document["split"]
    assert split[0]["question"].startswith(HOSTILE)


def test_control_characters_in_arguments_are_escaped(call: Call, run: Path, source: Path) -> None:
    hostile, budget = HOSTILE.replace("\0", ""), ("--budget", "1")
    assert r"\x1b[31mred" in call("solve", source, *budget, "--grader", hostile).refused(2)
    assert r"\x1b[31mred" in call("solve", hostile, *budget).refused()
    assert r"\x1b[31mred" in call("evaluate", run, "--policies", hostile).refused(2)
    assert "\x1b" not in call("solve", run, *budget, "--levels", hostile).misused()
    assert "\x1b" not in call(hostile).misused()


@pytest.mark.slow
def test_markup_in_a_name_does_not_break_the_progress(run: Path) -> None:
    ours, its = os.openpty()
    arguments = ["--policies", "[/bold]"]
    done = subprocess.run(
        [sys.executable, "-m", "adacompute", "evaluate", str(run), *arguments],
        stdout=subprocess.PIPE,
        stderr=its,
        check=False,
    )
    os.close(its)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "there is no policy '[/bold]'" in said.replace("\r\n", " ")
    assert "Traceback" not in said


def test_questions_of_one_megabyte_are_evaluated(
    call: Call, tmp_path: Path, population: Population, write_samples: Write
) -> None:
    rows = population(samples=4)
    for row in rows:
        row["question"] = f"{row['question_id']} " + "word 1.5 " * 120_000
    run = tmp_path / "run"
    import_samples(write_samples(tmp_path / "large.parquet", rows), run)
    options = ("--budgets", "1", "--levels", "1,2", "--policies", "longest-first")
    assert call("evaluate", run, *options, "--json").document["questions"] == 12


def test_duplicate_samples_are_refused(
    call: Call, tmp_path: Path, population: Population, write_samples: Write
) -> None:
    rows = population()
    source = write_samples(tmp_path / "twice.parquet", [*rows, rows[5]])
    sentence = call("solve", source, "--budget", "1").refused()
    assert "sample 1 of question 'q1' is there 2 times" in sentence
