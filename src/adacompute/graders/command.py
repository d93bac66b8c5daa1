r"""Command grader: a program of the user's own that grades line by line.

The program is started once, without a shell, and keeps running. It reads one JSON object per line
from its standard input and answers each with one line on its standard output:

    {"op": "extract", "text": "..."}               ->  {"answer": "..."} or {"answer": null}
    {"op": "equal", "left": "...", "right": "..."} ->  {"equal": true} or {"equal": false}

It must flush after each line. Its standard error is shown if it fails. The program is responsible
for returning canonical answers. If a reply is late, it is killed with all that it started.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from adacompute.core.errors import ConfigError
from adacompute.graders.program import Program

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

TIMEOUT_S = 30.0
"""Time limit for the reply to one line."""


class CommandGrader:
    """Grades with a program; use it as a context manager, or ``close`` it.

    Requests of several threads run one after the other. After a failure the program is stopped, and
    the next request starts it again.
    """

    def __init__(self, command: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"the grader command {command!r} cannot be parsed: {error}") from None
        if not arguments:
            raise ConfigError("the grader cmd: needs a command, such as cmd:python my_grader.py")
        self.name: str = f"cmd:{command}"
        self._program = Program(self.name, arguments, timeout_s=timeout_s)

    def extract(self, text: str) -> str | None:
        """Return the answer that the program finds in this text."""
        request = {"op": "extract", "text": text}
        answer = self._program.request(request, "answer", (str, type(None)))
        return None if answer is None else str(answer)

    def equal(self, left: str, right: str) -> bool:
        """Return whether the program finds these answers equal."""
        request = {"op": "equal", "left": left, "right": right}
        return bool(self._program.request(request, "equal", (bool,)))

    def close(self) -> None:
        """Stop the program; safe to call twice."""
        self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
