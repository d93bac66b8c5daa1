"""Export: writes the samples of a store as a graded sample file.

Samples are graded question by question and written row group by row group, so that a collection of
any size is exported in little memory. The store keeps everything, so an export can be repeated.
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

from adacompute.collection.store import Arm, CollectionStore
from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.graders.grader import Grader, grade
from adacompute.models.logprobs import answer_logprob
from adacompute.models.messages import Sample
from adacompute.spending.token_prices import NANO

ROW_GROUP_SIZE = 20_000
"""Rows per Parquet row group."""

QUESTION_COLUMNS = ("question_id", "question", "gold", "difficulty")
SAMPLE_COLUMNS = (
    "completion_tokens",
    "mean_logprob",
    "min_logprob_window",
    "latency_s",
    "prompt_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "samples_per_call",
    "finish_reason",
    "entropy",
    "top_logprobs",
)
"""Columns that are copied from a question, and from a sample."""

Questions = Mapping[str, Mapping[str, Any]]
"""Columns of each question, by its id."""


def export(
    store: CollectionStore, arms: Sequence[Arm], questions: Questions, grader: Grader, out: Path
) -> dict[str, dict[str, int]]:
    """Write the samples of arms, question by question, and return counts by the name of the arm.

    The samples of a question are graded together, so that equal answers of its arms are written
    alike. Within a question, arms are in the given order.
    """
    counts = {arm["arm"]: {"samples": 0, "correct": 0, "unparsed": 0} for arm in arms}
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    try:
        with pq.ParquetWriter(name, SAMPLE_SCHEMA, compression="zstd") as writer:
            rows = _rows(store, arms, questions, grader)
            while group := list(itertools.islice(rows, ROW_GROUP_SIZE)):
                writer.write_table(pa.Table.from_pylist(group, schema=SAMPLE_SCHEMA))
                for row in group:
                    own = counts[row["arm"]]
                    own["samples"] += 1
                    own["correct"] += row["correct"]
                    own["unparsed"] += row["answer"] is None
        Path(name).chmod(0o644)
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return counts


def _rows(
    store: CollectionStore, arms: Sequence[Arm], questions: Questions, grader: Grader
) -> Iterator[dict[str, Any]]:
    """Yield the row of each sample."""
    names = [arm["arm"] for arm in arms]
    temperatures = {arm["arm"]: json.loads(arm["settings"]).get("temperature") for arm in arms}
    for position, by_arm in store.read(names):
        question = questions.get(store.ids[position])
        if question is None:  # collected for another question file
            continue
        samples = [
            (arm, number, paid, paid.sample)
            for arm in arms
            for number, paid in enumerate(by_arm.get(arm["arm"], ()))
            if paid.sample is not None
        ]
        # A completion is empty when hidden reasoning used all of its tokens.
        texts = [sample.text or None for *_, sample in samples]
        graded = grade(grader, texts, question["gold"])
        for i, (arm, number, paid, sample) in enumerate(samples):
            yield {
                **{name: question[name] for name in QUESTION_COLUMNS},
                **_columns(sample, arm),
                "cost": paid.cost / NANO,
                "score": paid.score,
                "temperature": temperatures[arm["arm"]],
                "sample": number,
                "answer": graded.answer[i],
                "correct": graded.correct[i],
                "answer_logprob": answer_logprob(
                    sample.text, graded.extracted[i], sample.token_logprobs
                ),
            }


def _columns(sample: Sample, arm: Arm) -> dict[str, Any]:
    return {
        "completion": sample.text,
        "completion_chars": len(sample.text),
        "model": arm["model"],
        "arm": arm["arm"],
        **{name: getattr(sample, name) for name in SAMPLE_COLUMNS},
    }
