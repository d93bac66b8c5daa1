r"""Math grader: answers that are LaTeX or plain expressions, compared as mathematics.

The answer is what the last ``\boxed{}`` holds, else what is announced ("the answer is", "####"),
else the whole text when it is short enough to be an answer, else the last formula, else the last
number. It is tidied lightly; two answers are equal if they are spelled alike or if math-verify,
which only this module imports, finds them equal.

math-verify works by SymPy, which can take for ever. A time-out needs a signal, which only the main
thread can receive: there it is set, in other threads not. So an answer that is long or deeply
nested, or holds towers of powers, large exponents or factorials, sums, integrals or binomials, is
compared by its spelling alone, wherever it runs. The grader knows nothing of the question: (1, 2)
is a point, an interval or a pair.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import needs_extra
from adacompute.graders.completion import (
    MAX_NUMBER,
    NUMBER,
    boxes,
    formula,
    last_match,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ANSWER = 400
"""Longer answers cannot be read."""

MAX_PARSED = 150
"""Longer answers are compared by their spelling alone."""

# Tidying shortens an answer, but not that much, and takes quadratic time at worst.
_MAX_UNTIDIED = 4 * MAX_ANSWER
_TIMEOUT_S = 3.0
_RING_AGAIN_S = 0.1
_MAX_PROSE_WORDS = 5
_MAX_ROUNDS = 10

_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_UNIT = re.compile(rf"(?<=[0-9}}])\s*{_TEXT.pattern}(?:\s*\^\s*(?:[0-9]|\{{[0-9]\}}))?\s*$")
_DEGREE = re.compile(r"\s*(?:\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|°)")
_SPACING = re.compile(
    r"(?<!\\)\\[,!;:]|(?<!\\)\\(?= )|\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])"
)
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SPACE = re.compile(r"(?<![A-Za-z0-9])\s+|\s+(?![A-Za-z0-9])")
_WRAPPED = (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_WORDS = re.compile(r"[A-Za-z][A-Za-z ]+")
_RELATION = re.compile(r"[=<>(\[]|\\(?:[lg]e|in|cup|cap)")
_WHOLE = re.compile(r"[-+]?[0-9]+")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")

# What SymPy may not finish in a moment: x^{y^z}, 2^{100000}, (a^{100})^{100}, (x+y)^{60}, 5000!,
# (3!)!, and what asks for summing, integrating or counting.
_WILD = re.compile(
    r"\^\s*\{?[^{}^]*\^|\^\s*\{?[-+\s(]*[0-9][0-9,]{3}|[)}]\s*\^\s*\{?[-+\s]*[0-9]{3}"
    r"|[A-Za-z][^()]*\)\s*\^\s*\{?[0-9]{2}|\*\*|[0-9]{30}|[eE][-+]?[0-9]{3}"
    r"|[0-9]{3}\s*!|[)}!]\s*!|\\(?:sum|prod|i{1,3}nt|oint|lim|binom|choose)(?![A-Za-z])|(?:\|[^|]*){7}"
)
_MAX_DEPTH = 8


class Math:
    """Reads an expression and compares it by math-verify; needs the extra ``math``."""

    name: str = "math"

    def __init__(self) -> None:
        with needs_extra("math"):
            import math_verify

        self._library = math_verify
        self._parse = lru_cache(maxsize=4096)(self._parse_once)
        # Without a handler of its own its warnings would be printed, even if nobody listens.
        log = logging.getLogger("math_verify")
        if not log.handlers:
            log.addHandler(logging.NullHandler())

    def extract(self, text: str) -> str | None:
        r"""Read the final expression, tidied.

        >>> Math().extract(r"So $x = 2$, and the area is \boxed{\dfrac{1}{2}}.")
        '\\frac{1}{2}'
        """
        answer = text
        # What was read may itself announce an answer, so read until nothing changes.
        for _ in range(_MAX_ROUNDS):
            found = _read(answer)
            if found is None or found == answer:
                return found
            answer = found
        return None

    def equal(self, left: str, right: str) -> bool:
        """Whether two answers are spelled alike or mean the same."""
        if left == right:
            return True
        if _WHOLE.fullmatch(left) and _WHOLE.fullmatch(right):
            return int(left) == int(right)
        if _WORDS.fullmatch(left) and _WORDS.fullmatch(right):
            return left.casefold() == right.casefold()
        return not _wild(left) and not _wild(right) and self._means(left, right)

    def _means(self, left: str, right: str) -> bool:
        """Whether math-verify finds two answers equal."""
        # Sorted, so that the order of the arguments makes no difference.
        one, other = (self._parse(answer) for answer in sorted((left, right)))
        # What it makes of equations and sets depends on which is the reference.
        return self._verify(one, other) or (
            _RELATION.search(left + right) is not None and self._verify(other, one)
        )

    def _parse_once(self, answer: str) -> Any:  # noqa: ANN401 - SymPy's own types
        # Between dollar signs words would be products of their letters.
        plain = "$" in answer or ("\\" not in answer and _PROSE_WORD.search(answer))
        text = answer if plain else f"${answer}$"
        try:
            with _time_limit(_TIMEOUT_S):
                return self._library.parse(text, parsing_timeout=None)
        except _TimeUp:
            return []

    def _verify(self, gold: Any, answer: Any) -> bool:  # noqa: ANN401 - SymPy's own types
        try:
            with _time_limit(_TIMEOUT_S):
                return bool(self._library.verify(gold, answer, timeout_seconds=None))
        except _TimeUp:
            return False


class _TimeUp(BaseException):
    """Raised by the alarm; no Exception, because the libraries catch those."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``_TimeUp`` in the block after so many seconds of work, if this is the main thread.

    math-verify's own alarm rings once, and SymPy has places where what it raises is lost; this one
    rings until it is heard. It counts the time of the processor, so that verdicts do not depend on
    how busy the machine is. An alarm that was set before is set again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise _TimeUp

    handler = signal.signal(signal.SIGVTALRM, ring)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _RING_AGAIN_S)
    try:
        yield
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                signal.signal(signal.SIGVTALRM, handler)
                break
            except _TimeUp:  # it rang just now, and must not ring once more
                continue
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)


def _wild(answer: str) -> bool:
    """Whether an answer could keep SymPy busy for ever."""
    if len(answer) > MAX_PARSED or _WILD.search(answer):
        return True
    depth = deepest = 0
    for character in answer:
        depth += (character in "({[") - (character in ")}]")
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH


def _read(text: str) -> str | None:
    """Find the answer once, and tidy it."""
    found = (
        next((claim.text for claim in reversed(boxes(text))), None)
        or next((said for claim in reversed(statements(text)) if (said := _said(claim.text))), None)
        or (text if _is_bare(text) else None)
        or _formula(text)
        or _number(last_match(NUMBER, text))
    )
    if not found or len(found) > _MAX_UNTIDIED:
        return None
    tidied = _tidy(found)
    return tidied if 0 < len(tidied) <= MAX_ANSWER else None


def _is_bare(text: str) -> bool:
    """Whether a text is short and wordless enough to be an answer as it is."""
    stripped = text.strip()
    return (
        len(stripped) <= MAX_ANSWER
        and "\n" not in stripped
        and len(_PROSE_WORD.findall(stripped)) <= _MAX_PROSE_WORDS
    )


def _said(claim: str) -> str | None:
    """Return the answer within the rest of a sentence."""
    several = claim.count("$") > len("$$") and _is_bare(claim)
    single = None if several else _formula(claim)
    return single or (claim if _is_bare(claim) else _number(NUMBER.search(claim)))


def _formula(text: str) -> str | None:
    """Return the last formula, unless it is the prose between two prices."""
    found = formula(text)
    if found and len(found) <= MAX_ANSWER and not _PROSE_WORD.search(_without_text(found)):
        return found
    return None


def _number(found: re.Match[str] | None) -> str | None:
    """Return a number as it is written, if it is not too long to be read."""
    return found[0] if found and len(found[0]) <= MAX_NUMBER else None


def _without_text(answer: str) -> str:
    r"""Drop what is set as text in a formula."""
    return _TEXT.sub("", answer)


def _tidy(answer: str) -> str:
    """Drop what makes no difference to what an answer means."""
    answer = answer.strip()
    for opening, closing in _WRAPPED:
        inner = answer[len(opening) : -len(closing)]
        if answer == f"{opening}{inner}{closing}" and opening not in inner:
            answer = inner
    answer = answer.replace("\\$", "")
    if answer.count("$") == 1:  # the sign of money, or what is left of a formula
        answer = answer.replace("$", "")
    answer = _SPACING.sub("", answer)
    answer = _DEGREE.sub("", _FRAC.sub(r"\\frac", answer))
    answer = _UNIT.sub("", answer)
    if whole := _TEXT.fullmatch(answer):
        answer = whole[1]
    answer = _SPACE.sub("", answer.strip().rstrip(".,;: "))
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer
