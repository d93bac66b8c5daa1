"""Batch plans: wall time of planning files of questions, against the parts it cannot do without.

Run it with ``python -m benchmarks.batch_plan [QUESTIONS] [--engine local|ray] [--policy NAME]``.
It writes questions with distinct texts, plans them with equal numbers of processes, and measures on
the same files and rows: the bare engine that reads the files and writes the columns of the output,
the extraction of features alone, and the model alone. Peak memory is that of all processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.batch.ray.cluster import SETTINGS, connect
from adacompute.core.types import UtilityTable, make_levels
from adacompute.datasets.example import locate_bundle
from adacompute.features.text import extract_features
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.router import RouterTraining, fit_router
from adacompute.stages.batch import plan_questions

COST = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
FILE_ROWS = 250_000
ROW_GROUP = 1 << 16
BLOCK = 1 << 14
BUDGET = 2.5
WORDS = np.array(
    [
        "the",
        "a",
        "train",
        "coins",
        "apples",
        "hours",
        "percent",
        "of",
        "each",
        "then",
        "first",
        "total",
        "price",
        "cost",
        "how",
        "many",
        "if",
        "are",
        "left",
        "after",
        "sold",
        "bought",
        "speed",
        "km",
        "per",
        "minute",
        "water",
        "tank",
        "boys",
        "girls",
        "books",
        "pages",
        "days",
    ]
)


def write_questions(folder: Path, n_questions: int) -> int:
    """Write distinct questions of about 150 characters; return the bytes of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for first in range(0, n_questions, FILE_ROWS):
        path = folder / f"{first // FILE_ROWS:05}.parquet"
        if path.exists():
            continue
        rows = np.arange(first, min(first + FILE_ROWS, n_questions))
        words = rng.choice(WORDS, (len(rows), 24))
        columns = [pa.array(column) for column in words.T]
        number = pa.array(rng.integers(2, 5000, len(rows))).cast(pa.string())
        row = pa.array(rows).cast(pa.string())
        columns[5:5], columns[12:12] = [number], [row]
        text = pa.compute.binary_join_element_wise(*columns, " ")
        ids = pa.compute.binary_join_element_wise(pa.scalar("question-"), row, "")
        table = pa.table({"question_id": ids, "question": text})
        pq.write_table(table, path, row_group_size=ROW_GROUP)
    return sum(path.stat().st_size for path in folder.iterdir())


def make_router(folder: Path, questions: Path) -> Bundle:
    """Fit the paper's router to 2,000 of the questions."""
    path = folder / "router"
    if not path.exists():
        texts = pq.read_table(next(questions.iterdir()))["question"][:2000]
        features = extract_features(texts)
        rng = np.random.default_rng(1)
        base = rng.random((len(features), 1)) * (features[:, 4:5] > 2)
        utility = np.clip(base + rng.normal(0, 0.1, (len(features), 5)) * np.arange(5) / 4, 0, 1)
        levels = make_levels(tuple(int(cost) for cost in COST))
        training = RouterTraining(budgets=(BUDGET,))
        policy = fit_router(features, UtilityTable(utility, COST), levels, training)
        save_bundle(Bundle(policy), path)
    return load_bundle(path)


@dataclass(frozen=True)
class Seconds:
    """Wall time, and processor time of this process and of those below it that have ended."""

    wall: float = 0.0
    cpu: float = 0.0

    @staticmethod
    def now() -> Seconds:
        """Return the present times."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(one.ru_utime + one.ru_stime for one in used)
        return Seconds(time.perf_counter(), cpu)

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)

    @staticmethod
    def merge(parts: Iterable[Seconds]) -> Seconds:
        """Return the times of processes that run side by side."""
        every = list(parts)
        return Seconds(max(one.wall for one in every), sum(one.cpu for one in every))


def files_of(folder: Path, part: int, workers: int) -> list[Path]:
    """Return the files of one of several processes."""
    return sorted(folder.iterdir())[part::workers]


def bare_engine(folder: str, out: str, part: int, workers: int) -> None:
    """Read the questions, and write as many bytes as a plan does, with nothing computed."""
    for path in files_of(Path(folder), part, workers):
        document = pq.ParquetFile(path)
        names = {"n_samples": pa.int32(), "cell": pa.uint8()}
        schema = pa.schema([("question_id", pa.string()), *names.items()])
        with pq.ParquetWriter(
            Path(out) / path.name, schema, use_dictionary=["n_samples"]
        ) as writer:
            for batch in document.iter_batches(BLOCK, columns=["question_id", "question"]):
                some = np.arange(len(batch)) % 7
                columns = [pa.array(some, kind) for kind in names.values()]
                writer.write_batch(pa.record_batch([batch["question_id"], *columns], schema=schema))


def bare_features(folder: str, _: str, part: int, workers: int, bundle: str) -> Seconds:
    """Extract features; return the seconds of that alone."""
    features, seconds = load_bundle(Path(bundle)).features, Seconds()
    for path in files_of(Path(folder), part, workers):
        for batch in pq.ParquetFile(path).iter_batches(BLOCK, columns=["question"]):
            start = Seconds.now()
            extract_features(batch["question"], features=features)
            seconds += Seconds.now() - start
    return seconds


def bare_model(folder: str, _: str, part: int, workers: int, bundle: str) -> Seconds:
    """Run the model on features that are known; return the seconds of that alone."""
    loaded, seconds = load_bundle(Path(bundle)), Seconds()
    known = None
    for path in files_of(Path(folder), part, workers):
        for batch in pq.ParquetFile(path).iter_batches(BLOCK, columns=["question"]):
            if known is None or len(batch) > len(known):
                known = extract_features(batch["question"], features=loaded.features)
            start = Seconds.now()
            loaded.policy.prepare_features(known[: len(batch)])
            seconds += Seconds.now() - start
    return seconds


def ray_engine(folder: str, out: str, workers: int) -> None:
    """Read the questions and write as many bytes as a plan does with bare Ray Data."""
    with connect(n_cpus=workers):
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False

        def act(batch: pa.Table) -> pa.Table:
            some = np.arange(len(batch)) % 7
            kind = ("cell", pa.uint8())
            columns = {"n_samples": pa.array(some, pa.int32()), kind[0]: pa.array(some, kind[1])}
            return pa.table({"question_id": batch["question_id"], **columns})

        data = ray.data.read_parquet(folder, columns=["question_id", "question"])
        data = data.map_batches(act, batch_format="pyarrow", batch_size=BLOCK)
        data.write_parquet(out)


def in_processes(function: Callable[..., Any], workers: int, *arguments: Any) -> list[Any]:  # noqa: ANN401
    """Run a function in several processes, each on its own files."""
    folder, out, *more = arguments
    with get_context("spawn").Pool(workers) as pool:
        tasks = [(folder, out, part, workers, *more) for part in range(workers)]
        return pool.starmap(function, tasks)


class PeakMemory:
    """Largest memory of this process and all below it, sampled ten times per second."""

    def __init__(self) -> None:
        self.peak_mb, self.done = 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.1):
            self.peak_mb = max(self.peak_mb, sum(map(_memory_mb, _tree(os.getpid()))))


def _tree(pid: int) -> list[int]:
    """Return a process and all processes below it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(stat[1]), []).append(int(path.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _memory_mb(pid: int) -> float:
    """Return the private memory of a process, without pages of files that are mapped."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def timed(function: Callable[[], Any]) -> tuple[Seconds, Any]:
    """Return the seconds that a call takes, and its result."""
    start = Seconds.now()
    result = function()
    return Seconds.now() - start, result


def fresh(path: Path) -> Path:
    """Return an empty directory."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def measure_bare(folder: Path, path: Path, options: argparse.Namespace) -> dict[str, Seconds]:
    """Return the seconds of the parts that a plan cannot do without."""
    questions, workers = str(folder / f"questions-{options.questions}"), options.workers
    out = str(fresh(folder / "bare"))
    if options.engine == "ray":
        engine_s, _ = timed(lambda: ray_engine(questions, out, workers))
    else:
        engine_s, _ = timed(lambda: in_processes(bare_engine, workers, questions, out))
    return {
        "bare engine": engine_s,
        "bare features": Seconds.merge(
            in_processes(bare_features, workers, questions, out, str(path))
        ),
        "bare model": Seconds.merge(in_processes(bare_model, workers, questions, out, str(path))),
    }


def measure(
    folder: Path, name: str, bundle: Bundle, path: Path, options: argparse.Namespace
) -> None:
    """Print one comparison, or, with ``--no-bare``, the plan alone."""
    parts = measure_bare(folder, path, options) if options.bare else {}
    job = fresh(folder / "job")

    def plan() -> dict[str, Any]:
        return plan_questions(
            [str(folder / f"questions-{options.questions}")],
            bundle=bundle,
            options=BatchOptions(bundle=path, out=job, budget=BUDGET, engine=options.engine),
            workers=options.workers,
        )

    with PeakMemory() as memory:
        plan_s, result = timed(plan)
    print(
        f"{name}, {options.engine}, {result['questions']:,} questions, {options.workers} processes"
    )
    print("                         wall    processor (without the workers of Ray)")
    for part, seconds in {**parts, "plan": plan_s}.items():
        print(f"  {part:18s} {seconds.wall:9.1f} s {seconds.cpu:9.1f} s")
    if parts:
        wall, cpu = (sum(getattr(one, kind) for one in parts.values()) for kind in ("wall", "cpu"))
        print(f"  plan / sum         {plan_s.wall / wall:9.2f}   {plan_s.cpu / cpu:9.2f}")
    print(f"  peak memory          {memory.peak_mb:9.0f} MB")
    print(
        f"  price {result['price']:.6g}, expected cost {result['expected_cost']:,.0f}", flush=True
    )


def main() -> None:
    """Print the times of one run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--policy", choices=["sequential", "router"], action="append")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/adacompute-batch-plan"))  # noqa: S108
    parser.add_argument(
        "--no-bare", dest="bare", action="store_false", help="Measure the plan alone."
    )
    options = parser.parse_args()
    os.environ |= SETTINGS
    questions = options.folder / f"questions-{options.questions}"
    n_bytes = write_questions(questions, options.questions)
    print(f"files of {n_bytes / 1e6:,.0f} MB")
    for name in options.policy or ["sequential", "router"]:
        if name == "sequential":
            path = locate_bundle(Path("example"))
            bundle = load_bundle(path)
        else:
            bundle, path = make_router(options.folder, questions), options.folder / name
        measure(options.folder, name, bundle, path, options)
    print(
        f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB"
    )


if __name__ == "__main__":
    main()
