"""Export: writes the samples of a ledger as a graded sample file.

Samples are graded question by question and written row group by row group, so that a collection of
any size is exported in little memory. The ledger keeps everything, so an export can be repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.graders.grader import Grader, grade
from adacompute.spending.token_prices import NANO
from adacompute.storage.ledger import Ledger, StoredSample

ROW_GROUP_SIZE = 20_000
"""Rows per Parquet row group."""

Questions = Mapping[str, Mapping[str, Any]]
"""Columns of each question, by its id."""


def export(
    ledger: Ledger, arm_id: int, questions: Questions, grader: Grader, out: Path
) -> dict[str, int]:
    """Write the samples of an arm in the order of the question ids, and return counts."""
    arm = ledger.arms()[arm_id]
    counts = {"samples": 0, "correct": 0, "unparsed": 0}
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    try:
        with pq.ParquetWriter(name, SAMPLE_SCHEMA, compression="zstd") as writer:
            rows = _rows(ledger, arm_id, questions, grader, arm)
            while group := list(itertools.islice(rows, ROW_GROUP_SIZE)):
                writer.write_table(pa.Table.from_pylist(group, schema=SAMPLE_SCHEMA))
                counts["samples"] += len(group)
                counts["correct"] += sum(row["correct"] for row in group)
                counts["unparsed"] += sum(row["answer"] is None for row in group)
        Path(name).chmod(0o644)
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return counts


def _rows(
    ledger: Ledger,
    arm_id: int,
    questions: Questions,
    grader: Grader,
    arm: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    temperature = json.loads(arm["settings"]).get("temperature")
    by_question = itertools.groupby(ledger.samples(arm_id), key=lambda stored: stored.question)
    for question, group in by_question:
        if question not in questions:  # collected for another question file
            continue
        samples = list(group)
        columns = questions[question]
        # A completion is empty when hidden reasoning used all of its tokens.
        texts = [stored.text or None for stored in samples]
        graded = grade(grader, texts, columns["gold"])
        for number, (sample, answer, correct) in enumerate(
            zip(samples, graded.answer, graded.correct, strict=True)
        ):
            yield {
                **{
                    name: columns[name]
                    for name in ("question_id", "question", "gold", "difficulty")
                },
                **_columns(sample, arm),
                "temperature": temperature,
                "sample": number,
                "answer": answer,
                "correct": correct,
            }


def _columns(stored: StoredSample, arm: Mapping[str, str]) -> dict[str, Any]:
    return {
        "completion": stored.text,
        "completion_chars": len(stored.text),
        "completion_tokens": stored.completion_tokens,
        "mean_logprob": stored.mean_logprob,
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
