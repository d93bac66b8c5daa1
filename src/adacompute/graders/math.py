r"""Math grader: answers that are LaTeX or plain expressions, compared as mathematics.

The answer is the content of the last ``\boxed{}``, else what is announced ("the answer is",
"####"), else the whole text if it is short enough to be an answer, else the last formula, else the
last number. Formatting is normalised. Two answers are equal if their texts are, or if math-verify
finds them equal.

Extracting takes time linear in the length of the text. math-verify may never return, so it runs in
a process of its own, ``math_program``, which is killed after two seconds of CPU time. It is
started when two answers are first compared that are not equal as texts. An answer that is long or
deeply nested, or contains towers of powers, large exponents or factorials, sums, integrals or
binomials, is compared as text only. The grader does not know the question: (1, 2) may be a point,
an interval or a pair.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import OrderedDict

from adacompute.core.errors import GraderError, check_installed
from adacompute.graders.completion import (
    MAX_NUMBER_CHARS,
    NUMBER,
    find_announced,
    find_boxed,
    find_formula,
    last_match,
)
from adacompute.graders.program import Program

logger = logging.getLogger(__name__)

MAX_ANSWER_CHARS = 400
"""Longer answers are unparsed."""

TIMEOUT_S = 30.0
"""Time limit for one comparison, beside that of its CPU time."""

START_TIMEOUT_S = 120.0
"""Time limit for the start of the program, which imports SymPy."""

MAX_SYMBOLIC_CHARS = 150
"""Longer answers are compared as text only."""

# Normalising shortens an answer, but not by that much, and takes quadratic time at worst.
_MAX_RAW_CHARS = 4 * MAX_ANSWER_CHARS
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
_MAX_KNOWN_PAIRS = 4096

# The program imports from where this process does.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from adacompute.graders import math_program as m; "


class MathGrader:
    """Extracts an expression and compares it with math-verify; needs the extra ``math``.

    ``close`` stops the program that compares, and so does garbage collection.
    """

    name: str = "math"

    def __init__(self, *, timeout_s: float = TIMEOUT_S, cpu_limit_s: float | None = None) -> None:
        check_installed("math_verify", extra="math")
        limit = "" if cpu_limit_s is None else f"{cpu_limit_s!r}"
        code = _PROGRAM.format(path=sys.path) + f"m.main({limit})"
        self._program = Program(
            self.name,
            [sys.executable, "-c", code],
            timeout_s=timeout_s,
            start_timeout_s=START_TIMEOUT_S,
        )
        # None means that the comparison exceeded its CPU time.
        self._known: OrderedDict[tuple[str, str], bool | None] = OrderedDict()

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
        """Whether two answers are equal as text or as mathematics; a failure means no."""
        try:
            return self.compare(left, right)
        except GraderError as error:
            logger.warning("%s and %s are compared as texts: %s", left, right, error)
            return False

    def compare_quickly(self, left: str, right: str) -> bool | None:
        """Whether two answers are equal; None if only the program can tell."""
        if left == right:
            return True
        if _INTEGER.fullmatch(left) and _INTEGER.fullmatch(right):
            return int(left) == int(right)
        if _WORDS.fullmatch(left) and _WORDS.fullmatch(right):
            return left.casefold() == right.casefold()
        if _is_slow(left) or _is_slow(right):
            return False
        return self._known.get(_sort(left, right))

    def compare(self, left: str, right: str) -> bool:
        """Whether two answers are equal; GraderError if that could not be found out."""
        quickly = self.compare_quickly(left, right)
        if quickly is not None:
            return quickly
        pair = _sort(left, right)
        if pair in self._known:
            is_equal = None
        else:
            request = {"left": pair[0], "right": pair[1]}
            is_equal = self._program.request(request, "equal", (bool, type(None)))
            self._known[pair] = is_equal
            if len(self._known) > _MAX_KNOWN_PAIRS:
                self._known.popitem(last=False)
        if is_equal is None:
            raise GraderError("the comparison took too much CPU time or memory, and was stopped")
        return bool(is_equal)

    def start(self) -> None:
        """Start the program that compares; it is also started when it is first needed."""
        self._program.start()

    def close(self) -> None:
        """Stop the program that compares; safe to call twice."""
        self._program.close()


def _sort(left: str, right: str) -> tuple[str, str]:
    return (left, right) if left <= right else (right, left)


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
