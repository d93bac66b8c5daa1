r"""Math grader: answers that are LaTeX or plain expressions, compared as mathematics.

The answer is the content of the last ``\boxed{}``, else what is announced ("the answer is",
"####"), else the whole text if it is short enough to be an answer, else the last formula, else the
last number. Formatting is normalised. Two answers are equal if their texts are, or if math-verify,
which only this module imports, finds them equal.

math-verify uses SymPy, which may never return. A timeout needs a signal, which only the main thread
can receive, so other threads have none. Therefore an answer that is long or deeply nested, or
contains towers of powers, large exponents or factorials, sums, integrals or binomials, is compared
as text only, in every thread. The grader does not know the question: (1, 2) may be a point, an
interval or a pair.
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
    MAX_NUMBER_CHARS,
    NUMBER,
    find_announced,
    find_boxed,
    find_formula,
    last_match,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ANSWER_CHARS = 400
"""Longer answers are unparsed."""

MAX_SYMBOLIC_CHARS = 150
"""Longer answers are compared as text only."""

# Normalising shortens an answer, but not by that much, and takes quadratic time at worst.
_MAX_RAW_CHARS = 4 * MAX_ANSWER_CHARS
_TIMEOUT_S = 3.0
_SIGNAL_INTERVAL_S = 0.1
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
_INTEGER = re.compile(r"[-+]?[0-9]+")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")

# Expressions that may keep SymPy busy: x^{y^z}, 2^{100000}, (a^{100})^{100}, (x+y)^{60}, 5000!,
# (3!)!, sums, products, integrals, limits and binomials.
_SLOW = re.compile(
    r"\^\s*\{?[^{}^]*\^|\^\s*\{?[-+\s(]*[0-9][0-9,]{3}|[)}]\s*\^\s*\{?[-+\s]*[0-9]{3}"
    r"|[A-Za-z][^()]*\)\s*\^\s*\{?[0-9]{2}|\*\*|[0-9]{30}|[eE][-+]?[0-9]{3}"
    r"|[0-9]{3}\s*!|[)}!]\s*!|\\(?:sum|prod|i{1,3}nt|oint|lim|binom|choose)(?![A-Za-z])|(?:\|[^|]*){7}"
)
_MAX_DEPTH = 8


class MathGrader:
    """Extracts an expression and compares it with math-verify; needs the extra ``math``."""

    name: str = "math"

    def __init__(self) -> None:
        with needs_extra("math"):
            import math_verify

        self._library = math_verify
        self._parse = lru_cache(maxsize=4096)(self._parse_once)
        # Without a handler, Python would print the library's warnings.
        log = logging.getLogger("math_verify")
        if not log.handlers:
            log.addHandler(logging.NullHandler())

    def extract(self, text: str) -> str | None:
        r"""Return the final expression, normalised; None if there is none.

        >>> MathGrader().extract(r"So $x = 2$, and the area is \boxed{\dfrac{1}{2}}.")
        '\\frac{1}{2}'
        """
        answer = text
        # The answer may itself announce an answer, so repeat until nothing changes.
        for _ in range(_MAX_ROUNDS):
            extracted = _extract_once(answer)
            if extracted is None or extracted == answer:
                return extracted
            answer = extracted
        return None

    def equal(self, left: str, right: str) -> bool:
        """Whether two answers are equal as text or as mathematics."""
        if left == right:
            return True
        if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
            return int(left) == int(right)
        if _WORDS.fullmatch(left) and _WORDS.fullmatch(right):
            return left.casefold() == right.casefold()
        return not _is_slow(left) and not _is_slow(right) and self._is_equivalent(left, right)

    def _is_equivalent(self, left: str, right: str) -> bool:
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
        try:
            with _time_limit(_TIMEOUT_S):
                return self._library.parse(text, parsing_timeout=None)
        except _TimeLimitExceeded:
            return []

    def _verify(self, gold: Any, answer: Any) -> bool:  # noqa: ANN401 - SymPy's own types
        try:
            with _time_limit(_TIMEOUT_S):
                return bool(self._library.verify(gold, answer, timeout_seconds=None))
        except _TimeLimitExceeded:
            return False


class _TimeLimitExceeded(BaseException):
    """Raised by the signal handler; no Exception, because the libraries catch those."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``_TimeLimitExceeded`` after so many seconds of CPU time, in the main thread only.

    math-verify's own timeout sends one signal, and SymPy may swallow the exception; this one is
    repeated. It counts CPU time, so that results do not depend on the load of the machine. A timer
    that was set before is restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TimeLimitExceeded

    handler = signal.signal(signal.SIGVTALRM, stop)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _SIGNAL_INTERVAL_S)
    try:
        yield
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
                signal.signal(signal.SIGVTALRM, handler)
                break
            except _TimeLimitExceeded:  # a last signal arrived: try again
                continue
        signal.setitimer(signal.ITIMER_VIRTUAL, *timer)


def _is_slow(answer: str) -> bool:
    """Whether SymPy may take very long for an answer."""
    if len(answer) > MAX_SYMBOLIC_CHARS or _SLOW.search(answer):
        return True
    depth = max_depth = 0
    for character in answer:
        depth += (character in "({[") - (character in ")}]")
        max_depth = max(max_depth, depth)
    return max_depth > _MAX_DEPTH


def _extract_once(text: str) -> str | None:
    """Find the answer in a text and normalise it."""
    answer = (
        next((claim.text for claim in reversed(find_boxed(text))), None)
        or _last_announced(text)
        or (text if _is_bare_answer(text) else None)
        or _last_formula(text)
        or _number(last_match(NUMBER, text))
    )
    if not answer or len(answer) > _MAX_RAW_CHARS:
        return None
    normalised = _normalise(answer)
    return normalised if 0 < len(normalised) <= MAX_ANSWER_CHARS else None


def _is_bare_answer(text: str) -> bool:
    """Whether a text is one short line with few words, which can be an answer."""
    stripped = text.strip()
    return (
        len(stripped) <= MAX_ANSWER_CHARS
        and "\n" not in stripped
        and len(_PROSE_WORD.findall(stripped)) <= _MAX_PROSE_WORDS
    )


def _last_announced(text: str) -> str | None:
    """Return the answer of the last announcement that has one."""
    answers = (_answer_in_claim(claim.text) for claim in reversed(find_announced(text)))
    return next((answer for answer in answers if answer), None)


def _answer_in_claim(claim: str) -> str | None:
    """Return the answer in the rest of a sentence that announces it."""
    has_several_formulas = claim.count("$") > len("$$") and _is_bare_answer(claim)
    formula = None if has_several_formulas else _last_formula(claim)
    return formula or (claim if _is_bare_answer(claim) else _number(NUMBER.search(claim)))


def _last_formula(text: str) -> str | None:
    """Return the last formula, unless it is the prose between two prices."""
    formula = find_formula(text)
    if formula and len(formula) <= MAX_ANSWER_CHARS and not _PROSE_WORD.search(_drop_text(formula)):
        return formula
    return None


def _number(match: re.Match[str] | None) -> str | None:
    """Return a number as written; None if it is too long."""
    return match[0] if match and len(match[0]) <= MAX_NUMBER_CHARS else None


def _drop_text(answer: str) -> str:
    r"""Remove ``\text{}`` and similar from a formula."""
    return _TEXT.sub("", answer)


def _normalise(answer: str) -> str:
    """Remove formatting that does not change the meaning of an answer."""
    answer = answer.strip()
    for opening, closing in _WRAPPED:
        inner = answer[len(opening) : -len(closing)]
        if answer == f"{opening}{inner}{closing}" and opening not in inner:
            answer = inner
    answer = answer.replace("\\$", "")
    if answer.count("$") == 1:  # a currency sign, or the rest of a formula
        answer = answer.replace("$", "")
    answer = _SPACING.sub("", answer)
    answer = _DEGREE.sub("", _FRAC.sub(r"\\frac", answer))
    answer = _UNIT.sub("", answer)
    if text := _TEXT.fullmatch(answer):
        answer = text[1]
    answer = _SPACE.sub("", answer.strip().rstrip(".,;: "))
    return answer.replace(",", "") if _THOUSANDS.fullmatch(answer) else answer
