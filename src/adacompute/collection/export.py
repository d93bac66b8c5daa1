"""Export: writes the samples of a ledger as a graded sample file.

Samples are graded question by question and written row group by row group, so that a collection of
any size is exported in little memory. The ledger keeps everything, so an export can be repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.graders.grader import Grader, grade
from adacompute.models.logprobs import answer_logprob
from adacompute.spending.token_prices import NANO
from adacompute.storage.ledger import Ledger, StoredSample

ROW_GROUP_SIZE = 20_000
"""Rows per Parquet row group."""

Questions = Mapping[str, Mapping[str, Any]]
"""Columns of each question, by its id."""


def export(
    ledger: Ledger, arm_ids: Sequence[int], questions: Questions, grader: Grader, out: Path
) -> dict[int, dict[str, int]]:
    """Write the samples of arms in the order of the question ids, and return counts by arm id.

    The samples of a question are graded together, so that equal answers of its arms are written
    alike. Within a question, arms are in the given order.
    """
    counts = {arm_id: {"samples": 0, "correct": 0, "unparsed": 0} for arm_id in arm_ids}
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    try:
        with pq.ParquetWriter(name, SAMPLE_SCHEMA, compression="zstd") as writer:
            rows = _rows(ledger, arm_ids, questions, grader)
            while group := list(itertools.islice(rows, ROW_GROUP_SIZE)):
                table = pa.Table.from_pylist([row for _, row in group], schema=SAMPLE_SCHEMA)
                writer.write_table(table)
                for arm_id, row in group:
                    counts[arm_id]["samples"] += 1
                    counts[arm_id]["correct"] += row["correct"]
                    counts[arm_id]["unparsed"] += row["answer"] is None
        Path(name).chmod(0o644)
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return counts


def _rows(
    ledger: Ledger, arm_ids: Sequence[int], questions: Questions, grader: Grader
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the arm id and the row of each sample."""
    known = ledger.arms()
    arms = {arm_id: known[arm_id] for arm_id in arm_ids}
    temperatures = {i: json.loads(arm["settings"]).get("temperature") for i, arm in arms.items()}
    by_question = itertools.groupby(ledger.samples(*arms), key=lambda stored: stored.question)
    for question, group in by_question:
        if question not in questions:  # collected for another question file
            continue
        samples = sorted(group, key=lambda stored: arm_ids.index(stored.arm_id))
        columns = questions[question]
        # A completion is empty when hidden reasoning used all of its tokens.
        texts = [stored.text or None for stored in samples]
        graded = grade(grader, texts, columns["gold"])
        numbers = {arm_id: itertools.count() for arm_id in arms}
        for i, stored in enumerate(samples):
            yield (
                stored.arm_id,
                {
                    **{
                        name: columns[name]
                        for name in ("question_id", "question", "gold", "difficulty")
                    },
                    **_columns(stored, arms[stored.arm_id]),
                    "temperature": temperatures[stored.arm_id],
                    "sample": next(numbers[stored.arm_id]),
                    "answer": graded.answer[i],
                    "correct": graded.correct[i],
                    "answer_logprob": answer_logprob(
                        stored.text, graded.extracted[i], stored.token_logprobs
                    ),
                },
            )


def _columns(stored: StoredSample, arm: Mapping[str, str]) -> dict[str, Any]:
    return {
        "completion": stored.text,
        "completion_chars": len(stored.text),
        "completion_tokens": stored.completion_tokens,
        "mean_logprob": stored.mean_logprob,
        "min_logprob_window": stored.min_logprob_window,
        "latency_s": stored.latency_s,
        "model": arm["model"],
        "arm": arm["arm"],
        "prompt_tokens": stored.prompt_tokens,
        "cached_tokens": stored.cached_tokens,
        "reasoning_tokens": stored.reasoning_tokens,
        "samples_per_call": stored.samples_per_call,
        "finish_reason": stored.finish_reason,
        "cost": stored.cost / NANO,
        "score": stored.score,
        "entropy": stored.entropy,
        "top_logprobs": stored.top_logprobs,
    }
