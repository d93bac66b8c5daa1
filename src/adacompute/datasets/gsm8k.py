"""GSM8K: grade-school word problems, as OpenAI's JSON lines or as Parquet of the Hugging Face hub.

Both forms have a ``question`` and an ``answer`` that is a worked solution ending in ``#### 42``.
The gold answer is what stands there, without thousands separators; the difficulty is the number of
steps of the solution. A question is named by its file and row, such as ``gsm8k-test/0``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adacompute.core.errors import DataError
from adacompute.datasets.records import find_split, read_places, text_of
from adacompute.datasets.rows import make_questions

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MARK = "####"
"""What stands before the final answer of a solution."""

COLUMNS = frozenset({"question", "answer"})


def read_gsm8k(path: Path) -> pa.Table:
    """Read a file of GSM8K as a question set."""
    name = "gsm8k" + find_split(path)
    rows = []
    for number, (place, record) in enumerate(read_places(path, COLUMNS)):
        question, answer = text_of(record.get("question")), text_of(record.get("answer"))
        if question is None or answer is None or MARK not in answer:
            raise DataError(
                f"{place} is no question of GSM8K: it needs a 'question' and an 'answer' "
                f"that ends in '{MARK} ' and the final answer"
            )
        rows.append(
            {
                "question_id": f"{name}/{number}",
                "question": question,
                "gold": final_answer(answer),
                "difficulty": str(steps(answer)),
            }
        )
    return make_questions(rows, path)


def final_answer(solution: str) -> str:
    r"""Return what stands after the last mark, without thousands separators.

    >>> final_answer("She has 2 * 600 = 1200.\n#### 1,200")
    '1200'
    """
    return solution.rpartition(MARK)[2].strip().replace(",", "")


def steps(solution: str) -> int:
    """Count the lines of a solution before its final answer."""
    return sum(1 for line in solution.rpartition(MARK)[0].splitlines() if line.strip())
