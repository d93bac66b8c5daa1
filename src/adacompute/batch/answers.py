"""Answers: what a batch writes for each question, in Parquet parts of a fixed number of rows.

A part is written, completely or not at all, when all of its questions have ended, so the finished
parts of a stopped batch are its first ones. Rows are in the order of the questions, and their
content depends only on the samples: two runs with the same samples write the same bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.batch.questions import QuestionSource, read_arrays
from adacompute.core.types import FloatArray, IntArray
from adacompute.storage.regular_files import write_table

PART_ROWS = 8192
"""Questions per part."""

ANSWERED: Final = "answered"
LIMITED: Final = "limited"
UNANSWERED: Final = "unanswered"
ERROR: Final = "error"
Status = Literal["answered", "limited", "unanswered", "error"]
"""Answered as the policy wants; stopped by the total; no sample could be parsed; failed."""

ANSWER_COLUMNS: Mapping[str, tuple[Any, str]] = {
    "position": (pa.int64(), "number of the question in the input, from 0"),
    "question_id": (pa.string(), "id of the question"),
    "answer": (pa.large_string(), "the answer; null if no sample could be parsed"),
    "text": (pa.large_string(), "text of the sample that the answer is from"),
    "n_samples": (pa.int32(), "samples that were drawn"),
    "agreement": (pa.float64(), "share of the parsed answers that equal the most frequent one"),
    "p_correct": (pa.float64(), "how likely the answer is right; null if the bundle cannot say"),
    "sure": (
        pa.bool_(),
        "whether it is one of those whose precision is guaranteed; null if not judged",
    ),
    "cost": (pa.float64(), "what the question spent, in the unit of the total"),
    "allowance": (pa.float64(), "the most that it could spend when it was first asked"),
    "price": (pa.float64(), "price of the decision"),
    "status": (
        pa.string(),
        (
            "``answered`` as the policy wants, ``limited`` by the total, ``unanswered`` (no sample "
            "could be parsed) or ``error``"
        ),
    ),
    "error": (pa.string(), "why the question failed; null if it did not"),
}
"""Type and meaning of the columns of answers, one row per question."""

_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in ANSWER_COLUMNS.items()])

UNSURE_READ = ("question_id", "answer", "p_correct", "sure")
UNSURE_COLUMNS = ("question_id", "question", "answer", "p_correct")
"""Columns of answers that the unsure ones are found by, and of the file of unsure ones."""

AMOUNTS = ("cost", "allowance")
"""Columns that are integer amounts here, and in the unit in files."""


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one question.

    ``text`` is that of the chosen sample. ``cost`` is what the question spent and ``allowance``
    what it could have spent in the first pass, both as integer amounts.
    """

    position: int
    question_id: str
    answer: str | None
    text: str | None
    n_samples: int
    agreement: float | None
    p_correct: float | None
    sure: bool | None
    cost: int
    allowance: int
    price: float
    status: Status
    error: str | None = None


class AnswerParts:
    """The parts of a batch of ``n_questions``; ``per_unit`` amounts are one unit of cost.

    Positions in files are larger by ``offset``.
    """

    def __init__(
        self,
        directory: Path,
        n_questions: int,
        *,
        offset: int = 0,
        part_rows: int = PART_ROWS,
        per_unit: int = 1,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.part_rows = part_rows
        self._offset = offset
        self._per_unit = per_unit
        self._directory = directory
        self._n_questions = n_questions
        self._pending: dict[int, list[BatchAnswer]] = {}

    @property
    def n_parts(self) -> int:
        """Number of parts of the finished batch."""
        return -(-self._n_questions // self.part_rows)

    def path(self, part: int) -> Path:
        """Return the file of a part."""
        return self._directory / f"part-{part:06d}.parquet"

    def count_finished(self) -> int:
        """Return the number of questions in the parts that are written."""
        for part in range(self.n_parts):
            if not self.path(part).is_file():
                return part * self.part_rows
        return self._n_questions

    def add(self, answer: BatchAnswer) -> None:
        """Add an answer; its part is written if it is complete."""
        part = answer.position // self.part_rows
        rows = self._pending.setdefault(part, [])
        rows.append(answer)
        size = min(self.part_rows, self._n_questions - part * self.part_rows)
        if len(rows) == size:
            del self._pending[part]
            self._write(part, sorted(rows, key=lambda row: row.position))

    def read(self, columns: list[str]) -> Iterator[pa.Table]:
        """Yield columns of the parts that are written."""
        for part in range(self.n_parts):
            if self.path(part).is_file():
                yield pq.read_table(self.path(part), columns=columns)

    def costs(self, column: str = "cost") -> Iterator[IntArray]:
        """Yield the costs of the questions of each part that is written, as integer amounts."""
        for table in self.read([column]):
            yield self._to_amounts(table[column].to_numpy())

    def last(self, count: int) -> list[tuple[int, int]]:
        """Return the allowances and the costs of the last questions, at most of one part."""
        part = self.count_finished() // self.part_rows - 1
        if part < 0:
            return []
        table = pq.read_table(self.path(part), columns=list(AMOUNTS))
        costs, allowances = (self._to_amounts(table[name].to_numpy()) for name in AMOUNTS)
        return list(zip(allowances.tolist(), costs.tolist(), strict=True))[-count:]

    def replace(self, answers: Mapping[int, BatchAnswer]) -> None:
        """Replace answers by their positions, part by part."""
        for part in sorted({position // self.part_rows for position in answers}):
            columns = pq.read_table(self.path(part)).to_pydict()
            first = part * self.part_rows
            rows = [i for i in range(len(columns["position"])) if first + i in answers]
            replaced = self._to_columns([answers[first + i] for i in rows])
            for name, values in replaced.items():
                for i, value in zip(rows, values, strict=True):
                    columns[name][i] = value
            write_table(self.path(part), pa.table(columns, schema=_SCHEMA))

    def _to_amounts(self, cost: FloatArray) -> IntArray:
        return np.rint(cost * self._per_unit).astype(np.int64)

    def _write(self, part: int, rows: Sequence[BatchAnswer]) -> None:
        write_table(self.path(part), pa.table(self._to_columns(rows), schema=_SCHEMA))

    def _to_columns(self, rows: Sequence[BatchAnswer]) -> dict[str, list[Any]]:
        """Return the columns of a file."""
        columns = {
            field.name: [getattr(row, field.name) for row in rows] for field in fields(BatchAnswer)
        }
        for name in AMOUNTS:
            columns[name] = [amount / self._per_unit for amount in columns[name]]
        columns["position"] = [row.position + self._offset for row in rows]
        return columns


def write_unsure(parts: Sequence[Path], source: QuestionSource, path: Path) -> int:
    """Write the questions whose answers are not sure, for people; return how many there are.

    The file has the columns ``question_id``, ``question``, ``answer`` and ``p_correct``.
    """
    n_unsure, partial = 0, path.with_suffix(".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(UNSURE_COLUMNS)
        for part in parts:
            table = pq.read_table(part, columns=["position", *UNSURE_READ])
            is_unsure = pc.invert(pc.fill_null(table["sure"], False))
            rows = {row.pop("position"): row for row in table.filter(is_unsure).to_pylist()}
            if not rows:
                continue
            known = {"start": min(rows), "stop": max(rows) + 1, "block_size": PART_ROWS}
            for block in read_arrays(source, **known):
                for position in sorted(rows.keys() & range(block.position, block.stop)):
                    row, text = rows[position], block.texts[position - block.position].as_py()
                    lines.writerow([row["question_id"], text, row["answer"], row["p_correct"]])
            n_unsure += len(rows)
    partial.replace(path)
    return n_unsure
