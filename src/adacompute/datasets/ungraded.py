"""Ungraded: samples without grades, such as a gateway's log, graded with gold answers.

The gold answers come from a question set, which is matched by question id, by text, or by the id
that a log without texts gives a text; or from the samples themselves. Questions without a gold
answer are left out and counted. The samples of a question are graded together, or those of each arm
where answers do not pool. The function that grades is an argument. Samples can also be read without
grades: then equal answers are written alike, and the grades are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.types import text_id
from adacompute.datasets.columns import add_signals
from adacompute.datasets.rows import SAMPLE_SCHEMA, check_samples, finish_samples, read_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from adacompute.datasets.log_rows import GradeFunction, Row

LOG_FILES = "samples-*.parquet"
"""Files with samples in the log of a gateway."""

UNGRADED = SAMPLE_SCHEMA.set(
    SAMPLE_SCHEMA.get_field_index("correct"), pa.field("correct", pa.bool_(), nullable=True)
).append(pa.field("decision_id", pa.string()))
"""Columns of samples that may have no grade."""


WITHOUT_GRADES = UNGRADED.remove(UNGRADED.get_field_index("decision_id"))
"""Columns of samples in a run that has no grades; all of them are null."""


class GradedSamples(NamedTuple):
    """Graded samples, and the number of samples of each question that has no gold answer.

    ``excluded`` is None if the samples came with grades, or were read without any.
    """

    samples: pa.Table
    excluded: dict[str, int] | None = None


def find_log_files(path: Path) -> list[Path]:
    """Return the path itself or, for the directory of a gateway's log, its sample files by age."""
    return sorted(path.glob(LOG_FILES)) if path.is_dir() else [path]


def has_gold_only(path: Path) -> bool:
    """Whether a file of samples has gold answers but no grades."""
    return _find_known(path) == {"gold"}


def has_no_grades(path: Path) -> bool:
    """Whether a file of samples, or the log of a gateway, has neither grades nor gold answers."""
    files = find_log_files(path)
    return bool(files) and not any(_find_known(file) for file in files)


def _find_known(file: Path) -> set[str]:
    """Return which of the columns gold and correct have any value."""
    table = read_columns(file, pa.schema([UNGRADED.field("gold"), UNGRADED.field("correct")]))
    return {name for name in table.column_names if table[name].null_count < len(table)}


def read_ungraded(
    path: Path, key: pa.Table | None, grade: GradeFunction, *, pool_answers: bool = True
) -> GradedSamples:
    """Read samples and grade them with the gold answers of a question set.

    Without a question set, the gold answer of a question is the first one in its samples. Without
    ``pool_answers``, the arms of a question are graded apart, each with its own gold answer.
    """
    rows = [row for samples in _read_questions(path).values() for row in samples]
    return _grade(_group(rows, pool_answers=pool_answers), key, grade, path)


def read_answers(
    path: Path, write_alike: Callable[[Sequence[str | None]], Sequence[str | None]] | None
) -> GradedSamples:
    """Read samples without grades; ``write_alike`` finds the answers in the texts of a question.

    Without it, the recorded answers are compared as they are.
    """
    rows: list[Row] = []
    for samples in _read_questions(path).values():
        answers = [row["answer"] for row in samples]
        if write_alike is not None:
            answers = list(write_alike([row["completion"] or row["answer"] for row in samples]))
        for row, answer in zip(samples, answers, strict=True):
            rows.append({**row, "answer": answer, "correct": None})
    return GradedSamples(finish_samples(_make_table(rows, WITHOUT_GRADES, path), path))


def grade_table(
    table: pa.Table,
    key: pa.Table | None,
    grade: GradeFunction,
    source: object,
    *,
    pool_answers: bool = True,
) -> GradedSamples:
    """Grade a table with the columns of `UNGRADED`, as `read_ungraded` grades a file."""
    return _grade(_group(table.to_pylist(), pool_answers=pool_answers), key, grade, source)


def _group(rows: Sequence[Row], *, pool_answers: bool) -> list[list[Row]]:
    """Group rows by question, or by question and arm."""
    groups: dict[tuple[str, str | None], list[Row]] = {}
    for row in rows:
        arm = None if pool_answers else row["arm"] or row["model"]
        groups.setdefault((row["question_id"], arm), []).append(row)
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
            excluded[name] = excluded.get(name, 0) + len(samples)
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


def _read_questions(path: Path) -> dict[str, list[Row]]:
    """Read the samples of each question; those of a log are numbered across its files."""
    files = find_log_files(path)
    if not files:
        raise DataError(
            f"{path} holds no {LOG_FILES}: a gateway writes them when a log file is full and when "
            "it stops"
        )
    questions: dict[str, list[Row]] = {}
    for row in _read_decisions(files):
        questions.setdefault(row["question_id"], []).append(row)
    if path.is_dir():
        for samples in questions.values():
            for number, row in enumerate(samples):
                row["sample"] = number
    return questions


def _read_decisions(files: Sequence[Path]) -> list[Row]:
    """Read rows; a decision that a later file repeats, with more samples, replaces the earlier."""
    decisions: dict[str, list[Row]] = {}
    for file in files:
        found: dict[str, list[Row]] = {}
        for row in read_columns(file, UNGRADED).to_pylist():
            found.setdefault(row["decision_id"] or file.name, []).append(row)
        decisions |= found
    return [row for rows in decisions.values() for row in rows]
