"""Math program: compares expressions with math-verify, in a process that can be killed.

It reads lines with two expressions and answers whether they are equal. Importing math-verify takes
seconds, so the process that imports it only forks, and its child compares. SymPy, which
math-verify uses, may never return and cannot always be interrupted: the kernel kills a child that
uses too much CPU time, and the next one is ready within milliseconds. CPU time is counted, so that
results do not depend on the load of the machine. It knows nothing of texts and of votes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from adacompute.core.errors import needs_extra

CPU_LIMIT_S = 2.0
"""CPU time that one comparison may take."""

MEMORY_LIMIT_BYTES = 512_000_000
"""Memory that a process may allocate; it needs a sixth of that."""

# A new child has empty caches, which bounds their memory.
_MAX_COMPARISONS = 2000
_ENDED, _REPLACE = 0, 3  # exit codes of a child
_STDIN, _STDOUT = 0, 1

# First comparisons load more: children should have it from the start.
_WARM_UP = ((r"\frac{1}{2}", "0.5"), ("(x+1)^2", "x^2+2x+1"), (r"\{1,2\}", r"\{2,\sqrt{3}\}"))

_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_RELATION = re.compile(r"[=<>(\[]|\\(?:[lg]e|in|cup|cap)")


class Comparer:
    """Compares expressions with math-verify, without any limit of time."""

    def __init__(self) -> None:
        with needs_extra("math"):
            import math_verify

        self._library = math_verify
        self._parse = lru_cache(maxsize=4096)(self._parse_once)
        # Without a handler, Python would print the library's warnings.
        log = logging.getLogger("math_verify")
        if not log.handlers:
            log.addHandler(logging.NullHandler())

    def is_equal(self, left: str, right: str) -> bool:
        """Whether math-verify finds two answers equal."""
        # Sorted, so that the order of the arguments makes no difference.
        one, other = (self._parse(answer) for answer in sorted((left, right)))
        # For equations and sets the result depends on which answer is the reference.
        return self._verify(one, other) or (
            _RELATION.search(left + right) is not None and self._verify(other, one)
        )

    def _parse_once(self, answer: str) -> Any:  # noqa: ANN401 - SymPy's own types
        # Between dollar signs, words would be products of their letters.
        is_plain = "$" in answer or ("\\" not in answer and _PROSE_WORD.search(answer))
        text = answer if is_plain else f"${answer}$"
        return self._library.parse(text, parsing_timeout=None)

    def _verify(self, gold: Any, answer: Any) -> bool:  # noqa: ANN401 - SymPy's own types
        return bool(self._library.verify(gold, answer, timeout_seconds=None))


def main(cpu_limit_s: float = CPU_LIMIT_S) -> None:
    """Serve standard input until it ends; a child that is killed is replaced."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of its input ends it
    comparer = Comparer()
    for left, right in _WARM_UP:
        comparer.is_equal(left, right)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    gc.collect()
    gc.freeze()  # memory that is never collected is never copied for a child
    _write({"ready": True})
    while True:
        child = os.fork()
        if child == 0:
            _compare_lines(comparer, cpu_limit_s)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == _ENDED:
            return
        if code != _REPLACE:
            _write({"equal": None})


def _compare_lines(comparer: Comparer, cpu_limit_s: float) -> None:
    """Answer lines in a child, until there are no more or it is time for a new child."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # it kills, whatever the process is doing
    for _ in range(_MAX_COMPARISONS):
        line = _read_line()
        if not line:
            os._exit(_ENDED)
        pair = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        is_equal = comparer.is_equal(pair["left"], pair["right"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write({"equal": is_equal})
    os._exit(_REPLACE)


def _read_line() -> bytes:
    """Read one line; there is never more to read, because each waits for its answer."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(_STDIN, 1 << 16)
        if not part:
            return b""
        line += part
    return line


def _write(answer: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        os.write(_STDOUT, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(*(float(argument) for argument in sys.argv[1:]))
