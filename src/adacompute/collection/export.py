"""Export: from the ledger to samples that the rest of the line reads.

Samples are graded question by question on the way and written row group by row group, so that a
collection of any size is exported in little memory. The ledger keeps everything: an export can
always be made again.
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

from adacompute.datasets.rows import SAMPLES
from adacompute.graders.grader import Grader, grade
from adacompute.spending.token_prices import NANO
from adacompute.storage.ledger import Ledger, StoredSample

ROWS = 20_000
"""Rows of a group."""


def export(
    ledger: Ledger, mode: int, questions: Mapping[str, Mapping[str, Any]], grader: Grader, out: Path
) -> dict[str, int]:
    """Write the samples of a mode, in the order of the questions' ids; returns counts."""
    known = ledger.arms()[mode]
    counts = {"samples": 0, "correct": 0, "unparsed": 0}
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    try:
        with pq.ParquetWriter(name, SAMPLES, compression="zstd") as writer:
            rows = _rows(ledger, mode, questions, grader, known)
            while group := list(itertools.islice(rows, ROWS)):
                writer.write_table(pa.Table.from_pylist(group, schema=SAMPLES))
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
    mode: int,
    questions: Mapping[str, Mapping[str, Any]],
    grader: Grader,
    known: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    temperature = json.loads(known["settings"]).get("temperature")
    by_question = itertools.groupby(ledger.samples(mode), key=lambda sampled: sampled.question)
    for question, group in by_question:
        if question not in questions:  # collected for another file of questions
            continue
        samples = list(group)
        asked = questions[question]
        # A completion that hidden reasoning ate whole has nothing to read.
        texts = [sampled.text or None for sampled in samples]
        graded = grade(grader, texts, asked["gold"])
        for number, (sampled, answer, right) in enumerate(
            zip(samples, graded.answer, graded.correct, strict=True)
        ):
            yield {
                **{name: asked[name] for name in ("question_id", "question", "gold", "difficulty")},
                **_columns(sampled, known),
                "temperature": temperature,
                "sample": number,
                "answer": answer,
                "correct": right,
            }


def _columns(sampled: StoredSample, known: Mapping[str, str]) -> dict[str, Any]:
    return {
        "completion": sampled.text,
        "completion_chars": len(sampled.text),
        "completion_tokens": sampled.completion_tokens,
        "mean_logprob": sampled.mean_logprob,
        "latency_s": sampled.latency_s,
        "model": known["model"],
        "arm": known["arm"],
        "prompt_tokens": sampled.prompt_tokens,
        "cached_tokens": sampled.cached_tokens,
        "reasoning_tokens": sampled.reasoning_tokens,
        "samples_per_call": sampled.samples_per_call,
        "finish_reason": sampled.finish_reason,
        "cost": sampled.cost / NANO,
        "score": sampled.score,
    }
