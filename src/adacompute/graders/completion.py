r"""Completion: where in a model's text the final answer stands.

Texts are searched for what writers do with a final answer: they put it into ``\boxed{}``, they
announce it ("the answer is", "Answer:", "####"), they set it as a formula, or it is the last
number. Every search takes time linear in the text, whatever the text.

It knows nothing of what a valid answer is: each grader reads what is found here in its own way.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_NUMBER = 400
"""Numbers written with more characters are not read: converting them takes quadratic time."""

# Long enough for any sentence that states an answer; it bounds the work per announcement.
_MAX_CLAIM = 1000

_BRACE = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")

_ANNOUNCEMENT = re.compile(
    r"""
    (?:
        \banswers?\b(?:[^.\n:=]{0,60}?(?:\b(?:is|are|be|equals)\b|:)|\W{0,3}=)
        # Four hashes before words, or before the number of a step, are a heading.
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
"""A number as people write it: sign, thousands separators, decimals, powers of ten, fractions."""


class Claim(NamedTuple):
    """Text that is put forward as the answer, and where it begins."""

    place: int
    text: str


def boxes(text: str) -> list[Claim]:
    r"""Return what is in each ``\boxed{}`` that is closed and not blank, in order of opening.

    >>> boxes(r"\boxed{x^{2}} or \boxed{}")
    [Claim(place=7, text='x^{2}')]
    """
    if "boxed" not in text and "fbox" not in text:
        return []
    found: list[Claim] = []
    opened: list[int | None] = []
    for brace in _BRACE.finditer(text):
        kind = brace[0]
        if kind == "{":
            opened.append(None)
        elif kind == "}":
            start = opened.pop() if opened else None
            if start is not None and (content := text[start : brace.start()].strip()):
                found.append(Claim(start, content))
        elif kind.endswith("{") and kind != "\\{":
            opened.append(brace.end())
    return sorted(found)


def statements(text: str) -> list[Claim]:
    r"""Return the rest of each sentence that announces an answer, in order.

    >>> statements("The answer is 7. It is odd.\nAnswer:\n 8 apples")
    [Claim(place=14, text='7'), Claim(place=37, text='8 apples')]
    """
    found = [match.span() for match in _ANNOUNCEMENT.finditer(text)]
    # A claim ends where the next is announced; otherwise claims could overlap many times over.
    limits = [begin for begin, _ in found[1:]] + [len(text)] * bool(found)
    claims = (_sentence(text, end, limit) for (_, end), limit in zip(found, limits, strict=True))
    return [claim for claim in claims if claim.text]


def _sentence(text: str, start: int, limit: int) -> Claim:
    """Return the sentence from here, or the next line when it ends with a colon."""
    lines = text[start : min(start + _MAX_CLAIM, limit)].split("\n")
    line = lines[0].rstrip()
    if line.endswith(":"):
        line = next((later.strip() for later in lines[1:] if later.strip()), "")
    end = _SENTENCE_END.search(line)
    return Claim(start, line[: end.start()] if end else line)


def formula(text: str) -> str | None:
    r"""Return the last formula, between dollar signs or in ``\(\)`` or ``\[\]``.

    >>> formula(r"Let $x$ be so that \(x = 1\), which holds.")
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
    """Return the last match of a pattern without keeping the others."""
    last = None
    for found in pattern.finditer(text):
        last = found
    return last
