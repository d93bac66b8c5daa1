r"""Command grader: a program of the user's own that grades line by line.

The program is started once, without a shell, and keeps running. It reads one JSON object per line
from its standard input and answers each with one line on its standard output:

    {"op": "extract", "text": "..."}               ->  {"answer": "..."} or {"answer": null}
    {"op": "equal", "left": "...", "right": "..."} ->  {"equal": true} or {"equal": false}

It must flush after each line. Its standard error is shown if it fails. The program is responsible
for returning canonical answers.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import threading
import time
import weakref
from typing import TYPE_CHECKING

from adacompute.core.errors import ConfigError, GraderError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn, Self

TIMEOUT_S = 30.0
"""Time limit for the reply to one line."""

_MAX_SHOWN_CHARS = 200
_MAX_KEPT_BYTES = 4 * _MAX_SHOWN_CHARS  # a character has up to four bytes
_MAX_LINE_BYTES = 16 << 20
_EXIT_TIMEOUT_S = 2.0


class CommandGrader:
    """Grades with a program; use it as a context manager, or ``close`` it.

    Requests of several threads run one after the other. After a failure the program is stopped, and
    the next request starts it again.
    """

    def __init__(self, command: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"the grader command {command!r} cannot be parsed: {error}") from None
        if not self._arguments:
            raise ConfigError("the grader cmd: needs a command, such as cmd:python my_grader.py")
        self.name: str = f"cmd:{command}"
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._program: _Program | None = None

    def extract(self, text: str) -> str | None:
        """Return the answer that the program finds in this text."""
        answer = self._request({"op": "extract", "text": text}, "answer", (str, type(None)))
        return None if answer is None else str(answer)

    def equal(self, left: str, right: str) -> bool:
        """Return whether the program finds these answers equal."""
        return bool(self._request({"op": "equal", "left": left, "right": right}, "equal", (bool,)))

    def close(self) -> None:
        """Stop the program; safe to call twice."""
        if self._program is not None:
            self._program.stop()
        self._program = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _request(self, request: dict[str, str], field: str, types: tuple[type, ...]) -> object:
        """Send one request and return a field of the reply; GraderError if the program fails."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                if self._program is None:
                    self._program = _Program(self._arguments)
                return _parse_field(self._program.exchange(line, self._timeout_s), field, types)
            except (OSError, ValueError, RecursionError) as error:
                output = b"" if self._program is None else bytes(self._program.output)
                shown = output.decode(errors="replace").strip()[:_MAX_SHOWN_CHARS]
                if self._program is not None:
                    self._program.process.kill()
                self.close()
                printed = f"it printed {shown!r}" if shown else "it printed nothing"
                raise GraderError(f"the grader {self.name!r} failed: {error}; {printed}") from error


class _Program:
    """A running program and its pipes; ``output`` is what it printed since the last request."""

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

    def exchange(self, request: bytes, timeout_s: float) -> bytes:
        """Write a line and read one, both at the same time so that neither side blocks."""
        self.output.clear()
        deadline = time.monotonic() + timeout_s
        reply = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self.stdin, selectors.EVENT_WRITE)
            ready.register(self.stdout, selectors.EVENT_READ)
            ready.register(self.stderr, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                events = ready.select(max(0.0, deadline - time.monotonic()))
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


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the program's input, wait, and kill it if it does not exit."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
