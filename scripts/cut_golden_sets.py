"""Golden sets: small cuts of recorded samples, for tests that must run everywhere.

``python -m scripts.cut_golden_sets tests/data/golden`` makes them from the recorded samples in the
directory ``ADACOMPUTE_DATA``. The questions of ``svamp144`` and ``mcqa`` belong to others, so their
texts are left out, and no set has completions. Generated questions stand in for the texts of
``svamp144``, so that policies over arms have texts to read; ``mcqa`` has none.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from test_support.arithmetic import generate_problems

DATA = Path(__file__).parents[1] / os.environ.get("ADACOMPUTE_DATA", "../shared/data")
ARMS = {"short": 4, "cot": 8}
"""Samples of each arm: more of the expensive one, so that both are of use."""

COMMON = ("question_id", "sample", "answer", "correct")
LENGTHS = ("completion_chars", "completion_tokens")
SIGNALS = ("mean_logprob", "min_logprob_window", "answer_logprob")


def cut_arith() -> pa.Table:
    """Return arithmetic questions with their texts, which were generated, and log-probabilities."""
    table = pq.read_table(DATA / "samples" / "arith110__smollm2-135m.parquet")
    return _first(table, 8).select([*COMMON, "question", *LENGTHS, "mean_logprob"])


def cut_svamp() -> pa.Table:
    """Return two arms of one model, with log-probabilities; other texts stand in for theirs."""
    tables = []
    for arm, n_samples in ARMS.items():
        path = DATA / "samples" / "arms" / f"svamp144__qwen2.5-coder-0.5b@{arm}.parquet"
        table = _first(pq.read_table(path), n_samples).select([*COMMON, *LENGTHS, *SIGNALS])
        tables.append(table.append_column("arm", pa.array([arm] * len(table))))
    table = pa.concat_tables(tables)
    names = table["question_id"].unique().to_pylist()
    texts = [problem.question for problem in generate_problems(len(names), seed=1)]
    known = dict(zip(names, texts, strict=True))
    question = [known[name] for name in table["question_id"].to_pylist()]
    return table.append_column("question", pa.array(question))


def cut_mcqa() -> pa.Table:
    """Return votes on twelve questions of each of ten exams, and nothing else."""
    table = pq.read_table(DATA / "samples" / "mcqa10x100__gpt-3.5-turbo.parquet")
    names = table["question_id"].unique().to_pylist()
    kept = [name for i, name in enumerate(names) if i % 100 < 12]
    table = table.filter(pc.is_in(table["question_id"], pa.array(kept)))
    return _first(table, 10).select(COMMON)


def _first(table: pa.Table, n_samples: int) -> pa.Table:
    """Return the first samples of every question."""
    return table.filter(pc.less(table["sample"], n_samples))


def main() -> None:
    """Write the sets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of the golden files")
    out = parser.parse_args().out
    for name, cut in (("arith110", cut_arith), ("svamp144", cut_svamp), ("mcqa", cut_mcqa)):
        options = {"compression": "zstd", "compression_level": 19}
        pq.write_table(cut().replace_schema_metadata(None), out / f"{name}.parquet", **options)


if __name__ == "__main__":
    main()
