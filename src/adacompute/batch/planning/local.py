"""Planning: the local engine that plans a batch, on all cores of one machine.

Processes prepare the shards of a source and spool what they found. Finished shards are skipped when
a plan is made again. The summaries of shards give the price;
first actions can then be written as Parquet files, one per shard, in the order of the questions.

Nothing is sampled here, and the questions are read once. This module does not know Ray.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from adacompute.batch.planning.cost_curves import (
    cell_costs,
    frontier_curve,
    has_cell_costs,
    router_curve,
)
from adacompute.batch.planning.plan import BatchPlan, check_total, plan_at_total
from adacompute.batch.planning.preparation import Preparation
from adacompute.batch.planning.spool import Shard, ShardSummary, Spool, split_source
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import QuestionFile, QuestionSource
from adacompute.core.errors import AdaComputeError
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.policy import PreparedKind as Kind
from adacompute.storage.manifest import hash_path

BUNDLE, SPOOL = "bundle", "spool"
"""Directories of a job: the bundle that the workers load, and the spool."""


@dataclass(frozen=True)
class PlanProgress:
    """How many questions were prepared, how many per second, and how long the rest will take."""

    n_done: int
    n_questions: int
    rate: float
    left_s: float

    def __str__(self) -> str:
        left = "?" if math.isinf(self.left_s) else f"{self.left_s:,.0f}"
        return (
            f"{self.n_done:,} of {self.n_questions:,} questions, {self.rate:,.0f} per second, "
            f"{left} s left"
        )


Progress = Callable[[PlanProgress], None]


def no_progress(_: PlanProgress) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """A source whose questions are prepared: its shards, their summaries and their files."""

    bundle: Bundle
    source: QuestionSource
    directory: Path
    fingerprint: str
    shards: tuple[Shard, ...]
    summaries: tuple[ShardSummary, ...]

    @property
    def spool(self) -> Spool:
        """The files of the shards."""
        return Spool(self.directory / SPOOL)

    @property
    def n_questions(self) -> int:
        """Number of questions with a usable text."""
        return sum(one.n_questions for one in self.summaries)


def prepare_batch(
    bundle: Bundle,
    source: QuestionSource,
    *,
    directory: Path,
    processes: WorkerProcesses,
    on_progress: Progress = no_progress,
) -> PlannedBatch:
    """Prepare all questions that are not prepared yet."""
    work = find_work(bundle, source, directory)
    report = ProgressReport(work, on_progress)
    for task, _ in processes.run(prepare_shard, work.tasks, report.show):
        report.finish(task)
    return work.finish()


@dataclass(frozen=True, eq=False)
class PlanningWork:
    """The shards of a batch, and the tasks of those that are not prepared yet."""

    bundle: Bundle
    source: QuestionSource
    directory: Path
    fingerprint: str
    shards: tuple[Shard, ...]
    tasks: tuple[ShardTask, ...]

    def finish(self) -> PlannedBatch:
        """Return the batch when all tasks are done."""
        spool = Spool(self.directory / SPOOL)
        found = [spool.read_summary(shard, self.fingerprint) for shard in self.shards]
        summaries = tuple(one for one in found if one is not None)
        if len(summaries) < len(self.shards):
            raise AdaComputeError(
                f"{len(self.shards) - len(summaries)} shards are not in {spool.directory}: all "
                "workers need the same directory, on a shared filesystem"
            )
        return PlannedBatch(
            self.bundle, self.source, self.directory, self.fingerprint, self.shards, summaries
        )


def find_work(bundle: Bundle, source: QuestionSource, directory: Path) -> PlanningWork:
    """Return the shards of a batch, and what is left to prepare."""
    path, fingerprint = store_bundle(bundle, source, directory)
    spool = Spool(directory / SPOOL)
    shards = split_source(source)
    tasks = tuple(
        ShardTask(str(path), str(spool.directory), fingerprint, shard, file, source.columns)
        for shard, file in shards
        if spool.read_summary(shard, fingerprint) is None
    )
    numbers = tuple(shard for shard, _ in shards)
    return PlanningWork(bundle, source, directory, fingerprint, numbers, tasks)


def store_bundle(bundle: Bundle, source: QuestionSource, directory: Path) -> tuple[Path, str]:
    """Write the bundle for the workers; return its path, and a hash of the bundle and source."""
    path = directory / BUNDLE
    save_bundle(replace(bundle, notes={}), path)
    return path, f"{source.fingerprint}-{hash_path(path)}"


@dataclass(frozen=True)
class ShardTask:
    """What a worker needs to prepare one shard."""

    bundle: str
    spool: str
    fingerprint: str
    shard: Shard
    file: QuestionFile
    columns: tuple[str, str]


def prepare_shard(task: ShardTask) -> ShardSummary:
    """Prepare the questions of one shard, in any process."""
    preparation, spool = load_preparation(task.bundle, task.fingerprint), Spool(Path(task.spool))
    source = QuestionSource((task.file,), task.shard.stop, *task.columns)
    summary = spool.write_shard(preparation, task.shard, source)
    spool.finish_shard(task.shard, summary, task.fingerprint)
    return summary


@lru_cache(maxsize=1)
def load_preparation(path: str, fingerprint: str) -> Preparation:
    """Load a bundle once per process; the fingerprint is that of the bundle."""
    del fingerprint
    return Preparation(load_bundle(Path(path)))


class ProgressReport:
    """Reports progress from how much the files of unfinished shards have grown."""

    def __init__(self, work: PlanningWork, on_progress: Progress) -> None:
        self.spool, self.on_progress = Spool(work.directory / SPOOL), on_progress
        self.row_bytes = Preparation(work.bundle).row_bytes
        self.n_questions, self.n_finished = work.source.n_questions, 0
        self.n_before = self.n_questions - sum(len(task.shard) for task in work.tasks)
        self.started = time.monotonic()

    def finish(self, task: ShardTask) -> None:
        """Count a finished shard."""
        self.n_finished += len(task.shard)
        self.show(())

    def show(self, running: Iterable[ShardTask]) -> None:
        """Report progress, with what is done of the running shards."""
        written = sum(self.spool.count_written(task.shard, self.row_bytes) for task in running)
        n_new = self.n_finished + written
        rate = n_new / max(1e-9, time.monotonic() - self.started)
        n_done = min(self.n_before + n_new, self.n_questions)
        left = (self.n_questions - n_done) / rate if rate else math.inf
        self.on_progress(PlanProgress(n_done, self.n_questions, rate, left))


def make_plan(batch: PlannedBatch, total: float) -> BatchPlan:
    """Find the price that spends the total on prepared questions."""
    check_total(total, batch.n_questions)
    kind, n_questions = Preparation(batch.bundle).kind, batch.n_questions
    counts = sum(np.array(one.counts, dtype=np.int64) for one in batch.summaries if one.counts)
    if kind == Kind.LEVELS:
        curve = router_curve(batch.bundle, np.asarray(counts))
    elif has_cell_costs(batch.bundle):
        curve = cell_costs(batch.bundle).curve(np.asarray(counts)[0])
    else:
        curve = frontier_curve(batch.bundle)
    return plan_at_total(curve, n_questions=n_questions, total=total)
