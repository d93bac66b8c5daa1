"""GSM8K: grade-school word problems, as JSON lines (OpenAI) or Parquet (Hugging Face hub).

Both formats have a ``question`` and an ``answer``, a worked solution that ends in ``#### 42``. The
gold answer is the number there, without thousands separators; the difficulty is the number of steps
of the solution. The id of a question is its file and row, such as ``gsm8k-test/0``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adacompute.core.errors import DataError
from adacompute.datasets.records import as_text, find_split, format_of, read_located
from adacompute.datasets.rows import make_questions

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MARK = "####"
"""Marker before the final answer of a solution."""

COLUMNS = frozenset({"question", "answer"})


def has_solutions(path: Path) -> bool:
    """Whether the first answer of a file is a solution with a marked final answer."""
    if format_of(path) == ".csv":
        return False
    _, first = next(read_located(path, COLUMNS), ("", {}))
    return MARK in str(first.get("answer"))


def read_gsm8k(path: Path) -> pa.Table:
    """Read a GSM8K file as a question set."""
    name = "gsm8k" + find_split(path)
    rows = []
    for number, (location, record) in enumerate(read_located(path, COLUMNS)):
        question, answer = as_text(record.get("question")), as_text(record.get("answer"))
        if question is None or answer is None or MARK not in answer:
            raise DataError(
                f"{location} is not a GSM8K question: it needs a 'question' and an 'answer' "
                f"that ends in '{MARK} ' and the final answer"
            )
        rows.append(
            {
                "question_id": f"{name}/{number}",
                "question": question,
                "gold": final_answer(answer),
                "difficulty": str(count_steps(answer)),
            }
        )
    return make_questions(rows, path)


def final_answer(solution: str) -> str:
    r"""Return the text after the last marker, without thousands separators.

    >>> final_answer("She has 2 * 600 = 1200.\n#### 1,200")
    '1200'
    """
    return solution.rpartition(MARK)[2].strip().replace(",", "")


def count_steps(solution: str) -> int:
    """Count the lines of a solution before its final answer."""
    return sum(1 for line in solution.rpartition(MARK)[0].splitlines() if line.strip())
