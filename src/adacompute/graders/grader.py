"""Grader: what reads answers out of completions and compares them, and the graders by name.

A grader has two methods. ``extract`` reads the canonical answer from a text, ``equal`` compares
two canonical answers. ``grade`` applies them to the samples of one question: equal answers become
one, spelled as it was first seen, so that votes can count them. It knows nothing of votes, of
questions and of where texts come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from adacompute.core.errors import ConfigError, DataError
from adacompute.graders.choice import Choice
from adacompute.graders.command import Command
from adacompute.graders.exact import Exact
from adacompute.graders.math import Math
from adacompute.graders.numeric import Numeric

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Grader(Protocol):
    """Reads answers and compares them.

    ``extract`` leaves an answer that was extracted already as it is; ``equal`` does not depend on
    the order of its arguments. Neither raises, whatever the text, but for a grader of the user's
    own that breaks its protocol (``GraderError``).
    """

    name: str

    def extract(self, text: str) -> str | None:
        """Read the canonical answer from a completion; None when none could be read."""
        ...

    def equal(self, left: str, right: str) -> bool:
        """Whether two canonical answers are the same."""
        ...


GRADERS: dict[str, Callable[[], Grader]] = {
    "numeric": Numeric,
    "math": Math,
    "choice": Choice,
    "exact": Exact,
}
"""How to make each grader; beside these, ``cmd:COMMAND`` runs a program of the user's own."""

_COMMAND = "cmd:"


def load_grader(name: str) -> Grader:
    """Make the grader of this name.

    A grader from ``cmd:COMMAND ...`` holds a process and has ``close``; it is also closed when it
    is no longer used.

    >>> load_grader("choice").extract("The answer is (B).")
    'B'
    """
    if name.startswith(_COMMAND):
        return Command(name.removeprefix(_COMMAND))
    if name not in GRADERS:
        known = ", ".join([*GRADERS, f"{_COMMAND}COMMAND"])
        raise ConfigError(f"there is no grader {name!r}; the known ones are {known}")
    return GRADERS[name]()


@dataclass(frozen=True)
class Grades:
    """The answer of each sample, None where none could be read, and whether it is right."""

    answer: list[str | None]
    correct: list[bool]


def grade(grader: Grader, texts: Sequence[str | None], gold: str | None) -> Grades:
    """Grade the samples of one question.

    Equal answers are spelled as the first of them is. An answer that could not be read is wrong;
    a question without a reference answer cannot be graded at all.

    >>> grade(Numeric(), ["It is 12.50", None, "= 25/2", "3"], gold="12.5")
    Grades(answer=['12.5', None, '12.5', '3'], correct=[True, False, True, False])
    """
    if gold is None:
        raise DataError("the question has no reference answer, so nothing can be right or wrong")
    reference = grader.extract(gold)
    if reference is None:
        raise DataError(
            f"the {grader.name} grader cannot read the reference answer {gold[:200]!r}; "
            "choose another grader or mend the answer"
        )
    read = {text: grader.extract(text) for text in dict.fromkeys(texts) if text is not None}
    spelling: dict[str, str] = {}
    right: dict[str, bool] = {}
    for answer in read.values():
        if answer is None or answer in spelling:
            continue
        first = next((known for known in right if grader.equal(known, answer)), answer)
        spelling[answer] = first
        if first not in right:
            right[first] = grader.equal(reference, first)
    found = [None if text is None else read[text] for text in texts]
    answers = [None if answer is None else spelling[answer] for answer in found]
    return Grades(answers, [answer is not None and right[answer] for answer in answers])
