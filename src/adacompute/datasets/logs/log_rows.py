"""Log rows: make samples from the rows of an evaluation log.

Readers of logs return rows with all columns of samples except ``sample``; ``correct`` is None if
the log does not say. Here the rows are graded if necessary, and the samples of each question
numbered in the order of the rows. The function that grades is an argument.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from adacompute.core.errors import DataError
from adacompute.datasets.records import as_text
from adacompute.datasets.rows import make_samples

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

Row = dict[str, Any]

_LEVEL = re.compile(r"(?:Level\s*)?([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)


class GradesProtocol(Protocol):
    """The answer of each completion, None if it is unparsed, and whether it is correct."""

    @property
    def answer(self) -> Sequence[str | None]:
        """Answers in the order of the completions."""
        ...

    @property
    def correct(self) -> Sequence[bool]:
        """Whether each answer is correct."""
        ...


GradeFunction = Callable[[Sequence[str | None], str | None], GradesProtocol]
"""Grades the completions of one question with its gold answer."""


def parse_difficulty(level: Any) -> str | None:  # noqa: ANN401 - any JSON
    """Return the difficulty of a ``level``; other words than ``Level N`` are kept.

    >>> [parse_difficulty(level) for level in ("Level 3", 3, "Level ?", "hard")]
    ['3', '3', None, 'hard']
    """
    text = (as_text(level) or "").strip()
    if found := _LEVEL.fullmatch(text):
        return found[1]
    return None if not text or "?" in text else text


def make_log_samples(
    rows: list[Row], source: Path, *, grade: GradeFunction | None, ungraded: str
) -> pa.Table:
    """Make samples from the rows of one model.

    If any row has no grade, all rows are graded, so that all grades come from one grader.
    ``ungraded`` is the reason why the log has no grades, for the error message.
    """
    models = sorted({row["model"] for row in rows if row["model"] is not None})
    if len(models) > 1:
        raise DataError(
            f"{source} holds samples of {len(models)} models ({', '.join(models)}): name the logs "
            "of one model, or import those of each model as an arm (--arm NAME=LOGS)"
        )
    if any(row["correct"] is None for row in rows):
        if grade is None:
            raise DataError(
                f"{source} does not say which samples are correct, because {ungraded}: "
                "name a grader to grade the completions"
            )
        _grade(rows, grade)
    n_samples: dict[str, int] = defaultdict(int)
    for row in rows:
        name, completion = row["question_id"], row["completion"]
        row["sample"] = n_samples[name]
        row["completion_chars"] = None if completion is None else len(completion)
        n_samples[name] += 1
    return make_samples(rows, source)


def _grade(rows: list[Row], grade: GradeFunction) -> None:
    questions: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        questions[row["question_id"]].append(row)
    for name, samples in questions.items():
        try:
            grades = grade([row["completion"] for row in samples], samples[0]["gold"])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        for row, answer, correct in zip(samples, grades.answer, grades.correct, strict=True):
            row["answer"], row["correct"] = answer, correct
