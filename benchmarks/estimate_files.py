"""Estimate files: time and memory of `estimate` on a run larger than memory, beside a bare scan.

``python -m benchmarks.estimate_files [QUESTIONS] [--folder DIR]`` writes a run of 10 million
questions with 16 samples each, reads the columns that `estimate` needs once without doing anything
with them, and runs `adacompute research estimate`, `train` and `evaluate` on it, each as a process
of its own. It prints seconds, peak memory, and what `train` and `evaluate` say about their
subsample.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.datasets.rows import SAMPLE_SCHEMA
from adacompute.stages.research.estimate_blocks import COLUMNS
from adacompute.storage.store import SAMPLES, Run

N_SAMPLES, N_ANSWERS = 16, 8
BLOCK = 1 << 16
OPTIONS = {
    "estimate": (),
    "train": ("--policy", "sequential-votes"),
    "evaluate": ("--policies", "mixture,adaptive-consistency", "--budgets", "2"),
}
ANSWERS = pa.array([str(i) for i in range(N_ANSWERS)])


def write_run(folder: Path, n_questions: int) -> None:
    """Write a run; the right answer is 0, and it is as likely as the question is easy."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SAMPLES
    with pq.ParquetWriter(path, SAMPLE_SCHEMA, compression="zstd") as writer:
        for first in range(0, n_questions, BLOCK):
            n = min(BLOCK, n_questions - first)
            writer.write_table(make_samples(first, n))
    Run(folder).finish_written("import", arguments={}, names=[SAMPLES], result={})


def make_samples(first: int, n: int) -> pa.Table:
    """Return the samples of questions from ``first`` on."""
    rng = np.random.default_rng(first)
    easiness = rng.beta(1.0, 1.0, size=(n, 1))
    right = rng.random((n, N_SAMPLES)) < easiness
    answer = np.where(right, 0, rng.integers(1, N_ANSWERS, (n, N_SAMPLES))).ravel()
    row = np.repeat(np.arange(n), N_SAMPLES)
    numbers = range(first, first + n)
    ids = pa.array([f"question-{i:09}" for i in numbers])
    texts = pa.array([f"What is {i} times {i * i % 9973}, without {i % 97}?" for i in numbers])
    columns = {
        "question_id": ids.take(pa.array(row)),
        "question": texts.take(pa.array(row)),
        "gold": pa.array(["0"] * len(row)),
        "sample": pa.array(np.tile(np.arange(N_SAMPLES), n)),
        "answer": ANSWERS.take(pa.array(answer)),
        "correct": pa.array(answer == 0),
        "model": pa.array(["small"] * len(row)),
    }
    empty = {
        field.name: pa.nulls(len(row), field.type)
        for field in SAMPLE_SCHEMA
        if field.name not in columns
    }
    return pa.table({**columns, **empty}).select(SAMPLE_SCHEMA.names).cast(SAMPLE_SCHEMA)


def scan(path: Path) -> int:
    """Read the columns once; return how many bytes they hold in memory."""
    document = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    names = [name for name in COLUMNS if name in document.schema_arrow.names]
    return sum(batch.nbytes for batch in document.iter_batches(1 << 18, columns=names))


def run_process(command: list[str]) -> tuple[float, float, dict[str, Any]]:
    """Return seconds, peak memory in MB and the output of a process."""
    start = time.perf_counter()
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, reader)]
    process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:  # noqa: PTH123 - a file descriptor
        output = file.read()
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, used.ru_maxrss / 1024, json.loads(output)


def main() -> None:
    """Print seconds and memory."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/adacompute-estimate-files"))  # noqa: S108
    parser.add_argument("--keep", action="store_true", help="Keep the files.")
    parser.add_argument("--stage", choices=OPTIONS, action="append", help="default: all")
    options = parser.parse_args()
    run = options.folder / str(options.questions)
    if not (run / "import.manifest.json").is_file():
        write_run(run, options.questions)
    size_mb = (run / SAMPLES).stat().st_size / 1e6
    print(f"{options.questions:,} questions x {N_SAMPLES} samples, {size_mb:,.0f} MB", flush=True)
    scan(run / SAMPLES)  # warm
    start = time.perf_counter()
    scanned = scan(run / SAMPLES)
    scan_s = time.perf_counter() - start
    print(f"bare scan {scan_s:8.1f} s, {scanned / 1e6:,.0f} MB in memory", flush=True)
    for stage in options.stage or OPTIONS:
        command = [sys.executable, "-m", "adacompute", stage, str(run), "--json", *OPTIONS[stage]]
        if stage == "train":
            command += ["--out", str(run / "bundle")]
        seconds, peak_mb, result = run_process(command)
        shown = {name: result.get(name) for name in ("questions", "subsample_of")}
        print(
            f"{stage:9s} {seconds:8.1f} s, {seconds / scan_s:5.2f} x, peak {peak_mb:6,.0f} MB, "
            f"{json.dumps(shown)}",
            flush=True,
        )
    if not options.keep:
        shutil.rmtree(run)


if __name__ == "__main__":
    main()
