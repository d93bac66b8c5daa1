"""Ungraded: samples that nobody has graded yet, as in a gateway's log, and a key to grade them by.

A question of the key is found by its id, by its text, or by the name that a log gives a text it may
not keep; or the samples hold their own reference answers. What has no reference answer is left out,
and counted. It knows nothing of how answers are compared: it is given what grades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.types import text_id
from adacompute.datasets.rows import SAMPLES, check_samples, read_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adacompute.datasets.log_rows import Grading

LOGGED = "samples-*.parquet"
"""Files of a gateway's log that hold samples."""

UNGRADED = SAMPLES.set(
    SAMPLES.get_field_index("correct"), pa.field("correct", pa.bool_(), nullable=True)
).append(pa.field("decision_id", pa.string()))
"""Columns of samples that may have no grade."""


class Keyed(NamedTuple):
    """Samples that a key graded, and how many questions and samples it did not know."""

    samples: pa.Table
    excluded: int
    excluded_samples: int


def find_logged(path: Path) -> list[Path]:
    """Find the files of samples that a path names: itself, or those of a gateway's log, by age."""
    return sorted(path.glob(LOGGED)) if path.is_dir() else [path]


def holds_key(path: Path) -> bool:
    """Whether tidy samples have reference answers, and no grade at all."""
    found = read_columns(path, pa.schema([UNGRADED.field("gold"), UNGRADED.field("correct")]))
    gold, correct = found["gold"], found["correct"]
    return bool(correct.null_count == len(correct) and gold.null_count < len(gold))


def read_ungraded(path: Path, key: pa.Table | None, grade: Grading) -> Keyed:
    """Read samples and grade them by a question set with a reference answer of each.

    Without one they are graded by the first reference answer that their question's samples hold.
    """
    return _grade(_read_questions(path), key, grade, path)


def grade_table(table: pa.Table, key: pa.Table | None, grade: Grading, source: object) -> Keyed:
    """Grade a table with the columns of `UNGRADED`, as `read_ungraded` grades a file."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        samples.setdefault(row["question_id"], []).append(row)
    return _grade(samples, key, grade, source)


def _grade(
    samples: dict[str, list[dict[str, Any]]], key: pa.Table | None, grade: Grading, source: object
) -> Keyed:
    known = _own_key(samples) if key is None else _index(key)
    rows: list[dict[str, Any]] = []
    left: list[int] = []
    for name, drawn in samples.items():
        asked = known.get(name) or known.get(drawn[0]["question"])
        if asked is None:
            left.append(len(drawn))
            continue
        texts = [row["completion"] or row["answer"] for row in drawn]
        try:
            graded = grade(texts, asked["gold"])
        except DataError as error:
            raise DataError(f"question {name!r}: {error}") from None
        about = {name: asked[name] for name in ("question", "gold", "difficulty")}
        for row, answer, right in zip(drawn, graded.answer, graded.correct, strict=True):
            rows.append({**row, **about, "answer": answer, "correct": right})
    if not rows:
        raise DataError(
            f"none of the {len(samples)} questions of {source} has a reference answer in the key"
        )
    table = check_samples(pa.Table.from_pylist(rows, schema=SAMPLES), source)
    return Keyed(table, len(left), sum(left))


def _own_key(samples: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Find the first sample of each question that holds a reference answer."""
    rows = (row for drawn in samples.values() for row in reversed(drawn))
    return {row["question_id"]: row for row in rows if row["gold"] is not None}


def _index(key: pa.Table) -> dict[str, dict[str, Any]]:
    """Find the questions of a key that have a reference answer by any of their names."""
    known: dict[str, dict[str, Any]] = {}
    for row in key.to_pylist():
        names = (row["question_id"], row["question"], text_id(row["question"] or ""))
        known.update({name: row for name in names if name and row["gold"] is not None})
    return known


def _read_questions(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the samples of each question; those of a log are numbered over all its files."""
    files = find_logged(path)
    if not files:
        raise DataError(
            f"{path} holds no {LOGGED}: a gateway writes them to its log when a file is full and "
            "when it ends"
        )
    samples: dict[str, list[dict[str, Any]]] = {}
    for row in _read_decisions(files):
        samples.setdefault(row["question_id"], []).append(row)
    if path.is_dir():
        for drawn in samples.values():
            for number, row in enumerate(drawn):
                row["sample"] = number
    return samples


def _read_decisions(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Read rows; a decision that a later file holds again, with more draws, counts as there."""
    decisions: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in read_columns(file, UNGRADED).to_pylist():
            found.setdefault(row["decision_id"] or file.name, []).append(row)
        decisions |= found
    return [row for rows in decisions.values() for row in rows]
