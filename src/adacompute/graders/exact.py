"""Exact grader: the whole text is the answer.

Case, the kind and amount of white space, and the ways in which Unicode can write one character
(NFKC) make no difference; everything else does. It knows nothing of explanations around an answer:
prompt the model to give the answer alone. A text of more than 100,000 characters is not read.
"""

from __future__ import annotations

import unicodedata

MAX_ANSWER = 100_000
"""Longer texts are not read: a few characters fold to many."""

# As in Unicode's stream-safe format: ordering a run of marks takes quadratic time.
_MAX_MARKS = 30


class Exact:
    """Takes the whole text and compares it as it is."""

    name: str = "exact"

    def extract(self, text: str) -> str | None:
        r"""Fold the text; None when nothing is left.

        >>> Exact().extract("  The ﬁrst\tOne ")
        'the first one'
        """
        if len(text) > MAX_ANSWER:
            return None
        folded = _fold(text)
        # Folding case can undo what normalising did, and the other way round.
        while (again := _fold(folded)) != folded:
            folded = again
        return folded if 0 < len(folded) <= MAX_ANSWER else None

    def equal(self, left: str, right: str) -> bool:
        """Whether two folded texts are the same."""
        return left == right


def _fold(text: str) -> str:
    """Normalise characters, case and white space once."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _without_long_runs(text))
    return " ".join(text.casefold().split())


def _without_long_runs(text: str) -> str:
    """Drop what exceeds thirty marks in a row."""
    kept = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)
