"""Log rows: what an evaluation log says of its samples, graded, numbered and made tidy.

A reader of logs finds rows with the columns of samples but for ``sample``; ``correct`` is None
where the log does not tell. The samples of a question are numbered in the order of the rows. It
knows nothing of any harness, nor of grading: how to grade is an argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from adacompute.core.errors import DataError
from adacompute.datasets.rows import make_samples

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

Row = dict[str, Any]


class GradesProtocol(Protocol):
    """The answer of each completion, None where none could be read, and whether it is right."""

    @property
    def answer(self) -> Sequence[str | None]:
        """Answers in the order of the completions."""
        ...

    @property
    def correct(self) -> Sequence[bool]:
        """Whether each answer is right."""
        ...


Grading = Callable[[Sequence[str | None], str | None], GradesProtocol]
"""Grades the completions of one question by its gold answer."""


def tidy(rows: list[Row], source: Path, *, grade: Grading | None, ungraded: str) -> pa.Table:
    """Make samples of the rows of one model.

    When some row is not graded, all are graded anew, so that no question is graded in two ways;
    ``ungraded`` says why a log does not tell, for the sentence that asks for a grader.
    """
    models = sorted({row["model"] for row in rows if row["model"] is not None})
    if len(models) > 1:
        raise DataError(
            f"{source} holds samples of {len(models)} models ({', '.join(models)}), and samples of "
            "one question must come from one: name the logs of one model"
        )
    if any(row["correct"] is None for row in rows):
        if grade is None:
            raise DataError(
                f"{source} does not say which samples are right, for {ungraded}: "
                "name a grader to grade the completions"
            )
        _grade(rows, grade)
    drawn: dict[str, int] = defaultdict(int)
    for row in rows:
        name, completion = row["question_id"], row["completion"]
        row["sample"] = drawn[name]
        row["completion_chars"] = None if completion is None else len(completion)
        drawn[name] += 1
    return make_samples(rows, source)


def _grade(rows: list[Row], grade: Grading) -> None:
    questions: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        questions[row["question_id"]].append(row)
    for name, drawn in questions.items():
        try:
            graded = grade([row["completion"] for row in drawn], drawn[0]["gold"])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        for row, answer, right in zip(drawn, graded.answer, graded.correct, strict=True):
            row["answer"], row["correct"], row["score"] = answer, right, None
