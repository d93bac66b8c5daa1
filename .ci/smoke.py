"""Smoke: the base install fits the default policy, judges it and scores others."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_samples(path: Path) -> None:
    """Write recorded samples: 60 questions, some easy, some hopeless, 16 samples each."""
    chance = random.Random(0)
    rows = []
    for question in range(60):
        accuracy = chance.choice([0.05, 0.5, 0.7, 0.95])
        for sample in range(16):
            correct = chance.random() < accuracy
            answer = "0" if correct else str(chance.randint(1, 3))
            rows.append(
                {
                    "question_id": f"q{question}",
                    "question": f"What is the answer to question {question}?",
                    "gold": "0",
                    "sample": sample,
                    "answer": answer,
                    "correct": correct,
                }
            )
    pq.write_table(pa.Table.from_pylist(rows), path)


def run(*arguments: object) -> str:
    """Run a command of the installed package."""
    command = [str(Path(sys.executable).with_name("adacompute")), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Run the pipeline."""
    for extra in ("xgboost", "math_verify", "aiohttp", "matplotlib"):
        assert importlib.util.find_spec(extra) is None, f"{extra} is in the base install"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        samples = path / "samples.parquet"
        write_samples(samples)
        print(run("--version").strip())
        names = "mixture,adaptive-consistency,sequential,oracle"
        fitted = json.loads(run("fit", samples, "--budget", 2, "--out", path / "fitted", "--json"))
        assert fitted["policy"] == "sequential", fitted
        assert fitted["report"] is None, fitted
        scores = json.loads(run("evaluate", fitted["run"], "--policies", names, "--json"))
        assert {row["policy"] for row in scores["rows"]} == set(names.split(",")), scores
    print("the base install works")


if __name__ == "__main__":
    main()
