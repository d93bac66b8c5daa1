"""Ungraded: samples that nobody has graded yet, as in a gateway's log, and a key to grade them by.

A question of the key is found by its id, by its text, or by the name that a log gives a text it may
not keep. What the key does not hold is left out. It knows nothing of how answers are
compared: it is given what grades.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.types import name_text
from adacompute.datasets.rows import SAMPLES, check_samples, read_columns

if TYPE_CHECKING:
    from pathlib import Path

    from adacompute.datasets.log_rows import Grading

_OPEN = SAMPLES.set(
    SAMPLES.get_field_index("correct"), pa.field("correct", pa.bool_(), nullable=True)
)


def read_ungraded(path: Path, key: pa.Table, grade: Grading) -> pa.Table:
    """Read samples and grade them by a question set, which holds a reference answer of each."""
    known = {}
    for row in key.to_pylist():
        names = (row["question_id"], row["question"], name_text(row["question"] or ""))
        known.update({name: row for name in names if name})
    samples: dict[str, list[dict[str, object]]] = {}
    for row in read_columns(path, _OPEN).to_pylist():
        samples.setdefault(row["question_id"], []).append(row)
    rows: list[dict[str, object]] = []
    for name, drawn in samples.items():
        asked = known.get(name) or known.get(str(drawn[0]["question"]))
        if asked is None:
            continue
        texts = [row["completion"] or row["answer"] for row in drawn]
        graded = grade([None if text is None else str(text) for text in texts], asked["gold"])
        about = {name: asked[name] for name in ("question", "gold", "difficulty")}
        for row, answer, right in zip(drawn, graded.answer, graded.right, strict=True):
            rows.append({**row, **about, "answer": answer, "correct": right})
    if not rows:
        raise DataError(f"none of the {len(samples)} questions of {path} is in the key")
    return check_samples(pa.Table.from_pylist(rows, schema=SAMPLES), path)
