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
Execute = Callable[..., Any]
Population = Callable[..., Rows]
Write = Callable[[Path, Rows], Path]


EVALUATE = ("--budgets", "1.5,2", "--levels", "1,2", "--policies", "fixed,mixture,oracle")


def fit(source: Path, out: Path) -> tuple[str, ...]:
    """Return the words of a command that fits a policy."""
    return ("fit", str(source), "--budget", "1", "--out", str(out), "--config", "policy=mixture")


def test_file_in_place_of_a_directory_is_refused(call: Call, source: Path) -> None:
    for out in (source, source / "bundle"):
        assert str(source) in call(*fit(source, out)).refused()


def test_file_name_that_is_too_long_is_refused(call: Call, source: Path, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300)
    assert "File name too long" in call(*fit(source, long)).refused()
    assert "File name too long" in call("solve", long, "--budget", "1").refused()
    assert "File name too long" in call("evaluate", long).refused()


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


def test_ascii_terminal_gets_ascii(run: Path, execute: Execute) -> None:
    called = execute("solve", run, "--budget", "1.5", PYTHONIOENCODING="ascii")
    assert (called.code, called.err) == (0, "")
    assert called.out.isascii()
    assert "bound" in called.out
    helped = execute("evaluate", "--help", PYTHONIOENCODING="ascii")
    assert (helped.code, helped.err) == (0, "")


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


@pytest.mark.parametrize("questions", [1, 2])
def test_one_or_two_questions_work_until_evaluation(
    call: Call, tmp_path: Path, questions: int, population: Population, write_samples: Write
) -> None:
    run = tmp_path / "run"
    import_samples(write_samples(tmp_path / "few.parquet", population(questions)), run)
    assert call("solve", run, "--budget", "1.5").code == 0
    assert f"{questions} independent questions are too few" in call("evaluate", run).refused()


@pytest.mark.parametrize("answer", ["7", None])
def test_all_correct_and_all_unparsed_samples_work(
    call: Call, tmp_path: Path, answer: str | None, population: Population, write_samples: Write
) -> None:
    rows = [{**row, "answer": answer, "correct": answer == "7"} for row in population()]
    source, run = write_samples(tmp_path / "alike.parquet", rows), tmp_path / "run"
    import_samples(source, run)
    assert call("solve", source, "--budget", "1.5", "--json").document["cost"] == 1.0
    scored = call("evaluate", run, *EVALUATE, "--json").document["rows"]
    assert {row["accuracy"] for row in scored} == {float(answer == "7")}
    assert f"{100 * (answer == '7'):.1f} %" in call("evaluate", run, *EVALUATE).out


def test_duplicate_samples_are_refused(
    call: Call, tmp_path: Path, population: Population, write_samples: Write
) -> None:
    rows = population()
    source = write_samples(tmp_path / "twice.parquet", [*rows, rows[5]])
    sentence = call("solve", source, "--budget", "1").refused()
    assert "sample 1 of question 'q1' is there 2 times" in sentence
