"""Ray planning: prepare the shards of a batch and write their first actions on a Ray cluster.

The shards, the files and the functions are those of the local engine, so the plan is the same. Only
the distribution differs: shards are the tasks of a pool of actors. The bundle travels as bytes with
its hash. The directory of the job must be on a filesystem that all nodes share.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adacompute.batch.planning.local import (
    BUNDLE,
    PlannedBatch,
    Progress,
    ProgressReport,
    ShardTask,
    find_work,
    no_progress,
    prepare_shard,
)
from adacompute.batch.planning.plan import BatchPlan
from adacompute.batch.planning.plan_output import (
    ActionFiles,
    OutputTask,
    collect_actions,
    output_tasks,
    write_shard_actions,
)
from adacompute.batch.questions import QuestionSource
from adacompute.batch.ray.cluster import connect, count_cpus, map_tasks
from adacompute.core.errors import BundleError
from adacompute.policies.bundles.bundle import Bundle
from adacompute.storage.manifest import hash_path


def prepare_on_ray(
    bundle: Bundle,
    source: QuestionSource,
    *,
    directory: Path,
    address: str | None = None,
    workers: int | None = None,
    on_progress: Progress = no_progress,
) -> PlannedBatch:
    """Prepare all questions that are not prepared yet, on a cluster or a local Ray."""
    work = find_work(bundle, source, directory.absolute())
    report = ProgressReport(work, on_progress)
    if work.tasks:
        with connect(address, n_cpus=workers):
            arguments = _pack(work.directory, work.tasks)
            n_workers = min(workers or count_cpus(), len(work.tasks))
            done = map_tasks(ShardWorker, arguments, n_tasks=len(work.tasks), max_workers=n_workers)
            for number, _ in done:
                report.finish(work.tasks[number])
    return work.finish()


def write_on_ray(
    batch: PlannedBatch,
    plan: BatchPlan,
    out: Path,
    *,
    address: str | None = None,
    workers: int | None = None,
) -> ActionFiles:
    """Write the first actions of all questions, on a cluster or a local Ray."""
    tasks = output_tasks(batch, plan, out.absolute())
    with connect(address, n_cpus=workers):
        arguments = _pack(batch.directory, tasks)
        n_workers = min(workers or count_cpus(), len(tasks))
        done = map_tasks(OutputWorker, arguments, n_tasks=len(tasks), max_workers=n_workers)
        counts = [{(arm, n): count for arm, n, count in json.loads(one)} for _, one in done]
    return collect_actions(tasks, counts)


def _pack(directory: Path, tasks: Sequence[ShardTask | OutputTask]) -> dict[str, object]:
    """Return the tasks and the bundle, to be sent to workers."""
    return {"tasks": list(tasks), **pack_bundle(directory / BUNDLE)}


def pack_bundle(path: Path) -> dict[str, object]:
    """Return the files of a bundle and their hash, to be sent to workers."""
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    return {"files": files, "digest": hash_path(path)}


class BundleWorker:
    """Keeps a copy of the bundle on the node of the worker."""

    def __init__(self, files: Mapping[str, bytes], digest: str) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="adacompute-bundle-")
        path = Path(self.directory.name)
        for name, data in files.items():
            (path / name).write_bytes(data)
        if hash_path(path) != digest:
            raise BundleError("the bundle was damaged on its way to a worker: start again")
        self.bundle = str(path)


class ShardWorker(BundleWorker):
    """Prepares shards."""

    def __init__(self, tasks: Sequence[ShardTask], files: Mapping[str, bytes], digest: str) -> None:
        super().__init__(files, digest)
        self.tasks = tasks

    def __call__(self, number: int) -> str:
        """Prepare one shard."""
        prepare_shard(replace(self.tasks[number], bundle=self.bundle))
        return ""


class OutputWorker(BundleWorker):
    """Writes the first actions of shards."""

    def __init__(
        self, tasks: Sequence[OutputTask], files: Mapping[str, bytes], digest: str
    ) -> None:
        super().__init__(files, digest)
        self.tasks = tasks

    def __call__(self, number: int) -> str:
        """Write the first actions of one shard, and return their counts as JSON."""
        counts = write_shard_actions(replace(self.tasks[number], bundle=self.bundle))
        return json.dumps([(arm, n, count) for (arm, n), count in counts.items()])
