"""Sources: read samples or questions from any supported format.

A source is a path, or ``example`` for the samples that ship with the package. The format follows
from the suffix and the first record; for an unknown one the error lists those that are supported.
This module knows nothing of runs.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.example import EXAMPLE, find_example
from adacompute.datasets.logs.inspect_logs import find_inspect_logs, read_inspect_logs
from adacompute.datasets.logs.lm_eval_logs import find_lm_eval_logs, read_lm_eval_logs
from adacompute.datasets.records import format_of, is_json_list
from adacompute.datasets.rows import QUESTION_SCHEMA, TEXT_READERS, read_questions, read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adacompute.datasets.logs.log_rows import GradeFunction

SAMPLE_FORMATS = (
    "tidy samples (.parquet, .jsonl, .json or .csv), a log of Inspect (.eval or .json), a log of "
    "lm-evaluation-harness (samples_*.jsonl), a directory of such logs, or 'example'"
)
QUESTION_FORMATS = (
    "tidy questions (.parquet, .jsonl, .json or .csv), the questions of samples or of logs, or "
    "'example'"
)

_TIDY_SUFFIXES = (".parquet", *TEXT_READERS)


def read_source(source: str | Path, *, grade: GradeFunction | None = None) -> pa.Table:
    """Read recorded samples.

    ``grade`` grades the completions of a log without grades; it is not used for other sources.
    """
    path = resolve_source(source)
    if path.suffix == ".eval" or find_inspect_logs(path):
        return read_inspect_logs(path, grade=grade)
    if find_lm_eval_logs(path):
        return read_lm_eval_logs(path, grade=grade)
    if is_tidy_file(path):
        return read_samples(path)
    raise DataError(f"{path} holds no samples in a supported format: {SAMPLE_FORMATS}")


def is_tidy_file(path: Path) -> bool:
    """Whether a path is a file of rows and not an evaluation log."""
    if not path.is_file() or format_of(path) not in _TIDY_SUFFIXES:
        return False
    is_rows = format_of(path) != ".json" or is_json_list(path)
    return is_rows and not _is_evaluation_log(path)


def _is_evaluation_log(path: Path) -> bool:
    return path.suffix == ".eval" or bool(find_inspect_logs(path) or find_lm_eval_logs(path))


def read_question_source(source: str | Path, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Read questions with their gold answers, also from samples and logs.

    ``columns`` maps our names of columns to those of a file of rows.
    """
    path = resolve_source(source)
    if _is_evaluation_log(path):
        return _questions_of(read_source(path, grade=_NoGrades))
    if is_tidy_file(path):
        return read_questions(path, columns)
    raise DataError(f"{path} holds no questions in a supported format: {QUESTION_FORMATS}")


class _NoGrades:
    """Grades that are all false, for reading only the questions of a log."""

    def __init__(self, completions: Sequence[str | None], _: str | None) -> None:
        self.answer: list[str | None] = [None] * len(completions)
        self.correct = [False] * len(completions)


def resolve_source(source: str | Path) -> Path:
    """Path of a source; ``example`` is the shipped file, unless there is a file of that name."""
    path = Path(source)
    if not path.exists():
        if str(source) == EXAMPLE:
            return find_example()
        is_close = bool(get_close_matches(str(source).lower(), [EXAMPLE]))
        hint = f": did you mean {EXAMPLE!r}, the samples that come with the package?"
        raise DataError(f"there is no file or directory {path}{hint if is_close else ''}")
    return path


def _questions_of(samples: pa.Table) -> pa.Table:
    """Return the questions of samples, in the order in which they first appear."""
    first = {name: i for i, name in reversed(list(enumerate(samples["question_id"].to_pylist())))}
    rows = samples.take(pa.array(sorted(first.values())))
    return rows.select(QUESTION_SCHEMA.names).cast(QUESTION_SCHEMA)


def choose_questions(table: pa.Table, max_questions: int | None = None, *, seed: int) -> pa.Table:
    """Choose questions at random; without ``max_questions`` return the table as it is.

    The choice and its order depend only on the ids and the seed, not on the order of the rows, and
    a larger choice begins with a smaller one.
    """
    if max_questions is None:
        return table
    if max_questions < 1:
        raise ConfigError(f"the number of questions must be 1 or more, not {max_questions}")
    keys = [_random_key(name, seed) for name in table["question_id"].to_pylist()]
    chosen = sorted(range(len(keys)), key=keys.__getitem__)[:max_questions]
    return table.take(pa.array(chosen, pa.int64()))


def _random_key(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
