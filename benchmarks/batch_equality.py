"""Batch plans, equality: those of files, in any blocks and on both engines, are those in memory.

``python -m benchmarks.batch_equality [QUESTIONS] [--policy NAME]`` plans the same questions (1
million) in memory, by the local engine with the default and with small shards, with the files in
reverse order, and on Ray, for `sequential` and `value-router`. It prints the price of each plan and
the number of questions whose first action differs from the one in memory. It exits with 1 if any is
not 0. Questions with equal predicted utilities are upgraded in the order of the files until the
total is used up, so with the files in reverse the plan in memory is made for that order.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adacompute.batch.planning import spool
from adacompute.batch.planning.cost_curves import cell_costs
from adacompute.batch.planning.plan import plan_at_total
from adacompute.core.allocation.oracle import solve
from adacompute.core.types import FloatArray, IntArray, KeyArray, UtilityTable, hash_text
from adacompute.datasets.example import locate_bundle
from adacompute.features.text import extract_features
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode, start_state
from adacompute.policies.policy import SampleMatrix
from adacompute.policies.router import ValueRouterPolicy
from adacompute.stages.batch_plan import plan_questions
from benchmarks.batch_plan import BUDGET, fresh, make_value_router, write_questions

BLOCK = 1 << 14
POLICIES = ("sequential", "value-router")


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """A plan from one table of all questions: the price, and what it is made of."""

    bundle: Bundle
    price: float
    prepared: FloatArray
    keys: KeyArray

    def first_samples(self, positions: KeyArray) -> IntArray:
        """Return the samples of each first action, for questions at these positions in files."""
        n_samples = np.array([level.n_samples for level in self.bundle.policy.levels])
        if is_value_router(self.bundle):
            table = UtilityTable(self.prepared, self.bundle.level_cost[0], positions)
            return n_samples[solve(table, BUDGET).choice]
        episode = Episode.start(
            self.bundle.policy,
            self.price,
            start_state(
                key=self.keys,
                features=self.prepared.astype(np.float32),
                cost=np.broadcast_to(
                    self.bundle.level_cost, (len(self.keys), self.bundle.level_cost.shape[1])
                ),
                samples=SampleMatrix(np.empty((len(self.keys), 0), dtype=np.int64)),
                max_rounds=self.bundle.max_rounds or UNLIMITED_ROUNDS,
            ),
        )
        return n_samples[episode.decide().state.level]


def is_value_router(bundle: Bundle) -> bool:
    """Whether a policy predicts the utility of each level."""
    return isinstance(bundle.policy, ValueRouterPolicy)


def plan_in_memory(bundle: Bundle, texts: pa.ChunkedArray) -> MemoryPlan:
    """Return the plan of all questions, from one table."""
    prepared = np.concatenate(
        [
            bundle.policy.prepare_features(
                extract_features(texts[first : first + BLOCK], features=bundle.features)
            )
            for first in range(0, len(texts), BLOCK)
        ]
    ).astype(np.float64)
    keys = np.array([hash_text(text) for text in texts.to_pylist()], dtype=np.uint64)
    if is_value_router(bundle):
        price = solve(UtilityTable(prepared, bundle.level_cost[0]), BUDGET).price
        return MemoryPlan(bundle, price, prepared, keys)
    costs = cell_costs(bundle)
    counts = np.bincount(prepared[:, 0].astype(np.int64), minlength=costs.costs.shape[1])
    plan = plan_at_total(costs.curve(counts), n_questions=len(texts), total=BUDGET * len(texts))
    return MemoryPlan(bundle, plan.price, prepared, keys)


def compare(
    folder: Path,
    bundle: Bundle,
    files: list[str],
    known: MemoryPlan,
    **options: Any,  # noqa: ANN401
) -> bool:
    """Print one comparison; whether the plans are equal."""
    name = options.pop("name")
    workers, job = options.pop("workers", None), fresh(folder / "job")
    given = BatchOptions(bundle=Path(name), out=job, budget=BUDGET, **options)
    result = plan_questions(files, bundle=bundle, options=given, workers=workers)
    planned = pq.read_table(result["out"])
    names = pc.replace_substring(planned["question_id"], "question-", "")
    row = np.asarray(pc.cast(names, pa.int64()))
    positions = np.empty(len(row), dtype=np.uint64)
    positions[row] = np.arange(len(row), dtype=np.uint64)
    differ = np.asarray(planned["n_samples"]) != known.first_samples(positions)[row]
    ratio = result["price"] / known.price - 1
    print(
        f"  {name:28s} price {ratio:+.1e} relative, {differ.sum()} first actions differ", flush=True
    )
    return abs(ratio) < 1e-12 and not differ.any()


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/adacompute-batch-plan"))  # noqa: S108
    parser.add_argument("--policy", choices=POLICIES, action="append")
    options = parser.parse_args()
    source = options.folder / f"questions-{options.questions}"
    write_questions(source, options.questions)
    files = sorted(str(path) for path in source.iterdir())
    texts = pq.read_table(source)["question"]
    shard_rows, block_rows = spool.SHARD_ROWS, spool.BLOCK_ROWS
    is_equal = True
    for name in options.policy or POLICIES:
        bundle = (
            load_bundle(locate_bundle(Path("example")))
            if name == "sequential"
            else make_value_router(options.folder, source)
        )
        known = plan_in_memory(bundle, texts)
        print(f"{name}, {len(texts):,} questions, price in memory {known.price:.6g}", flush=True)
        runs: list[dict[str, Any]] = [
            {"name": "local"},
            {"name": "local, files in reverse", "files": files[::-1]},
            {"name": "local, small shards", "shards": (77_777, 1_013)},
            {"name": "ray", "engine": "ray"},
            {"name": "ray, small shards", "engine": "ray", "shards": (77_777, 1_013)},
        ]
        for run in runs:
            spool.SHARD_ROWS, spool.BLOCK_ROWS = run.pop("shards", (shard_rows, block_rows))
            given = run.pop("files", files)
            is_equal &= compare(options.folder, bundle, given, known, workers=2, **run)
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
