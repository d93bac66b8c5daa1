"""Grade log: what grades say of a gateway's answers, those that were sure and all.

Grades come from a file, or from what clients sent to ``/adacompute/feedback``. What people grade is
a selection, so the shares are those of the graded answers; only a random choice of requests says
something of all. The intervals hold however often one looks.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.evidence import bound_share
from adacompute.datasets.text_rows import BOOLEANS
from adacompute.storage.decisions import has_decisions, read_decisions
from adacompute.storage.grades import FILE, read_grades
from adacompute.storage.regular_files import check_regular

ID, CORRECT = "id", "correct"


def grade_log(log: Path, grades: Path | None) -> dict[str, Any]:
    """Return the share of right answers among graded ones: of all, of sure ones and of others."""
    if not has_decisions(log):
        raise ConfigError(f"{log} is no decision log: give --grader to grade a run")
    rows = {row["id"]: row for row in read_decisions(log, ("client", "sure")).to_pylist()}
    given = _read_sent(log, rows) if grades is None else _read_file(grades)
    if not given:
        raise DataError(f"{grades or log / FILE} has no grades")
    known = {number: right for number, right in given.items() if number in rows}
    kinds = {
        "all": list(known.values()),
        "sure": [right for number, right in known.items() if rows[number]["sure"] is True],
        "unsure": [right for number, right in known.items() if rows[number]["sure"] is False],
    }
    return {
        "decisions": len(rows),
        "graded": len(known),
        "unknown": len(given) - len(known),
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
    sent = read_grades(log / FILE).values()
    return {
        one.id: one.correct
        for one in sent
        if one.correct is not None and rows.get(one.id, {}).get("client") == one.client
    }


def _read_file(path: Path) -> dict[str, bool]:
    """Return the grades in a CSV file with the columns ``id`` and ``correct``."""
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
