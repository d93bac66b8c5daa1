r"""Command grader: a program of the user's own, asked line by line.

The program is started once, without a shell, and kept. It reads one JSON object per line from its
standard input and answers each with one line on its standard output:

    {"op": "extract", "text": "..."}               ->  {"answer": "..."} or {"answer": null}
    {"op": "equal", "left": "...", "right": "..."} ->  {"equal": true} or {"equal": false}

It must flush after each line. What it prints on standard error is shown when it fails. The grader
knows nothing of what the program does: whether its answers are canonical is up to the program.
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
    from typing import Self

TIMEOUT_S = 30.0
"""How long the program may take over one line."""

_SHOWN = 200
_REMEMBERED = 4 * _SHOWN  # a character has up to four bytes
_MAX_LINE = 16 << 20
_GRACE_S = 2.0


class Command:
    """Asks a program; use it as a context manager, or ``close`` it.

    Requests of several threads wait for each other. After a failure the program is stopped, and
    the next request starts it again.
    """

    def __init__(self, command: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"the grader command {command!r} cannot be split: {error}") from None
        if not self._arguments:
            raise ConfigError("the grader cmd: needs a command, as in cmd:python my_grader.py")
        self.name: str = f"cmd:{command}"
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._program: _Program | None = None

    def extract(self, text: str) -> str | None:
        """Ask the program for the answer in this text."""
        answer = self._ask({"op": "extract", "text": text}, "answer", (str, type(None)))
        return None if answer is None else str(answer)

    def equal(self, left: str, right: str) -> bool:
        """Ask the program whether these answers are the same."""
        return bool(self._ask({"op": "equal", "left": left, "right": right}, "equal", (bool,)))

    def close(self) -> None:
        """Stop the program; safe to call twice."""
        if self._program is not None:
            self._program.stop()
        self._program = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, request: dict[str, str], field: str, kinds: tuple[type, ...]) -> object:
        """Send one request and return the field of the reply, or stop and say what went wrong."""
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                if self._program is None:
                    self._program = _Program(self._arguments)
                return _field(self._program.exchange(line, self._timeout_s), field, kinds)
            except (OSError, ValueError, RecursionError) as error:
                printed = b"" if self._program is None else bytes(self._program.printed)
                shown = printed.decode(errors="replace").strip()[:_SHOWN]
                if self._program is not None:
                    self._program.process.kill()
                self.close()
                said = f"it printed {shown!r}" if shown else "it printed nothing"
                raise GraderError(f"the grader {self.name!r} failed: {error}; {said}") from error


class _Program:
    """A running program and the pipes to it; what it printed last is kept to be shown."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - the user's own program, and no shell
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in pipes if pipe is not None)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe, False)
        self.stop = weakref.finalize(self, _end, self.process)
        self.printed = bytearray()

    def exchange(self, request: bytes, timeout_s: float) -> bytes:
        """Write a line and read one, both at once so that neither side waits for the other."""
        self.printed.clear()
        ends = time.monotonic() + timeout_s
        reply = bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self.stdin, selectors.EVENT_WRITE)
            ready.register(self.stdout, selectors.EVENT_READ)
            ready.register(self.stderr, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                events = ready.select(max(0.0, ends - time.monotonic()))
                if not events:
                    raise TimeoutError(f"no reply within {timeout_s:g} s")
                for fd in (key.fd for key, _ in events):
                    if fd == self.stdin:
                        request = request[self._write(request) :]
                        done = not request
                    else:
                        chunk = self._read(fd)
                        done = chunk == b""
                        if fd == self.stdout:
                            reply += self._ended() if done else chunk or b""
                    if done:
                        ready.unregister(fd)
                if len(reply) > _MAX_LINE:
                    raise ValueError(f"a reply has more than {_MAX_LINE} bytes")
        return bytes(reply)

    def _write(self, request: bytes) -> int:
        """Return how much was written; all of it when the program reads no longer."""
        try:
            return os.write(self.stdin, request)
        except BrokenPipeError:
            return len(request)  # the end of its output will tell

    def _read(self, pipe: int) -> bytes | None:
        """Read what there is, and remember how it begins; None when there is nothing yet."""
        try:
            chunk = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return None
        if len(self.printed) < _REMEMBERED:
            self.printed += chunk[:_REMEMBERED]
        return chunk

    def _ended(self) -> bytes:
        """Say how the program ended, once it has closed its output."""
        self._read(self.stderr)
        try:
            code = self.process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            raise ConnectionError("it closed its standard output") from None
        self._read(self.stderr)
        raise ConnectionError(f"it ended with code {code}")


def _field(reply: bytes, field: str, kinds: tuple[type, ...]) -> object:
    """Return a field of a JSON object, or raise ValueError."""
    value = json.loads(reply)
    if not isinstance(value, dict) or not isinstance(value.get(field, ...), kinds):
        wanted = " or ".join(kind.__name__.removesuffix("Type") for kind in kinds)
        raise ValueError(f"its reply is no object whose {field!r} is {wanted}")  # noqa: TRY004 - one kind of failure
    return value[field]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program: close its input, wait, kill."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
