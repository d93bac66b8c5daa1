r"""Choice grader: answers that name one of several choices.

The choice is a letter from A to J or a single digit. It is read, in this order, from a text that
is nothing else; from the last ``\boxed{}`` or announcement ("the answer is (C)", "Answer: C") that
names one; from "option C"; from the last line that is only a letter; from the label that begins
the lines, when it is one and the same ("C) because ..."); from the last bold letter; from the last
capital in parentheses.

The article "A" and the pronoun "I" are read as choices only where nothing follows that they could
belong to. It knows nothing of what the choices say: an answer given in words is not read, and
neither are answers of several choices.
"""

from __future__ import annotations

import re

from adacompute.graders.completion import boxes, last_match, statements

# Marks that may surround a choice: brackets, quotes, emphasis, LaTeX wrapping.
_OPEN = r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{|[\s*_(\[{$\"'`#>])*"
_CLOSE = r"[\s*_)\]}$\"'`.:,;!]*"

_ALONE = re.compile(rf"{_OPEN}(?P<choice>[A-Ja-j0-9]){_CLOSE}", re.ASCII)
_LEADING = re.compile(
    rf"""
    {_OPEN}
    (?:(?:the|option|choice|letter|number)\b[\s*_(\[{{]*){{0,2}}
    (?![A-J][)*]{{0,3}}(?:\s*[,/&]|\s+and|\s+or)\s*\(?[A-J](?![A-Za-z]))  # several choices
    (?:
        (?P<capital>[B-HJ])(?![A-Za-z0-9'’])
        # A and I are words: what follows must not make them one.
        | (?P<word>[AI])(?=[)\]}}*_$:,;"`]|\s*$|\.(?:\s|$)|\s+(?:because|since|as|is|[-–—(]))
        | (?P<small>[a-j])(?:[)\]}}]|\s*$|[.:](?:\s|$))
        | (?P<digit>[0-9])(?=[)\]}}*_$:;"`]|\s*$|[.,](?:\s|$))
    )
    """,
    re.VERBOSE | re.ASCII,
)
_OPTION = re.compile(
    r"\b(?:[Oo]ption|[Cc]hoice)s?\s+(?:is\s+)?[*(\[\"']{0,4}([A-J])(?![A-Za-z0-9'’])", re.ASCII
)
_BOLD = re.compile(r"\*\*\s?\(?([A-J])[).:]?\s?\*\*", re.ASCII)
_LABEL = re.compile(
    r"^[ \t]{0,8}(?:\*\*)?(?:\(([A-J])\)|([A-J])[):]|([B-HJ])\.)(?!\S)", re.ASCII | re.MULTILINE
)
_PARENTHESISED = re.compile(r"(?<![A-Za-z0-9])\(([A-J])\)", re.ASCII)

# A line that is only a choice is short; longer ones need not be looked at.
_MAX_ALONE = 40


class Choice:
    """Reads the letter or digit of one choice."""

    name: str = "choice"

    def extract(self, text: str) -> str | None:
        """Read the choice, as a capital letter or a digit.

        >>> Choice().extract("A cat would not do, so the answer is (c).")
        'C'
        """
        claims = sorted(boxes(text) + statements(text), reverse=True)
        return (
            _alone(text.strip())
            or next((choice for claim in claims if (choice := _leading(claim.text))), None)
            or _last(_OPTION, text)
            or next(
                (choice for line in reversed(text.split("\n")) if (choice := _alone(line))), None
            )
            or _label(text)
            or _last(_BOLD, text)
            or _last(_PARENTHESISED, text)
        )

    def equal(self, left: str, right: str) -> bool:
        """Whether two choices are the same."""
        return left == right


def _alone(text: str) -> str | None:
    """Read a text that is nothing but a choice."""
    if len(text) > _MAX_ALONE:
        return None
    found = _ALONE.fullmatch(text)
    return found["choice"].upper() if found else None


def _leading(text: str) -> str | None:
    """Read the choice that a claim begins with."""
    found = _LEADING.match(text)
    return found[found.lastgroup or 0].upper() if found else None


def _label(text: str) -> str | None:
    """Read the label of the lines, when all labelled lines have the same."""
    labels = {"".join(groups) for groups in _LABEL.findall(text)}
    return labels.pop() if len(labels) == 1 else None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the letter in the pattern's last match."""
    found = last_match(pattern, text)
    return found[1] if found else None
