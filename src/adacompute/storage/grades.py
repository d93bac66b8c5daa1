"""Grades: what users say of answers of a gateway, whether they were right.

They are lines in one file of the decision log's directory, appended by any process. A grade counts
only for a decision of the same client, so readers join the two; the last grade of a decision
counts. This module does not know how answers are compared.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from adacompute.storage.decisions import ACTIVE, FULL, GRADES, read_records
from adacompute.storage.line_files import append_line

MAX_BYTES = 1_000_000_000
"""Size at which no more grades are taken."""


@dataclass(frozen=True)
class Grade:
    """What a client says of a decision: whether it was right, or what the right answer is."""

    id: str
    client: str
    correct: bool | None
    answer: str | None
    time: float


def append_grade(directory: Path, grade: Grade) -> None:
    """Append a grade to a log; OSError if it is full or cannot be written."""
    append_line(directory / GRADES, asdict(grade), MAX_BYTES)


def read_grades(path: Path) -> dict[tuple[str, str], Grade]:
    """Return the last grade of each decision and client; none if there is no file.

    A line that a full disk or a kill cut off is passed over.
    """
    if not path.exists():
        return {}
    found: dict[tuple[str, str], Grade] = {}
    for record in read_records(path):
        known: dict[str, Any] = {one.name: record.get(one.name) for one in fields(Grade)}
        if isinstance(known["id"], str) and isinstance(known["client"], str):
            known["correct"] = known["correct"] if isinstance(known["correct"], bool) else None
            found[known["id"], known["client"]] = Grade(**known)
    return found


def find_decision(directory: Path, number: str) -> Mapping[str, Any] | None:
    """Return a decision that was made recently; None if it is not known here."""
    for record in _find(directory, f'"id":"{number}"'.encode()):
        if record.get("id") == number:
            return record
    return None


def _find(directory: Path, text: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the decisions whose lines contain a text."""
    for path in sorted({one for pattern in (ACTIVE, FULL) for one in directory.glob(pattern)}):
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                at = data.rfind(text)
                if at >= 0:
                    begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
                    yield json.loads(data[begin : end if end >= 0 else len(data)])
        except (OSError, ValueError):
            continue  # renamed, compacted, empty or cut off meanwhile
