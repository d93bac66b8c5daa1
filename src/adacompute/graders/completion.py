r"""Completion: find the final answer in a model's text.

The final answer may be in ``\boxed{}``, announced ("the answer is", "Answer:", "####"), a formula,
or the last number. Every search takes time linear in the length of the text.

This module does not know what a valid answer is: each grader parses what is found here itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_NUMBER_CHARS = 400
"""Longer numbers are not parsed, because conversion takes quadratic time."""

# Longer than any sentence that states an answer; it bounds the work per announcement.
_MAX_CLAIM = 1000

_BRACE = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")

_ANNOUNCEMENT = re.compile(
    r"""
    (?:
        \banswers?\b(?:[^.\n:=]{0,60}?(?:\b(?:is|are|be|equals)\b|:)|\W{0,3}=)
        # Four hashes before words, or before a step's number, are a heading.
        | ^[ \t]{0,3}\#{4}(?=[ \t]*(?:[^A-Za-z\s\#]|[A-J]\b))(?![ \t]*[0-9]+[.):][ \t]+[A-Za-z*])
    )
    [\s:*_=]*
    """,
    re.IGNORECASE | re.ASCII | re.MULTILINE | re.VERBOSE,
)

_SENTENCE_END = re.compile(r"[.?][*\"')\]]*(?=\s|$)")

NUMBER = re.compile(
    r"""
    (?:(?<![0-9A-Za-z)\]}])(?P<sign>[-+\u2212]))?
    [$€£]?
    (?<![0-9A-Za-z_])
    (?:(?P<whole>[0-9]+)\ (?=[0-9]+/[0-9]))?                          # 2 of 2 1/3
    (?P<digits>
        (?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?     # 1,234.5
        | (?<!\.)\.[0-9]+                                             # .5
    )
    (?:
        [eE](?P<exponent>[-+]?[0-9]+)(?![0-9A-Za-z])
        | \ ?(?:\\times|\\cdot|[×x*])\ ?10\ ?\^\ ?\{?(?P<power>[-+\u2212]?[0-9]+)\}?
        | /(?P<divisor>[0-9]+)(?![0-9/]|\.[0-9])
    )?
    """,
    re.VERBOSE,
)
"""A number with sign, thousands separators, decimals, powers of ten or a fraction."""


class Claim(NamedTuple):
    """Text that may be the answer, and its position."""

    position: int
    text: str


def find_boxed(text: str) -> list[Claim]:
    r"""Return the content of each closed, non-blank ``\boxed{}``, in order of opening.

    >>> find_boxed(r"\boxed{x^{2}} or \boxed{}")
    [Claim(position=7, text='x^{2}')]
    """
    if "boxed" not in text and "fbox" not in text:
        return []
    claims: list[Claim] = []
    box_starts: list[int | None] = []  # of all open braces; None if a brace opens no box
    for brace in _BRACE.finditer(text):
        mark = brace[0]
        if mark == "{":
            box_starts.append(None)
        elif mark == "}":
            start = box_starts.pop() if box_starts else None
            if start is not None and (content := text[start : brace.start()].strip()):
                claims.append(Claim(start, content))
        elif mark.endswith("{") and mark != "\\{":
            box_starts.append(brace.end())
    return sorted(claims)


def find_announced(text: str) -> list[Claim]:
    r"""Return the rest of each sentence that announces an answer, in order.

    >>> find_announced("The answer is 7. It is odd.\nAnswer:\n 8 apples")
    [Claim(position=14, text='7'), Claim(position=37, text='8 apples')]
    """
    spans = [match.span() for match in _ANNOUNCEMENT.finditer(text)]
    # A claim ends at the next announcement, so that claims do not overlap.
    limits = [start for start, _ in spans[1:]] + [len(text)] * bool(spans)
    claims = (_sentence(text, end, limit) for (_, end), limit in zip(spans, limits, strict=True))
    return [claim for claim in claims if claim.text]


def _sentence(text: str, start: int, limit: int) -> Claim:
    """Return the sentence that starts here, or the next line if this one ends with a colon."""
    lines = text[start : min(start + _MAX_CLAIM, limit)].split("\n")
    line = lines[0].rstrip()
    if line.endswith(":"):
        line = next((following.strip() for following in lines[1:] if following.strip()), "")
    end = _SENTENCE_END.search(line)
    return Claim(start, line[: end.start()] if end else line)


def find_formula(text: str) -> str | None:
    r"""Return the last formula, between dollar signs or in ``\(\)`` or ``\[\]``.

    >>> find_formula(r"Let $x$ be so that \(x = 1\), which holds.")
    'x = 1'
    """
    plain = text.replace("\\$", "").replace("$$", "$")
    last, content = -1, ""
    for opening, closing in (("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        end = plain.rfind(closing)
        start = plain.rfind(opening, 0, max(end, 0))
        if start >= 0 and end > last:
            last, content = end, plain[start + len(opening) : end].strip()
    return content or None


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of a pattern."""
    last = None
    for match in pattern.finditer(text):
        last = match
    return last
