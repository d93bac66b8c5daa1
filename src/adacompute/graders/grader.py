"""Grader: the protocol of graders, the graders by name, and grading the samples of a question.

A grader has two methods: ``extract`` returns the canonical answer in a text, and ``equal`` compares
two canonical answers. ``grade`` applies them to the samples of one question. It writes equal
answers the same way, as the first of them, so that votes can count them. Graders know nothing of
votes, questions or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from adacompute.core.errors import ConfigError, DataError
from adacompute.graders.choice import ChoiceGrader
from adacompute.graders.command import CommandGrader
from adacompute.graders.exact import ExactGrader
from adacompute.graders.math import MathGrader
from adacompute.graders.numeric import NumericGrader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Grader(Protocol):
    """Extracts answers and compares them.

    ``extract`` of an extracted answer returns it unchanged; ``equal`` is symmetric. Neither raises
    for any text; only a ``cmd:`` grader raises ``GraderError`` if its program fails.
    """

    name: str

    def extract(self, text: str) -> str | None:
        """Return the canonical answer in a completion; None if it cannot be parsed."""
        ...

    def equal(self, left: str, right: str) -> bool:
        """Whether two canonical answers are the same."""
        ...


GRADERS: dict[str, Callable[[], Grader]] = {
    "numeric": NumericGrader,
    "math": MathGrader,
    "choice": ChoiceGrader,
    "exact": ExactGrader,
}
"""Graders by name; ``cmd:COMMAND`` also is one and runs the user's own program."""

_COMMAND = "cmd:"
COMMAND = "cmd"
"""What files record of a command: that it was one. Nothing that a file says is ever run."""


def record_grader(name: str | None) -> str | None:
    """Return what a file records of a grader, also if the file says more than it should.

    >>> record_grader("math"), record_grader("cmd:python my_grader.py")
    ('math', 'cmd')
    """
    is_command = name is not None and name.startswith(_COMMAND)
    return COMMAND if is_command else name


def load_grader(name: str, *, timeout_s: float | None = None) -> Grader:
    """Return a new grader of this name.

    The graders ``math`` and ``cmd:COMMAND ...`` run a process. Their method ``close`` ends it, and
    so does garbage collection. The process is killed if one of its replies takes longer than
    ``timeout_s``, by default 30 seconds.

    >>> load_grader("choice").extract("The answer is (B).")
    'B'
    """
    limit = {} if timeout_s is None else {"timeout_s": timeout_s}
    if name.startswith(_COMMAND):
        return CommandGrader(name.removeprefix(_COMMAND), **limit)
    if name == MathGrader.name:
        return MathGrader(**limit)
    if name == COMMAND:
        raise ConfigError(
            "the samples were graded by a command, and a command is never taken from a file: give "
            f"it as --grader '{_COMMAND}COMMAND', or grader= in Python or a configuration file"
        )
    if name not in GRADERS:
        known = ", ".join([*GRADERS, f"{_COMMAND}COMMAND"])
        raise ConfigError(f"there is no grader {name!r}; the graders are {known}")
    return GRADERS[name]()


@dataclass(frozen=True)
class Grades:
    """The answer of each sample, None if it is unparsed, and whether it is correct.

    ``extracted`` are the answers as their own texts have them, before equal ones are written alike.
    """

    answer: list[str | None]
    correct: list[bool]
    extracted: list[str | None] = field(default_factory=list, repr=False, compare=False)


def grade(grader: Grader, texts: Sequence[str | None], gold: str | None) -> Grades:
    """Grade the samples of one question.

    Equal answers are written as the first of them. An unparsed answer is not correct. DataError if
    there is no gold answer, or the grader cannot parse it.

    >>> grade(NumericGrader(), ["It is 12.50", None, "= 25/2", "3"], gold="12.5")
    Grades(answer=['12.5', None, '12.5', '3'], correct=[True, False, True, False])
    """
    if gold is None:
        raise DataError("the question has no gold answer, so its samples cannot be graded")
    reference = grader.extract(gold)
    if reference is None:
        raise DataError(
            f"the {grader.name} grader cannot parse the gold answer {gold[:200]!r}; "
            "use another grader or correct the answer"
        )
    extracted = _extract(grader, texts)
    answers = _write_alike(grader, extracted)
    is_correct = {a: grader.equal(reference, a) for a in dict.fromkeys(answers) if a is not None}
    correct = [answer is not None and is_correct[answer] for answer in answers]
    return Grades(answers, correct, extracted)


def canonicalise(grader: Grader, texts: Sequence[str | None]) -> list[str | None]:
    """Return the answer in each text of one question; equal answers are written as the first.

    >>> canonicalise(NumericGrader(), ["005", None, "5", "6"])
    ['5', None, '5', '6']
    """
    return _write_alike(grader, _extract(grader, texts))


def _extract(grader: Grader, texts: Sequence[str | None]) -> list[str | None]:
    """Return the answer in each text; equal texts are parsed once."""
    found = {text: grader.extract(text) for text in dict.fromkeys(texts) if text is not None}
    return [None if text is None else found[text] for text in texts]


def _write_alike(grader: Grader, answers: Sequence[str | None]) -> list[str | None]:
    """Replace each answer by the first one that equals it."""
    first_equal: dict[str, str] = {}
    firsts: list[str] = []
    for answer in dict.fromkeys(answers):
        if answer is None:
            continue
        first_equal[answer] = next((a for a in firsts if grader.equal(a, answer)), answer)
        if first_equal[answer] == answer:
            firsts.append(answer)
    return [None if answer is None else first_equal[answer] for answer in answers]
