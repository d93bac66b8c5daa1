"""Sources: read samples or questions from any supported format.

A source is a path, ``example`` for the samples that ship with the package, or ``hf:OWNER/NAME`` for
questions of the Hugging Face hub. The format follows from the suffix and the first record; for an
unknown one the error lists those that are supported. This module knows nothing of runs.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from adacompute.core.errors import ConfigError, DataError
from adacompute.datasets.competition_math import read_math
from adacompute.datasets.example import EXAMPLE, find_example
from adacompute.datasets.gsm8k import has_solutions, read_gsm8k
from adacompute.datasets.hub import PREFIX, fetch
from adacompute.datasets.logs.inspect_logs import find_inspect_logs, read_inspect_logs
from adacompute.datasets.logs.lm_eval_logs import find_lm_eval_logs, read_lm_eval_logs
from adacompute.datasets.records import format_of, is_json_list, read_examples
from adacompute.datasets.rows import QUESTION_SCHEMA, TEXT_READERS, read_questions, read_samples
from adacompute.datasets.ungraded import find_log_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adacompute.datasets.logs.log_rows import GradeFunction

SAMPLE_FORMATS = (
    "tidy samples (.parquet, .jsonl, .json or .csv), a log of Inspect (.eval or .json), a log of "
    "lm-evaluation-harness (samples_*.jsonl), a directory of such logs, or 'example'"
)
QUESTION_FORMATS = (
    "tidy questions (.parquet, .jsonl, .json or .csv), GSM8K (.jsonl or .parquet), MATH (a "
    "directory of JSON files, .jsonl or .parquet), the questions of samples or of logs, 'example', "
    "or hf:OWNER/NAME on the Hugging Face hub"
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
    if path.is_dir() and find_log_files(path):
        raise DataError(
            f"{path} is the log of a gateway, whose samples have no grades: pass a file of gold "
            "answers (gold= or --gold) and a grader (grader= or --grader), or run 'adacompute fit "
            "SOURCE --today N', which needs no grades"
        )
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
    if str(source).startswith(PREFIX):
        source = fetch(str(source))
    path = resolve_source(source)
    if _is_evaluation_log(path):
        return _questions_of(read_source(path, grade=_NoGrades))
    names = set() if columns else _read_names(path)
    if {"problem", "solution"} <= names and "question_id" not in names:
        return read_math(path)
    if {"question", "answer"} <= names and has_solutions(path):
        return read_gsm8k(path)
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


def _read_names(path: Path) -> set[str]:
    """Return the columns of a source; of a directory, the keys of its first JSON file."""
    if path.is_dir():
        path = next(iter(sorted(path.rglob("*.json"))), path)
    return set(read_examples(path))


def _questions_of(samples: pa.Table) -> pa.Table:
    """Return the questions of samples, in the order in which they first appear."""
    first = {name: i for i, name in reversed(list(enumerate(samples["question_id"].to_pylist())))}
    rows = samples.take(pa.array(sorted(first.values())))
    subject = pa.nulls(len(first), pa.string())
    columns = [
        rows[name] if name in rows.column_names else subject for name in QUESTION_SCHEMA.names
    ]
    return pa.table(columns, schema=QUESTION_SCHEMA)


def choose_questions(
    table: pa.Table,
    max_questions: int | None = None,
    *,
    difficulties: Sequence[str] | None = None,
    stratify: bool = False,
    seed: int,
) -> pa.Table:
    """Choose questions at random; with ``stratify``, equally many of each difficulty.

    If neither ``max_questions`` nor ``difficulties`` are given, the table is returned as it is. A
    difficulty with too few questions gives all of them. The choice and its order depend only on
    the ids and the seed, not on the order of the rows, and a larger choice begins with a smaller
    one. Questions without a difficulty are a stratum of their own; they are left out if
    ``difficulties`` selects some.
    """
    if max_questions is None and not difficulties:
        return table
    if max_questions is not None and max_questions < 1:
        raise ConfigError(f"the number of questions must be 1 or more, not {max_questions}")
    if difficulties:
        known = pc.unique(table["difficulty"]).drop_null().to_pylist()
        if missing := sorted(set(difficulties) - set(known)):
            raise ConfigError(f"there is no difficulty {missing[0]!r}; there are {sorted(known)}")
        table = table.filter(pc.is_in(table["difficulty"], pa.array(difficulties, pa.string())))
    ids, difficulty = table["question_id"].to_pylist(), table["difficulty"].to_pylist()
    keys = [_random_key(name, seed) for name in ids]
    order = sorted(range(len(ids)), key=lambda row: keys[row])
    strata: dict[str | None, list[int]] = {}
    for row in order:
        strata.setdefault(difficulty[row] if stratify else None, []).append(row)
    # In each round every stratum gives one question, as long as it has any.
    rounds = [
        (number, keys[row], row) for rows in strata.values() for number, row in enumerate(rows)
    ]
    chosen = sorted(rounds)[:max_questions]
    return table.take(pa.array([row for _, _, row in chosen], pa.int64()))


def _random_key(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
