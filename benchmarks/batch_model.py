"""Batch, live: 200 questions answered by a real small model, on Ray, end to end.

``python -m benchmarks.batch_model OUT [QUESTIONS] [--engine ray]`` starts a llama.cpp server and
runs ``adacompute batch`` with the shipped bundle and generated problems. It prints the result of
the command, the number of correct answers and the time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.graders.grader import load_grader
from benchmarks.gateway_live import make_questions, run_command
from test_support.llama import serve_llama


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("questions", type=int, nargs="?", default=200)
    parser.add_argument("--engine", choices=["local", "ray"], default="ray")
    parser.add_argument("--budget", type=float, default=2.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    _, problems = make_questions(options.questions)
    columns = {
        "question_id": [problem.id for problem in problems],
        "question": [problem.question for problem in problems],
    }
    path = options.out / "questions.parquet"
    pq.write_table(pa.table(columns), path)
    start = time.monotonic()
    with serve_llama(threads=1, slots=4, context_tokens=512) as llama:
        result = run_command(
            *("batch", str(path), "--bundle", "example", "--out", str(options.out / "job")),
            *("--budget", str(options.budget), "--base-url", llama.base_url),
            *("--model", llama.model, "--config", f"engine={options.engine}"),
            *("--config", "concurrency=4", "--config", "accept-verdict=true"),
        )
    files = sorted((options.out / "job").rglob("answers/*.parquet"))
    answers = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()
    grader, gold = load_grader("numeric"), {problem.id: problem.gold for problem in problems}
    n_correct = sum(
        row["answer"] is not None
        and grader.equal(row["answer"], str(grader.extract(gold[row["question_id"]])))
        for row in answers
    )
    found = {"rows": len(answers), "correct": n_correct, "seconds": time.monotonic() - start}
    print(json.dumps(result | found), flush=True)


if __name__ == "__main__":
    main()
