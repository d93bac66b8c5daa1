"""Forked commands: command lines in processes of their own that start without importing anything.

One process imports the package and then forks itself for each command, so that a command begins
within milliseconds. It is as real a process as any other: it leads a process group of its own, and
``ForkedCommand.kill`` ends it with signal 9. Waits of a command, as between two attempts of a call,
are shortened to about a hundredth. This module does not know what the commands do.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

STDOUT, STDERR = "stdout.txt", "stderr.txt"
FULL_WAIT_S, SHARE = 0.002, 0.01
"""A wait up to so many seconds is not shortened; of the rest of a longer one, a share is waited."""


@dataclass
class ForkedCommand:
    """A command that was started; standard output and error are files of its folder."""

    pid: int
    folder: Path
    commands: ForkedCommands
    code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the command runs; a signal is a negative code."""
        if self.code is None:
            self.code = self.commands.ask({"poll": self.pid})
        return self.code

    def kill(self) -> None:
        """Kill the process group with signal 9, if the command still runs, and wait for its end."""
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no group of its own yet, or has ended just now
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.wait(10.0)

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code; AssertionError if it takes too long."""
        end = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise AssertionError(f"the command of {self.folder} ran for over {timeout_s:g} s")
            time.sleep(0.005)
        return code

    def said(self) -> dict[str, Any] | None:
        """Return the JSON that the command printed, or None if it printed nothing."""
        text = (self.folder / STDOUT).read_text(encoding="utf-8")
        return json.loads(text) if text else None

    def errors(self) -> str:
        """Return what the command wrote to standard error."""
        return (self.folder / STDERR).read_text(encoding="utf-8")


@dataclass
class ForkedCommands:
    """The process that forks itself, seen from outside."""

    process: subprocess.Popen[str]

    def ask(self, request: Mapping[str, Any]) -> int | None:
        """Send a request and return the number that answers it."""
        to, of = self.process.stdin, self.process.stdout
        assert to is not None
        assert of is not None
        to.write(json.dumps(request) + "\n")
        to.flush()
        answer: int | None = json.loads(of.readline())
        return answer

    def start(self, arguments: Sequence[str], folder: Path) -> ForkedCommand:
        """Start ``adacompute`` with arguments, in a folder."""
        pid = self.ask({"start": list(arguments), "folder": str(folder)})
        assert pid is not None
        return ForkedCommand(pid, folder, self)


@contextmanager
def fork_commands(*, with_ray: bool = False) -> Iterator[ForkedCommands]:
    """Run the process that forks itself, with this environment, while the context is open."""
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "test_support.forked", *(["ray"] if with_ray else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield ForkedCommands(process)
    finally:
        process.communicate(timeout=30)


def serve_requests(requests: IO[str], answers: IO[str]) -> None:
    """Start a process for each request to start one, and say whether one has ended."""
    running: set[int] = set()
    for line in requests:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _be_command(request["start"], Path(request["folder"]))
            running.add(pid)
            answer: int | None = pid
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            running.discard(pid)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for pid in running:  # its starter has ended without waiting for it
        os.killpg(pid, signal.SIGKILL)


def _be_command(arguments: list[str], folder: Path) -> None:
    """Run a command in this process, and end the process."""
    from adacompute.cli.main import cli, run

    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        files = [os.open(os.devnull, os.O_RDONLY)]
        files += [os.open(name, flags, 0o644) for name in (STDOUT, STDERR)]
        for number, file in enumerate(files):
            os.dup2(file, number)
        run(cli, "adacompute", arguments)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # noqa: BLE001 - it must not go on as the process that forks itself
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def shorten_waits() -> None:
    """Shorten the waits of commands, which are long for the sake of real servers."""
    sleep = asyncio.sleep

    async def sleep_less(delay: float, result: Any = None) -> Any:  # noqa: ANN401 - as asyncio's
        return await sleep(min(delay, FULL_WAIT_S + SHARE * max(0.0, delay - FULL_WAIT_S)), result)

    asyncio.sleep = sleep_less


def main() -> None:
    """Import what the commands need, then serve requests from standard input."""
    import aiohttp  # noqa: F401
    import pyarrow.dataset
    import pyarrow.parquet  # noqa: F401
    import tenacity  # noqa: F401

    import adacompute.collection.plan
    import adacompute.stages.batch
    import adacompute.stages.collect  # noqa: F401

    if "ray" in sys.argv[1:]:
        from adacompute.batch.ray.cluster import SETTINGS

        os.environ |= SETTINGS
        import ray.data  # noqa: F401
    shorten_waits()
    gc.collect()
    gc.freeze()
    serve_requests(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
