"""Program: a process that answers one JSON line with one JSON line, within a deadline.

Expensive graders run in such a process: the user's own for ``cmd:``, ours for ``math``. It is
started when it is first needed. If a reply is late or wrong, the process is killed with everything
that it started, and the next request starts a new one. It knows nothing of what the lines mean.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from adacompute.core.errors import GraderError

_MAX_SHOWN_CHARS = 200
_MAX_KEPT_BYTES = 4 * _MAX_SHOWN_CHARS  # a character has up to four bytes
_MAX_LINE_BYTES = 16 << 20
_EXIT_TIMEOUT_S = 1.0
_LOCK_INTERVAL_S = 0.02


class Program:
    """Starts a process, and starts it again after a failure.

    ``name`` is what errors call it. Requests of several threads run one after the other. With
    ``start_timeout_s`` the program prints a line when it is ready, and has that long to do so.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        timeout_s: float,
        start_timeout_s: float | None = None,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._arguments = list(arguments)
        self._lock = threading.Lock()
        self._process: _Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None if the program is not running."""
        return None if self._process is None else self._process.process.pid

    def start(self) -> None:
        """Start the program, if it is not running; GraderError if it fails."""
        with self._lock, self._killed_on_failure():
            self._running()

    def request(self, line: Mapping[str, str], field: str, types: tuple[type, ...]) -> Any:  # noqa: ANN401 - one of the types
        """Send one object and return a field of the reply; GraderError if the program fails."""
        data = json.dumps(line).encode() + b"\n"
        with self._lock, self._killed_on_failure():
            return _parse_field(self._running().exchange(data, self.timeout_s), field, types)

    def close(self) -> None:
        """Stop the program; a request that another thread waits for fails at once."""
        while not self._lock.acquire(timeout=_LOCK_INTERVAL_S):
            if (running := self._process) is not None:
                running.kill()
        try:
            self._stop(kill=False)
        finally:
            self._lock.release()

    def _running(self) -> _Process:
        """Return the running process, started if necessary."""
        if self._process is None:
            self._process = _Process(self._arguments)
            if self._start_timeout_s is not None:
                self._process.exchange(b"", self._start_timeout_s)
        return self._process

    @contextmanager
    def _killed_on_failure(self) -> Iterator[None]:
        """Kill the process on any failure, and raise GraderError with what it printed."""
        try:
            yield
        except (OSError, ValueError, RecursionError) as error:
            output = b"" if self._process is None else bytes(self._process.output)
            shown = output.decode(errors="replace").strip()[:_MAX_SHOWN_CHARS]
            self._stop(kill=True)
            printed = f"it printed {shown!r}" if shown else "it printed nothing"
            raise GraderError(f"the grader {self.name!r} failed: {error}; {printed}") from error

    def _stop(self, *, kill: bool) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            self._process.stop()
        self._process = None


class _Process:
    """A running process and its pipes; ``output`` is what it printed since the last request."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - the user's own program, and no shell
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in pipes if pipe is not None)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe, False)
        self.stop = weakref.finalize(self, _stop, self.process)
        self.output = bytearray()

    def kill(self) -> None:
        """Kill the process and all that it started."""
        _kill(self.process)

    def exchange(self, request: bytes, timeout_s: float) -> bytes:
        """Write a line and read one, both at the same time so that neither side blocks."""
        self.output.clear()
        deadline = time.monotonic() + timeout_s
        reply = bytearray()
        with selectors.DefaultSelector() as ready:
            if request:
                ready.register(self.stdin, selectors.EVENT_WRITE)
            ready.register(self.stdout, selectors.EVENT_READ)
            ready.register(self.stderr, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                left_s = deadline - time.monotonic()
                events = ready.select(left_s) if left_s > 0 else []
                if not events:
                    raise TimeoutError(f"no reply within {timeout_s:g} s")
                for fd in (key.fd for key, _ in events):
                    if fd == self.stdin:
                        request = request[self._write(request) :]
                        is_done = not request
                    else:
                        chunk = self._read(fd)
                        is_done = chunk == b""
                        if fd == self.stdout:
                            if is_done:
                                self._raise_exit()
                            reply += chunk or b""
                    if is_done:
                        ready.unregister(fd)
                if len(reply) > _MAX_LINE_BYTES:
                    raise ValueError(f"a reply has more than {_MAX_LINE_BYTES} bytes")
        return bytes(reply)

    def _write(self, request: bytes) -> int:
        """Return how many bytes were written; all of them if the program closed its input."""
        try:
            return os.write(self.stdin, request)
        except BrokenPipeError:
            return len(request)  # the end of its output is reported instead

    def _read(self, pipe: int) -> bytes | None:
        """Read the bytes that are available, and keep the first ones; None if there are none."""
        try:
            chunk = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return None
        if len(self.output) < _MAX_KEPT_BYTES:
            self.output += chunk[:_MAX_KEPT_BYTES]
        return chunk

    def _raise_exit(self) -> NoReturn:
        """Raise ConnectionError with the exit code of the program, which closed its output."""
        self._read(self.stderr)
        try:
            code = self.process.wait(timeout=_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ConnectionError("it closed its standard output") from None
        self._read(self.stderr)
        raise ConnectionError(f"it ended with code {code}")


def _parse_field(reply: bytes, field: str, types: tuple[type, ...]) -> object:
    """Return a field of a JSON object, or raise ValueError."""
    value = json.loads(reply)
    if not isinstance(value, dict) or not isinstance(value.get(field, ...), types):
        expected = " or ".join(kind.__name__.removesuffix("Type") for kind in types)
        raise ValueError(  # noqa: TRY004 - all failures of the program are handled alike
            f"its reply must be an object whose {field!r} is {expected}"
        )
    return value[field]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its descendants, which may be in the process group of others."""
    if process.returncode is None:  # not waited for, so its id is not in use again
        for pid in (process.pid, *_find_descendants(process.pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _find_descendants(pid: int) -> list[int]:
    """Return the ids of all processes that a process started, and of those that these started."""
    found: list[int] = []
    with suppress(OSError):  # a process that ends meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                found += [int(child), *_find_descendants(int(child))]
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the program's input, wait, and kill it if it does not exit."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
