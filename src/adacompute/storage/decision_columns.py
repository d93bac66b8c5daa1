"""Decision columns: the columns of the decision log, with their types and meanings.

The reference is made from these tables. It reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

Columns = Mapping[str, tuple[Any, str]]
"""Type and meaning of each column, by its name."""

DECISION_COLUMNS: Columns = {
    "id": (pa.string(), "id of the decision, as in the header ``x-adacompute-decision``"),
    "time": (pa.float64(), "when the request arrived, in seconds since 1970"),
    "model": (pa.string(), "virtual model"),
    "key": (pa.uint64(), "hash of the question's text"),
    "question": (pa.string(), "text of the question, if ``texts`` is set"),
    "features": (pa.list_(pa.float32()), "features of the question that the policy uses"),
    "budget": (pa.float64(), "budget of the request, in the unit of the bundle"),
    "price": (pa.float64(), "price of the decision"),
    "max_rounds": (pa.int32(), "largest number of rounds; null if there is no limit"),
    "answers": (
        pa.list_(pa.int32()),
        (
            "class of each sample's answer, in the order of arrival: equal answers have equal "
            "numbers, -1 is unparsed. Null if the request got no answer"
        ),
    ),
    "samples_used": (pa.int32(), "samples that the answer was chosen from"),
    "chosen": (pa.int32(), "position of the returned sample in ``answers``"),
    "p_correct": (pa.float64(), "how likely the answer is right; null if the bundle cannot say"),
    "sure": (
        pa.bool_(),
        "whether it is one of those whose precision is guaranteed; null if not judged",
    ),
    "rounds": (pa.int32(), "rounds of samples, one after the other"),
    "calls": (pa.int32(), "calls to the upstream, failed and cancelled ones included"),
    "prompt_tokens": (pa.int64(), "prompt tokens of all calls"),
    "completion_tokens": (pa.int64(), "completion tokens of all calls"),
    "estimated": (pa.bool_(), "whether some call is charged at its upper bound"),
    "cost": (pa.float64(), "money charged for all calls; null without token prices"),
    "latency_s": (pa.float64(), "time from the request to its answer"),
    "decision_s": (pa.float64(), "time of all decisions together"),
    "question_source": (
        pa.string(),
        "where the question was found: ``template``, ``message`` or ``none``",
    ),
    "incomplete": (pa.bool_(), "whether fewer samples arrived than the policy asked for"),
    "today": (pa.bool_(), "whether the request was answered as today (``today_share``)"),
    "scorer_error": (pa.string(), "why the scorer failed; null if it did not"),
    "upstream_model": (pa.string(), "the upstream's name of the model"),
}
"""Columns of ``decisions-*.parquet``, one row per decision."""

LOGGED_SAMPLE_COLUMNS: Columns = {
    "question_id": (pa.string(), "hash of the question's text"),
    "question": (pa.string(), "text of the question, if ``texts`` is set"),
    "gold": (pa.string(), "null: the gateway has no reference answers"),
    "difficulty": (pa.string(), "null"),
    "sample": (pa.int32(), "number of the sample within its question, from 0"),
    "answer": (pa.string(), "the answer as the grader found it; null is unparsed"),
    "correct": (pa.bool_(), "null: ``fit --gold FILE --grader NAME`` grades the samples"),
    "completion": (pa.string(), "text of the sample, if ``texts`` is set"),
    "completion_chars": (pa.int32(), "its length in characters"),
    "completion_tokens": (pa.int64(), "its length in tokens, where the upstream says it"),
    "mean_logprob": (pa.float32(), "mean log-probability of its tokens, where requested"),
    "model": (pa.string(), "the upstream's name of the model"),
    "decision_id": (pa.string(), "``id`` of the decision that it was drawn for"),
}
"""Columns of ``samples-*.parquet``, one row per sample."""


def make_schema(columns: Columns) -> pa.Schema:
    """Return the schema of a table with these columns."""
    return pa.schema([(name, kind) for name, (kind, _) in columns.items()])
