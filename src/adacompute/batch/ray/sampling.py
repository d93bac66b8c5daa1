"""Ray sampling: answer a batch on a Ray cluster, part by part.

The questions are divided into consecutive partitions, and the total into leases, one per partition,
in proportion to what the plan expects them to cost. A partition is a batch of its own, in its own
directory, whose total is its lease; actors of a Ray Dataset run them. The leases add up to the
total, so it is kept however many actors there are and whatever becomes of them. What partitions
have left goes, in further rounds, to those whose questions the lease has stopped. The store of a
partition is in its directory: an actor that takes over from one that was lost finds there what is
paid. The directory must be on a filesystem that all nodes share.
"""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from adacompute.batch.answers import PART_ROWS, Status
from adacompute.batch.calls import BatchArm
from adacompute.batch.job import MANIFEST, BatchJob, BatchSettings, describe_batch, make_clock
from adacompute.batch.passes import BLOCK_ROWS, Span
from adacompute.batch.planning.expected_spend import ExpectedSpend
from adacompute.batch.planning.plan import CostCurve
from adacompute.batch.questions import QuestionSource
from adacompute.batch.ray.cluster import connect, count_cpus, map_tasks
from adacompute.batch.ray.planning import BundleWorker, pack_bundle
from adacompute.batch.ray.rounds import PARTITIONS, Partition, Rounds, find_partition
from adacompute.batch.server import Server
from adacompute.graders.grader import load_grader
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.spending.call_costs import CallCosts
from adacompute.storage.paid_samples import SEGMENTS, StoreReader
from adacompute.storage.regular_files import write_atomically

PARTITION_ROWS = 8 * PART_ROWS
"""Questions per partition, at most: each partition ends with calls that wait for each other."""

REPORT_S = 2.0
"""Time between two reports of progress."""

SUMS = ("questions", "samples", "cost", "lost_cost", "left", *get_args(Status))
"""Entries of the results of partitions that are added up."""


@dataclass(frozen=True, eq=False)
class RayBatch:
    """A batch to run on Ray: everything that its actors need, except the bundle."""

    directory: Path
    source: QuestionSource
    grader: str
    arms: Sequence[BatchArm]
    curve: CostCurve
    expected: ExpectedSpend
    costs: CallCosts
    settings: BatchSettings
    server: Server
    identity: Mapping[str, Any]

    def divide(self, n_workers: int) -> list[Partition]:
        """Divide the questions and the total; the leases add up to at most the total.

        Every worker gets as many partitions, of the same size except the last.
        """
        n_questions = self.source.n_questions
        n_partitions = n_workers * math.ceil(n_questions / (n_workers * PARTITION_ROWS))
        rows = max(PART_ROWS, math.ceil(n_questions / n_partitions))
        rows = math.ceil(rows / BLOCK_ROWS) * BLOCK_ROWS
        per_unit = self.costs.per_unit
        total = self.costs.to_amount(self.settings.total)
        edges = [*range(0, n_questions, rows), n_questions]
        until = [math.floor(total * self.expected.share_until(edge)) for edge in edges]
        return [
            Partition(i, edges[i], edges[i + 1] - edges[i], (until[i + 1] - until[i]) / per_unit)
            for i in range(len(edges) - 1)
        ]


def sample_on_ray(
    batch: RayBatch,
    bundle: Path,
    *,
    address: str | None = None,
    workers: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Answer all questions that have no answer yet; return counts and costs."""
    with connect(address, n_cpus=workers):
        n_workers = workers or count_cpus()
        n_questions = batch.source.n_questions
        asked = describe_batch(batch.settings, batch.costs, n_questions, batch.identity)
        rounds = Rounds(batch.directory, asked)
        partitions = rounds.start(lambda: batch.divide(n_workers))
        n_workers = min(n_workers, len(partitions))
        shared = max(1, batch.settings.concurrency // n_workers)
        batch = replace(batch, settings=replace(batch.settings, concurrency=shared))
        files = pack_bundle(bundle)
        watch = _Watch(batch, rounds, report)
        while partitions:
            arguments = {"batch": batch, "partitions": partitions, **files}
            with watch:
                for _, text in map_tasks(
                    PartitionWorker, arguments, n_tasks=len(partitions), max_workers=n_workers
                ):
                    watch.n_done += json.loads(text)["questions"]
            partitions = rounds.next(batch.costs)
            watch.n_done = 0
    return _summarise(batch, rounds.results())


class _Watch:
    """Reports how far a batch is, from the stores of its partitions, while they are written."""

    def __init__(self, batch: RayBatch, rounds: Rounds, report: Callable[[str], None]) -> None:
        numbers = [one.number for one in rounds.partitions]
        self._reader = StoreReader(
            *(find_partition(batch.directory, number) / SEGMENTS for number in numbers)
        )
        spendable = batch.costs.to_amount(batch.settings.total * (1 - batch.settings.reserve))
        n_questions = batch.source.n_questions
        totals = copy.deepcopy(self._reader.read())
        self._clock = make_clock(totals, batch.costs, batch.curve, n_questions, spendable)
        self._rounds = rounds
        self._report = report
        self.n_done = 0

    def __enter__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        stage = f", round {self._rounds.number + 1}" if self._rounds.number else ""
        while not self._is_over.wait(REPORT_S):
            progress = self._clock.record(self._reader.read(), self.n_done, stage=stage)
            self._report(str(progress))


class PartitionWorker(BundleWorker):
    """Answers partitions, in an actor."""

    def __init__(
        self,
        batch: RayBatch,
        partitions: Sequence[Partition],
        files: Mapping[str, bytes],
        digest: str,
    ) -> None:
        super().__init__(files, digest)
        self.batch = batch
        self.partitions = partitions

    def __call__(self, number: int) -> str:
        """Answer one partition; return its result as JSON."""
        batch, partition = self.batch, self.partitions[number]
        first, stop = partition.first, partition.first + partition.n_questions
        job = BatchJob(
            directory=find_partition(batch.directory, partition.number),
            span=Span(batch.source, first, partition.n_questions),
            bundle=load_bundle(Path(self.bundle)),
            grader=load_grader(batch.grader),
            arms=batch.arms,
            curve=batch.curve,
            costs=batch.costs,
            settings=replace(batch.settings, total=partition.lease),
            expected=batch.expected.slice(first, stop),
            extra=partition.extra,
            identity={**batch.identity, "first": first},
        )
        return json.dumps(batch.server.run(job))


def _summarise(batch: RayBatch, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the results of partitions, and write the manifest."""
    total = {name: sum(one[name] for one in results) for name in SUMS}
    total |= {
        "unit": batch.costs.unit,
        "total": batch.settings.total,
        "mean_cost": total["cost"] / total["questions"],
        "answers": str(batch.directory / PARTITIONS / "*" / "answers"),
    }
    write_atomically(batch.directory / MANIFEST, json.dumps(total, indent=2).encode())
    return total
