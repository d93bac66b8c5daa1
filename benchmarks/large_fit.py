"""Large fits: memory and time of `train` and `calibrate` on many questions.

Run it with ``python -m benchmarks.large_fit DIRECTORY 10000 100000``. For each number of questions
it writes a synthetic run of 16 samples per question (four archetypes, the words of a third of the
questions reveal theirs), then runs the two commands as processes of their own and prints their
time and peak memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from test_support.populations import make_population

SAMPLES, TELLING, BUDGET = 16, 1 / 3, 2.0
WORDS = ("sum", "integral", "country", "sonnet", "river", "matrix", "planet", "verb")


def write_samples(n_questions: int, path: Path) -> None:
    """Write the samples of a synthetic population with one text per question."""
    population, archetype = make_population(n_questions, feature_signal=TELLING, seed=0)
    answers = population.sample(SAMPLES, seed=0)
    rng = np.random.default_rng(0)
    word = np.where(rng.random(n_questions) < TELLING, archetype, rng.integers(0, 8, n_questions))
    text = [f"About {WORDS[w]}: question {i}?" for i, w in enumerate(word.tolist())]
    table = pa.table(
        {
            "question_id": pa.array([f"q{i}" for i in answers.question.tolist()]),
            "question": pa.array([text[i] for i in answers.question.tolist()]),
            "sample": pa.array(answers.position),
            "answer": pa.array([None if a < 0 else f"a{a}" for a in answers.answer.tolist()]),
            "correct": pa.array(answers.correct),
        }
    )
    pq.write_table(table, path)


def measure(*command: str) -> tuple[float, float]:
    """Return the seconds and the peak memory, in GB, of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "adacompute", *command, "--json"], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1e6


def main() -> None:
    """Print one line per command and size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("questions", type=int, nargs="+")
    options = parser.parse_args()
    for n_questions in options.questions:
        place: Path = options.directory / str(n_questions)
        place.mkdir(parents=True, exist_ok=True)
        write_samples(n_questions, place / "samples.parquet")
        run, bundle = str(place / "run"), str(place / "bundle")
        steps = {
            "import": (str(place / "samples.parquet"), "--run", run),
            "train": (run, "--policy", "sequential", "--out", bundle),
            "calibrate": (run, "--bundle", bundle, "--budget", str(BUDGET)),
        }
        for name, words in steps.items():
            seconds, memory = measure(name, *words)
            print(f"{n_questions} questions: {name} {seconds:.0f} s, {memory:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
