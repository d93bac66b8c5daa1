"""Batch plan: the stage that plans files of questions and writes what to sample first.

It opens the questions, prepares them on the chosen engine, finds the price that spends the total,
and writes the first actions as Parquet files. The manifest is written last; the same plan is not
made again while it is there. Nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from adacompute.batch.planning.local import PlannedBatch, Progress, make_plan, prepare_batch
from adacompute.batch.planning.plan import BatchPlan
from adacompute.batch.planning.plan_output import ActionFiles, write_first_actions
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import QuestionSource, open_questions
from adacompute.batch.ray.cluster import connect
from adacompute.batch.ray.planning import prepare_on_ray, write_on_ray
from adacompute.core.errors import ConfigError
from adacompute.core.progress import no_progress
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import Bundle
from adacompute.storage.manifest import Manifest, read_manifest, write_manifest

PLAN, MANIFEST = "plan", "plan.json"
"""Directory of the files of first actions, and the manifest that is written last."""

LOCAL, RAY = "local", "ray"


def plan_questions(
    questions: Sequence[str],
    *,
    bundle: Bundle,
    options: BatchOptions,
    workers: int | None = None,
    report: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Plan a batch and write first actions."""
    source, out = open_questions(questions, options.columns), options.out
    with open_engine(options.engine, workers=workers) as chosen:
        batch = chosen.prepare(bundle, source, out, lambda progress: report(str(progress)))
        total = read_total(options.total, options.budget, batch.n_questions)
        arguments = {"total": total, "unit": bundle.unit}
        inputs = {"questions": source.fingerprint, "batch": batch.fingerprint}
        known = read_manifest(out / MANIFEST)
        if known is not None and (known.arguments, known.inputs) == (arguments, inputs):
            return known.result
        plan = make_plan(batch, total)
        report("writing first actions")
        written = chosen.write(batch, plan, out / PLAN)
    for old in set((out / PLAN).glob("part-*.parquet")) - set(written.paths):
        old.unlink()
    result = describe_plan(batch, plan) | {"first_actions": describe_actions(written)}
    result["out"] = str(out / PLAN)
    outputs = {path.name: str(path.stat().st_size) for path in written.paths}
    write_manifest(out / MANIFEST, Manifest("plan", arguments, inputs, outputs, result))
    return result


class PlanningEngine(NamedTuple):
    """Where shards are prepared and written."""

    prepare: Callable[[Bundle, QuestionSource, Path, Progress], PlannedBatch]
    write: Callable[[PlannedBatch, BatchPlan, Path], ActionFiles]


@contextmanager
def open_engine(engine: str = LOCAL, *, workers: int | None = None) -> Iterator[PlanningEngine]:
    """Open an engine by its name, or Ray by the address of a cluster.

    Its processes end with the context.
    """
    if engine == LOCAL:
        with WorkerProcesses(workers) as processes:
            yield PlanningEngine(
                lambda bundle, source, out, show: prepare_batch(
                    bundle, source, directory=out, processes=processes, on_progress=show
                ),
                partial(write_first_actions, processes=processes),
            )
    else:
        with connect(find_cluster(engine), n_cpus=workers):
            yield PlanningEngine(
                lambda bundle, source, out, show: prepare_on_ray(
                    bundle, source, directory=out, workers=workers, on_progress=show
                ),
                partial(write_on_ray, workers=workers),
            )


def find_cluster(engine: str) -> str | None:
    """Return the address of a Ray cluster; None to start one here."""
    if engine == RAY:
        return None
    if ":" not in engine:
        names = f"{LOCAL}, {RAY} or the address of a cluster"
        raise ConfigError(f"engine must be {names}, got {engine!r}")
    return engine


def read_total(total: float | None, budget: float | None, n_questions: int) -> float:
    """Return the total, from the mean budget per question if that is given instead."""
    if (total is None) == (budget is None):
        raise ConfigError("give the total or the budget per question, not both")
    if total is None:
        return float(budget or 0.0) * n_questions
    return float(total)


def describe_plan(batch: PlannedBatch, plan: BatchPlan) -> dict[str, Any]:
    """Return a plan as JSON."""
    return {
        "questions": plan.n_questions,
        "without_text": batch.source.n_questions - plan.n_questions,
        "unit": batch.bundle.unit,
        "total": plan.total,
        "price": plan.price,
        "expected_cost": plan.expected_cost,
        "expected_cost_per_question": plan.expected_cost / plan.n_questions,
    }


def describe_actions(written: ActionFiles) -> list[dict[str, Any]]:
    """Return how many questions have each first action."""
    return [
        {**({"arm": arm} if arm else {}), "samples": n_samples, "questions": count}
        for (arm, n_samples), count in written.counts.items()
    ]
