r"""Choice grader: answers that name one of several choices.

The choice is a letter from A to J or a single digit. It is the first of these that exists: a text
that is nothing but a choice; the last ``\boxed{}`` or announcement ("the answer is (C)",
"Answer: C") with one; "option C"; the last line that is only a letter; the label of the lines, if
all labelled lines have the same ("C) because ..."); the last bold letter; the last capital in
parentheses.

The article "A" and the pronoun "I" count as choices only if no word follows that they could belong
to. The grader does not know the choices' texts: an answer in words is unparsed, and so is an answer
with several choices.
"""

from __future__ import annotations

import re

from adacompute.graders.completion import find_announced, find_boxed, last_match

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
        # A and I can be words: only some continuations make them choices.
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

# A line that is only a choice is never longer.
_MAX_ALONE_CHARS = 40


class ChoiceGrader:
    """Extracts the letter or digit of one choice."""

    name: str = "choice"

    def extract(self, text: str) -> str | None:
        """Return the choice as a capital letter or a digit; None if there is none.

        >>> ChoiceGrader().extract("A cat would not do, so the answer is (c).")
        'C'
        """
        claims = sorted(find_boxed(text) + find_announced(text), reverse=True)
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
    """Return the choice of a text that is nothing else."""
    if len(text) > _MAX_ALONE_CHARS:
        return None
    match = _ALONE.fullmatch(text)
    return match["choice"].upper() if match else None


def _leading(text: str) -> str | None:
    """Return the choice at the start of a claim."""
    match = _LEADING.match(text)
    return match[match.lastgroup or 0].upper() if match else None


def _label(text: str) -> str | None:
    """Return the label of the lines, if all labelled lines have the same."""
    labels = {"".join(groups) for groups in _LABEL.findall(text)}
    return labels.pop() if len(labels) == 1 else None


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the letter in the pattern's last match."""
    match = last_match(pattern, text)
    return match[1] if match else None
