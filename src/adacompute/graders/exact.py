"""Exact grader: the whole text is the answer.

Answers are compared without regard to case, white space and Unicode compatibility forms (NFKC).
Everything else must be equal, so prompt the model to give the answer alone. A text of more than
100,000 characters is unparsed.
"""

from __future__ import annotations

import unicodedata

MAX_ANSWER_CHARS = 100_000
"""Longer texts are unparsed."""

# As in Unicode's stream-safe format, because ordering a run of marks takes quadratic time.
_MAX_MARKS = 30


class ExactGrader:
    """Extracts the whole text, with case and white space normalised."""

    name: str = "exact"

    def extract(self, text: str) -> str | None:
        r"""Return the normalised text; None if it is blank or too long.

        >>> ExactGrader().extract("  The ﬁrst\tOne ")
        'the first one'
        """
        if len(text) > MAX_ANSWER_CHARS:
            return None
        normalised = _normalise(text)
        # Case folding can undo Unicode normalisation and vice versa, so repeat until stable.
        while (again := _normalise(normalised)) != normalised:
            normalised = again
        return normalised if 0 < len(normalised) <= MAX_ANSWER_CHARS else None

    def equal(self, left: str, right: str) -> bool:
        """Whether two normalised texts are the same."""
        return left == right


def _normalise(text: str) -> str:
    """Normalise characters, case and white space once."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _limit_marks(text))
    return " ".join(text.casefold().split())


def _limit_marks(text: str) -> str:
    """Drop combining marks after the thirtieth in a row."""
    kept = []
    n_marks = 0
    for character in text:
        n_marks = n_marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if n_marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)
