"""Killed commands: start a command, kill it at a call number, start it again, read its account.

The fake upstream answers calls until its script says that they stall. Then the command cannot go
on, and ``run_until_stalled`` kills it with signal 9: so the same calls are lost in every run. What
the fake served by its own count is compared with what the command says. This module knows nothing
of how either side counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adacompute.cli.main import list_commands
from adacompute.cli.options import Setting
from adacompute.testing.fake_openai import FakeUpstream
from test_support.gateways import process_tree

__all__ = [
    "TIMEOUT_S",
    "Served",
    "count_served",
    "count_stalled",
    "kill_tree",
    "run_command",
    "run_until_stalled",
    "script",
    "start_command",
    "wait_until",
    "wait_until_idle",
]

TIMEOUT_S = 240.0
IDLE_S = 0.2
"""A command that has used no CPU time for so long has nothing left to do."""


@dataclass(frozen=True)
class Served:
    """What an upstream served, by its own count; calls that it refused are not part of it."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


def count_served(fake: FakeUpstream) -> Served:
    """Count what a fake served that records its calls."""
    calls = [call for call in fake.calls() if not call["is_refused"]]
    return Served(
        len(calls),
        sum(call["prompt_tokens"] for call in calls),
        sum(call["completion_tokens"] for call in calls),
    )


def count_stalled(fake: FakeUpstream) -> int:
    """Count the calls that a fake did not answer."""
    return int(fake.stats()["faults"].get("stall", 0))


def script(*parts: tuple[int, str]) -> tuple[str, ...]:
    """Return outcomes of calls by number: so many calls with an outcome, then others.

    >>> script((2, "ok"), (1, "half"))
    ('ok', 'ok', 'half')
    """
    return tuple(outcome for count, outcome in parts for _ in range(count))


def as_words(command: str, options: Iterable[tuple[str, object]]) -> list[str]:
    """Return the arguments that give options, of which some are settings of the command."""
    params = list_commands()[command].params
    settings = {name for one in params if isinstance(one, Setting) for name in one.opts}
    words: list[str] = []
    for name, value in options:
        is_setting = f"--{name}" in settings
        words += ["--config", f"{name}={value}"] if is_setting else [f"--{name}", str(value)]
    return words


def run_command(*arguments: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Run a command to its end; return its exit code and the JSON that it prints."""
    done = subprocess.run(
        _command(arguments),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=TIMEOUT_S,
        check=False,
    )
    if not done.stdout:
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout)


@contextmanager
def start_command(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, and kill it and its children at the end if they still run."""
    with (folder / "errors.txt").open("ab") as errors:
        process = subprocess.Popen(
            _command(arguments), stdout=subprocess.DEVNULL, stderr=errors, cwd=folder
        )
    try:
        yield process
    finally:
        kill_tree(process)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children with signal 9."""
    for pid in process_tree(process.pid) if process.poll() is None else ():
        os.kill(pid, signal.SIGKILL)
    process.wait(TIMEOUT_S)


def run_until_stalled(
    fake: FakeUpstream,
    n_stalled: int,
    *arguments: str,
    folder: Path,
    is_stored: Callable[[], bool] = lambda: True,
) -> None:
    """Run a command until the fake has stalled so many calls since the fake's start; kill it then.

    It is killed when all its answered calls are stored, and it does nothing any more.
    """
    with start_command(*arguments, folder=folder) as process:
        wait_until(lambda: count_stalled(fake) == n_stalled, process)
        wait_until(is_stored, process)
        wait_until_idle(process)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition; AssertionError if the process ends or it takes too long."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the command ended with {process.poll()} before it was killed")
        time.sleep(0.02)


def wait_until_idle(process: subprocess.Popen[bytes]) -> None:
    """Wait until no thread of a process and its children runs or uses CPU time for a while."""
    before, since = "", time.monotonic()
    while time.monotonic() < since + IDLE_S:
        time.sleep(0.02)
        now = "".join(map(_read_threads, process_tree(process.pid)))
        if now != before or "R" in now:
            before, since = now, time.monotonic()


def _read_threads(pid: int) -> str:
    """Return the state and the CPU time of the threads of a process; nothing if it has ended."""
    found = []
    for path in sorted(Path(f"/proc/{pid}/task").glob("*/stat")):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            found.append(f"{fields[0]} {fields[11]} {fields[12]};")
    return "".join(found)


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "adacompute", *arguments]
