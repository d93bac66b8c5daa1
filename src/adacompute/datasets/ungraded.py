"""Ungraded: samples without grades, such as those of a gateway's log, graded with gold answers.

The gold answers come from a question set, which is matched by question id, by text, or by the id
that a log without texts gives a text; or from the samples themselves. Questions without a gold
answer are left out and counted. The samples of a question are graded together, or those of each arm
where answers do not pool. The function that grades is an argument. Samples can also be read without
gold answers: then equal answers are written alike, and grades that are not there are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.types import text_id
from adacompute.datasets.columns import add_signals
from adacompute.datasets.rows import (
    SAMPLE_SCHEMA,
    UNGRADED,
    RecordedRows,
    check_samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adacompute.datasets.logs.log_rows import GradeFunction, Row


class GradedSamples(NamedTuple):
    """Graded samples, and the number of samples of each question that has no gold answer.

    ``excluded`` is None if the samples came with grades, or were read without any.
    """

    samples: pa.Table
    excluded: dict[str, int] | None = None


def find_answers(
    rows: RecordedRows, write_alike: Callable[[Sequence[str | None]], Sequence[str | None]]
) -> RecordedRows:
    """Return samples with the answers that a function finds in the texts of a question.

    Grades are kept, but a sample without an answer is not correct.
    """
    rows.problems.check()
    found: list[Row] = []
    for samples in _group(rows.table.to_pylist()):
        answers = write_alike([row["completion"] or row["answer"] for row in samples])
        for row, answer in zip(samples, answers, strict=True):
            correct = row["correct"] and answer is not None
            found.append({**row, "answer": answer, "correct": correct})
    return rows._replace(table=_make_table(found, UNGRADED, rows.problems.source))


def grade_rows(rows: RecordedRows, key: pa.Table | None, grade: GradeFunction) -> GradedSamples:
    """Grade samples with the gold answers of a question set.

    Without a question set, the gold answer of a question is the first one in its samples.
    """
    rows.problems.check()
    return _grade(_group(rows.table.to_pylist()), key, grade, rows.problems.source)


def _group(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows by question."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["question_id"], []).append(row)
    return list(groups.values())


def _grade(
    groups: list[list[Row]], key: pa.Table | None, grade: GradeFunction, source: object
) -> GradedSamples:
    known = {} if key is None else _index(key)
    rows: list[Row] = []
    excluded: dict[str, int] = {}
    for samples in groups:
        name = samples[0]["question_id"]
        question = known.get(name) or known.get(samples[0]["question"])
        if key is None:
            question = next((row for row in samples if row["gold"] is not None), None)
        if question is None:
            excluded[name] = len(samples)
            continue
        texts = [row["completion"] or row["answer"] for row in samples]
        try:
            grades = grade(texts, question["gold"])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        columns = {column: question[column] for column in ("question", "gold", "difficulty")}
        for row, answer, correct in zip(samples, grades.answer, grades.correct, strict=True):
            rows.append({**row, **columns, "answer": answer, "correct": correct})
    if not rows:
        raise DataError(f"none of the {len(excluded)} questions of {source} has a gold answer")
    return GradedSamples(check_samples(_make_table(rows, SAMPLE_SCHEMA, source), source), excluded)


def _make_table(rows: Sequence[Row], schema: pa.Schema, source: object) -> pa.Table:
    """Return rows as a table with their signals; a file of several may lack some."""
    names = {name: None for row in rows for name in row}
    return pa.Table.from_pylist(rows, schema=add_signals(schema, names, source))


def _index(key: pa.Table) -> dict[str, Row]:
    """Index the questions with a gold answer by id, by text, and by the id of their text."""
    known: dict[str, Row] = {}
    for row in key.to_pylist():
        names = (row["question_id"], row["question"], text_id(row["question"] or ""))
        known.update({name: row for name in names if name and row["gold"] is not None})
    return known
