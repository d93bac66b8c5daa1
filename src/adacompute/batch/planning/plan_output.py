"""Plan output: first actions of all questions as Parquet files, one per shard, in their order.

Columns are the id, the samples to request first, the arm where there are several, and what the
decision came from, the cell of the prior. Questions without a usable text have no action. Nothing
is read but the spool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.batch.planning.first_actions import find_first_actions
from adacompute.batch.planning.local import PlannedBatch, load_preparation, store_bundle
from adacompute.batch.planning.plan import BatchPlan
from adacompute.batch.planning.preparation import Preparation, Prepared
from adacompute.batch.planning.spool import Shard, Spool
from adacompute.batch.processes import WorkerProcesses
from adacompute.policies.policy import PreparedKind as Kind
from adacompute.storage.regular_files import write_when_complete

BATCH_ROWS = 1 << 16
"""Rows that are written at once."""


Action = tuple[str, int]
"""An arm, empty if there is one arm, and a number of samples."""


class ActionFiles(NamedTuple):
    """Files in the order of the questions, and how many questions have each first action."""

    paths: list[Path]
    counts: dict[Action, int]


@dataclass(frozen=True, eq=False)
class OutputTask:
    """What a worker needs to write the first actions of one shard."""

    bundle: str
    spool: str
    fingerprint: str
    shard: Shard
    plan: BatchPlan
    path: str


def write_first_actions(
    batch: PlannedBatch, plan: BatchPlan, out: Path, processes: WorkerProcesses
) -> ActionFiles:
    """Write the first actions of all questions."""
    tasks = output_tasks(batch, plan, out)
    done = processes.run(write_shard_actions, tasks)
    return collect_actions(tasks, (counts for _, counts in done))


def output_tasks(batch: PlannedBatch, plan: BatchPlan, out: Path) -> list[OutputTask]:
    """Return the tasks that write the first actions of all shards."""
    bundle, _ = store_bundle(batch.bundle, batch.source, batch.directory)
    out.mkdir(parents=True, exist_ok=True)
    return [
        OutputTask(
            str(bundle),
            str(batch.spool.directory),
            batch.fingerprint,
            shard,
            plan,
            str(out / f"part-{shard.number:06}.parquet"),
        )
        for shard in batch.shards
    ]


def collect_actions(
    tasks: Iterable[OutputTask], counts: Iterable[Mapping[Action, int]]
) -> ActionFiles:
    """Return the files of finished tasks, and the sum of their counts."""
    total: Counter[Action] = Counter()
    for one in counts:
        total.update(one)
    return ActionFiles([Path(task.path) for task in tasks], dict(sorted(total.items())))


def write_shard_actions(task: OutputTask) -> Counter[Action]:
    """Write the first actions of one shard, and count them.

    The file appears when it is complete.
    """
    preparation = load_preparation(task.bundle, task.fingerprint)
    spool, path = Spool(Path(task.spool)), Path(task.path)
    schema = action_schema(preparation)
    ids = spool.read_ids(task.shard)["question_id"]
    counts: Counter[Action] = Counter()
    with (
        write_when_complete(path) as partial,
        pq.ParquetWriter(partial, schema, use_dictionary=_repeated(schema)) as writer,
    ):
        blocks = spool.read_prepared(preparation, task.shard, block_size=BATCH_ROWS)
        for position, prepared in blocks:
            row = position - task.shard.start
            own = ids.slice(row, len(prepared.values)).combine_chunks()
            batch = tabulate(preparation, task.plan.price, own, prepared)
            writer.write_batch(batch)
            counts.update(_count(batch))
    return counts


def _count(batch: pa.RecordBatch) -> dict[Action, int]:
    """Count the questions of each first action."""
    names = [name for name in ("arm", "n_samples") if name in batch.schema.names]
    known = pa.table(batch.select(names)).drop_null()
    groups = known.group_by(names).aggregate([([], "count_all")]).to_pylist()
    return {(row.get("arm", ""), row["n_samples"]): row["count_all"] for row in groups}


def action_schema(preparation: Preparation) -> pa.Schema:
    """Return the columns that first actions have for a policy."""
    fields = [("question_id", pa.string()), ("n_samples", pa.int32())]
    if len(_arm_names(preparation)) > 1:
        fields.append(("arm", pa.string()))
    if preparation.kind == Kind.CELL:
        fields.append(("cell", pa.uint8()))
    return pa.schema(fields)


def tabulate(
    preparation: Preparation, price: float, ids: pa.Array, prepared: Prepared
) -> pa.RecordBatch:
    """Return the first actions of a block of questions as a table."""
    values, schema = prepared.values, action_schema(preparation)
    actions = find_first_actions(preparation, price, prepared)
    missing = preparation.find_missing(values)
    mask = missing if missing.any() else None
    columns = [ids, pa.array(actions.n_samples, pa.int32(), mask=mask)]
    if actions.arm is not None:
        names = pa.array(_arm_names(preparation))
        columns.append(names.take(pa.array(actions.arm, mask=mask)))
    if "cell" in schema.names:
        columns.append(pa.array(values[:, 0], pa.uint8(), mask=mask))
    return pa.record_batch(columns, schema=schema)


def _arm_names(preparation: Preparation) -> tuple[str, ...]:
    """Return the names of the arms of the policy, none if it knows no arms."""
    return preparation.bundle.policy.arms


def _repeated(schema: pa.Schema) -> list[str]:
    """Return the columns with few different values: ids are all different."""
    return [name for name in schema.names if name != "question_id"]
