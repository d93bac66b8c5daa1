"""Sources: one door to samples and to questions, whatever form they are in.

A source is a path, ``example`` for the samples that ship with the package, or ``hf:OWNER/NAME`` for
questions of the Hugging Face hub. What it is follows from its ending and its first record; what is
none of the known forms ends in one sentence that lists them. It knows nothing of runs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.competition_math import read_math
from adacompute.datasets.example import NAME, find_example
from adacompute.datasets.gsm8k import read_gsm8k
from adacompute.datasets.hub import PREFIX, fetch
from adacompute.datasets.inspect_logs import find_inspect_logs, read_inspect_logs
from adacompute.datasets.lm_eval_logs import find_lm_eval_logs, read_lm_eval_logs
from adacompute.datasets.records import find_names
from adacompute.datasets.rows import QUESTIONS, TEXT_READERS, read_questions, read_samples
from adacompute.datasets.ungraded import find_logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.datasets.log_rows import Grading

SAMPLE_FORMS = (
    "tidy samples (.parquet, .jsonl, .ndjson or .csv), a log of Inspect (.eval or .json), a log of "
    "lm-evaluation-harness (samples_*.jsonl), a directory of such logs, or 'example'"
)
QUESTION_FORMS = (
    "tidy questions (.parquet, .jsonl, .ndjson or .csv), GSM8K (.jsonl or .parquet), MATH (a "
    "directory of JSON files, .jsonl or .parquet), tidy samples (.jsonl or .parquet) or logs, "
    "whose questions are asked again, 'example', or hf:OWNER/NAME on the Hugging Face hub"
)

_TIDY = (".parquet", *TEXT_READERS)
_SAMPLED = {"question_id", "sample", "correct"}
"""Columns that tell samples from questions."""


def read_source(source: str | Path, *, grade: Grading | None = None) -> pa.Table:
    """Read recorded samples.

    ``grade`` grades the completions of a log that does not tell which of them are right; where the
    source tells, it is not used.
    """
    path = locate(source)
    if path.suffix == ".eval" or find_inspect_logs(path):
        return read_inspect_logs(path, grade=grade)
    if find_lm_eval_logs(path):
        return read_lm_eval_logs(path, grade=grade)
    if is_tidy(path):
        return read_samples(path)
    if path.is_dir() and find_logged(path):
        raise DataError(
            f"{path} is a gateway's log, whose samples nobody has graded: add --gold FILE, which "
            "gives the right answers, and --grader"
        )
    raise DataError(f"{path} holds no samples in a form that is known: {SAMPLE_FORMS}")


def is_tidy(path: Path) -> bool:
    """Whether a path is a file of rows, and no log of a harness."""
    tidy = path.is_file() and path.suffix.lower() in _TIDY
    return tidy and not find_inspect_logs(path) and not find_lm_eval_logs(path)


def read_question_source(source: str | Path) -> pa.Table:
    """Read questions with their gold answers; of samples and logs those that were asked."""
    if str(source).startswith(PREFIX):
        source = fetch(str(source))
    path = locate(source)
    if path.suffix == ".eval" or find_inspect_logs(path) or find_lm_eval_logs(path):
        return _asked(read_source(path, grade=_Ungraded))
    names = _names(path)
    if names >= _SAMPLED:
        return _asked(read_samples(path))
    if "question_id" in names or path.suffix.lower() == ".csv":
        return read_questions(path)
    if "problem" in names:
        return read_math(path)
    if {"question", "answer"} <= names:
        return read_gsm8k(path)
    raise DataError(f"{path} holds no questions in a form that is known: {QUESTION_FORMS}")


class _Ungraded:
    """No grades, for where only the questions are wanted."""

    def __init__(self, completions: Sequence[str | None], _: str | None) -> None:
        self.answer: list[str | None] = [None] * len(completions)
        self.correct = [False] * len(completions)


def locate(source: str | Path) -> Path:
    """Find where a source lies; ``example`` ships with the package."""
    path = Path(source)
    if not path.exists():
        if str(source) == NAME:
            return find_example()
        raise DataError(f"there is no file or directory {path}")
    return path


def _names(path: Path) -> set[str]:
    """Return what the first record of a source holds; of a directory, its first JSON file."""
    if path.is_dir():
        path = next(iter(sorted(path.rglob("*.json"))), path)
    return find_names(path)


def _asked(samples: pa.Table) -> pa.Table:
    """Return the questions of samples, each once, in the order in which they first appear."""
    first = {name: i for i, name in reversed(list(enumerate(samples["question_id"].to_pylist())))}
    rows = samples.take(pa.array(sorted(first.values())))
    subject = pa.nulls(len(first), pa.string())
    columns = [rows[name] if name in rows.column_names else subject for name in QUESTIONS.names]
    return pa.table(columns, schema=QUESTIONS)


def choose_questions(
    table: pa.Table, count: int, *, difficulties: Sequence[str] | None = None, seed: int
) -> pa.Table:
    """Choose questions, equally many of each difficulty as far as they go.

    The choice and its order depend on the ids and the seed alone, not on the order of the rows, and
    a larger choice begins with the smaller one. Questions without a difficulty are as a difficulty
    of their own, and left out if ``difficulties`` names those that are wanted.
    """
    if count < 1:
        raise ConfigError(f"{count} questions cannot be chosen: choose at least 1")
    if difficulties is not None:
        known = pc.unique(table["difficulty"]).drop_null().to_pylist()
        if missing := sorted(set(difficulties) - set(known)):
            raise ConfigError(f"there is no difficulty {missing[0]!r}; there are {sorted(known)}")
        table = table.filter(pc.is_in(table["difficulty"], pa.array(difficulties, pa.string())))
    names, levels = table["question_id"].to_pylist(), table["difficulty"].to_pylist()
    keys = [_key(name, seed) for name in names]
    order = sorted(range(len(names)), key=lambda row: keys[row])
    strata: dict[str | None, list[int]] = {}
    for row in order:
        strata.setdefault(levels[row], []).append(row)
    # Round by round each difficulty gives its next question, so that they differ by at most one
    # but for those that have no more.
    turns = [(turn, keys[row], row) for rows in strata.values() for turn, row in enumerate(rows)]
    chosen = sorted(turns)[:count]
    return table.take(pa.array([row for _, _, row in chosen], pa.int64()))


def _key(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
