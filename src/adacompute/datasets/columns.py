"""Columns: those of sample files and question files, with their types and meanings.

The reference is made from these tables. It reads no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from adacompute.core.errors import DataError
from adacompute.core.signals import MAX_GIVEN, PREFIX, SCORE, is_given

REQUIRED = frozenset({"question_id", "sample", "correct"})
"""Columns that may not be null."""

SAMPLE_COLUMNS: Mapping[str, tuple[Any, str]] = {
    "question_id": (pa.string(), "id of the question"),
    "question": (
        pa.string(),
        "its text. Copies of a text are kept together when questions are held out",
    ),
    "group": (
        pa.string(),
        (
            "questions with the same value count as copies of each other, whatever their texts; "
            "null: found from the text"
        ),
    ),
    "gold": (pa.string(), "reference answer; required by ``grade``"),
    "difficulty": (pa.string(), "the source's difficulty or subject"),
    "sample": (pa.int32(), "number of the sample within its question and arm, from 0"),
    "answer": (
        pa.string(),
        (
            "the answer extracted from the completion. Null or blank is unparsed and abstains in a "
            "vote"
        ),
    ),
    "correct": (pa.bool_(), "whether the answer is correct; false where the answer is null"),
    "completion": (
        pa.string(),
        "text of the sample; ``grade`` uses it if every sample has one",
    ),
    "completion_chars": (
        pa.int32(),
        ("its length in characters; counted from ``completion`` if the column is absent"),
    ),
    "completion_tokens": (
        pa.int32(),
        (
            "its length in tokens, for budgets in this unit. Up to 1 % of missing lengths are "
            "replaced by the mean of their question"
        ),
    ),
    "mean_logprob": (pa.float32(), "mean log-probability of its tokens, for weighted votes"),
    "min_logprob_window": (
        pa.float32(),
        "lowest mean log-probability over 16 consecutive tokens, or over all if there are fewer",
    ),
    "answer_logprob": (
        pa.float32(),
        (
            "mean log-probability of the tokens that spell the answer, where it occurs last in the "
            "text; null if the text does not contain it as the grader writes it"
        ),
    ),
    "temperature": (pa.float32(), "sampling temperature"),
    "latency_s": (pa.float32(), "seconds that it took, for limits on latency"),
    "model": (pa.string(), "model that it was sampled from"),
    "arm": (pa.string(), "arm that it was sampled from: a model with its settings"),
    "prompt_tokens": (pa.int32(), "tokens of the call's prompt"),
    "cached_tokens": (pa.int32(), "prompt tokens that were cached"),
    "reasoning_tokens": (pa.int32(), "hidden tokens, part of ``completion_tokens``"),
    "samples_per_call": (
        pa.int32(),
        "samples that the call returned; they share the cost of one prompt",
    ),
    "finish_reason": (pa.string(), "why the completion ended"),
    "cost": (pa.float64(), "money paid for the sample, including its score"),
    "score": (pa.float64(), "the scorer's rating, larger is better: for best-of-n, and a signal"),
    "entropy": (pa.float32(), "mean entropy of its tokens, from 0 to 1"),
    "top_logprobs": (
        pa.int32(),
        "how many of the likeliest tokens ``entropy`` was estimated from",
    ),
}
"""Columns of recorded samples, one row per sample."""

QUESTION_COLUMNS: Mapping[str, tuple[Any, str]] = {
    "question_id": (pa.string(), "id of the question"),
    "question": (pa.string(), "its text"),
    "gold": (pa.string(), "reference answer"),
    "difficulty": (pa.string(), "the source's difficulty"),
}
"""Columns of question files, one row per question."""


def make_schema(columns: Mapping[str, tuple[Any, str]]) -> pa.Schema:
    """Return the schema of a table with these columns."""
    return pa.schema(
        [pa.field(name, kind, nullable=name not in REQUIRED) for name, (kind, _) in columns.items()]
    )


def add_signals(schema: pa.Schema, names: Iterable[str], source: object) -> pa.Schema:
    """Return a schema of samples with those of some columns that are named ``signal_…``.

    Other tables have none. DataError if there are many, or if a name is not short and plain.
    """
    known = (*schema.names, *names)
    found = [name for name in dict.fromkeys(known) if name.startswith(PREFIX)]
    found = found if SCORE in schema.names else []
    if wrong := [name for name in found if not is_given(name)]:
        raise DataError(
            f"{source} has a column {wrong[0][:80]!r}, which cannot be a signal: name it "
            f"'{PREFIX}' and up to 40 letters, digits and underscores"
        )
    if len(found) > MAX_GIVEN:
        raise DataError(
            f"{source} has {len(found)} columns named '{PREFIX}…', above the limit of {MAX_GIVEN}: "
            "leave some out"
        )
    added = [pa.field(name, pa.float64()) for name in found if name not in schema.names]
    return pa.schema([*schema, *added])


def advise(name: str) -> str:
    """Return what to do about a value that is no number, where it is that of a signal."""
    return ": write numbers, or rename the column" if is_given(name) else ""
