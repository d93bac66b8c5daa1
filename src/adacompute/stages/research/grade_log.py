"""Grade log: what grades say of a gateway's answers, those that were sure and all.

Grades come from a file, or from what clients sent to ``/adacompute/feedback``. What people grade is
a selection, so the shares are those of the graded answers. Only those of the random choice that the
gateway writes for grading (``grade_share``) say something of all, if all of it is graded. The
intervals hold however often one looks.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.evidence import bound_share
from adacompute.datasets.text_rows import BOOLEANS
from adacompute.storage.decisions import (
    GRADES,
    TO_GRADE,
    has_decisions,
    read_decisions,
    read_records,
)
from adacompute.storage.grades import read_grades
from adacompute.storage.regular_files import check_regular

ID, CORRECT = "id", "correct"


def grade_log(log: Path, grades: Path | None) -> dict[str, Any]:
    """Return the share of right answers among graded ones: of all, of sure ones and of others.

    Those of requests that were chosen at random are shown apart.
    """
    if not has_decisions(log):
        raise ConfigError(f"{log} is no decision log: give --grader to grade a run")
    rows = {row["id"]: row for row in read_decisions(log, ("client", "sure")).to_pylist()}
    given = _read_sent(log, rows) if grades is None else _read_file(grades)
    if not given:
        raise DataError(f"{grades or log / GRADES} has no grades")
    known = {number: right for number, right in given.items() if number in rows}
    chosen = _read_chosen(log) & rows.keys()
    at_random = {number: right for number, right in known.items() if number in chosen}
    kinds = {
        "all": list(known.values()),
        "sure": [right for number, right in known.items() if rows[number]["sure"] is True],
        "unsure": [right for number, right in known.items() if rows[number]["sure"] is False],
        "random": list(at_random.values()),
        "random_sure": [right for number, right in at_random.items() if rows[number]["sure"]],
    }
    return {
        "decisions": len(rows),
        "graded": len(known),
        "unknown": len(given) - len(known),
        "chosen": len(chosen),
        **{name: _describe(right) for name, right in kinds.items()},
    }


def _describe(right: list[bool]) -> dict[str, float | int | None]:
    """Return the number of grades, the share of right answers, and its interval."""
    n_right, size = sum(right), len(right)
    low, high = bound_share(n_right, size - n_right)
    share = n_right / size if size else None
    return {"graded": size, "right": share, "right_low": low, "right_high": high}


def _read_sent(log: Path, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Return what clients sent of their own decisions."""
    sent = read_grades(log / GRADES).values()
    return {
        one.id: one.correct
        for one in sent
        if one.correct is not None and rows.get(one.id, {}).get("client") == one.client
    }


def _read_chosen(log: Path) -> set[str]:
    """Return the decisions that were written for grading, by chance."""
    path = log / TO_GRADE
    return {str(one.get(ID)) for one in read_records(path)} if path.exists() else set()


def _read_file(path: Path) -> dict[str, bool]:
    """Return the grades in a CSV file, or one of JSON lines, with ``id`` and ``correct``."""
    if path.suffix == ".jsonl":  # a line without a grade is not graded yet
        records = [one for one in read_records(path) if isinstance(one.get(CORRECT), bool)]
        return {str(one.get(ID)): one[CORRECT] for one in records}
    found: dict[str, bool] = {}
    try:
        with check_regular(path).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if missing := {ID, CORRECT} - set(rows.fieldnames or ()):
                raise DataError(f"{path} has no column {min(missing)}: it needs id and correct")
            for row in rows:
                right = BOOLEANS.get(str(row[CORRECT]).strip().lower())
                if right is None:
                    where = f"{path} line {rows.line_num}"
                    raise DataError(f"{where}: correct must be true or false, yes or no, 1 or 0")
                found[row[ID]] = right
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no CSV file: {error}") from None
    return found
