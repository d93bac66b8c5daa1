"""Batch: the stage that answers files of questions under a hard total.

It plans a price for the questions, then samples, votes and writes answers into a directory, where a
batch that was stopped goes on. The plan is made on the chosen engine, and is not made again while
its manifest is there. API keys are read from the environment and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from adacompute.batch.answers import write_unsure
from adacompute.batch.calls import BatchArm
from adacompute.batch.job import JOB, BatchJob, BatchSettings
from adacompute.batch.passes import Span
from adacompute.batch.planning.expected_spend import expect_spend
from adacompute.batch.planning.local import PlannedBatch, Progress, make_plan, prepare_batch
from adacompute.batch.planning.plan import BatchPlan
from adacompute.batch.planning.plan_output import ActionFiles, write_first_actions
from adacompute.batch.processes import WorkerProcesses
from adacompute.batch.questions import QuestionSource, open_questions
from adacompute.batch.ray.cluster import connect
from adacompute.batch.ray.planning import prepare_on_ray, write_on_ray
from adacompute.batch.ray.rounds import ROUND
from adacompute.batch.ray.sampling import RayBatch, sample_on_ray
from adacompute.batch.server import Server
from adacompute.core.errors import ConfigError
from adacompute.core.progress import no_progress
from adacompute.datasets.example import locate_bundle
from adacompute.graders.grader import load_grader
from adacompute.models.messages import Settings
from adacompute.models.templates import Template
from adacompute.options.definition import takes
from adacompute.options.main import BatchOptions
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.policies.bundles.bundle_checks import check_arms, check_signals, check_verdict
from adacompute.policies.bundles.bundle_files import find_digest
from adacompute.spending.call_costs import MONEY, CallCosts
from adacompute.spending.token_prices import TokenPriceList, find_token_prices, parse_token_prices
from adacompute.stages.inputs import read_api_key
from adacompute.storage.manifest import Manifest, read_manifest, write_manifest

PLAN, MANIFEST = "plan", "plan.json"
"""Directory of the files of first actions, and the manifest that is written last."""

LOCAL, RAY = "local", "ray"

UNSURE = "unsure.csv"
"""File in the directory of a batch with the answers that are not sure, for people."""


@takes(BatchOptions)
def run_batch(
    questions: Sequence[str],
    options: BatchOptions,
    *,
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Plan and answer a batch, or what is left of it; return counts and costs.

    With ``plan_only``, write the first decisions of its questions, and sample nothing.
    """
    bundle = load_bundle(locate_bundle(options.bundle))
    if options.plan_only:
        return plan_questions(questions, bundle=bundle, options=options, report=progress)
    if options.base_url is None:
        raise ConfigError("a batch needs a server: give --base-url, or --plan-only to see its plan")
    _check_engine(options)
    source = open_questions(questions, options.columns)
    total = read_total(options.total, options.budget, source.n_questions)
    _check_bundle(bundle, options, mean=total / source.n_questions)
    arms, grader = make_arms(options, bundle), _find_grader(options, bundle)
    costs = CallCosts(bundle.unit, _read_prices(options, bundle))
    settings = BatchSettings(total=total, concurrency=options.concurrency)
    for arm in arms:
        costs.check(arm.model, arm.settings.max_tokens)
    with open_engine(options.engine) as engine:
        batch = engine.prepare(
            bundle, source, options.out, lambda done: progress(f"planning: {done}")
        )
    plan = make_plan(batch, total * (1 - settings.reserve))
    shared: dict[str, Any] = {
        "directory": options.out.absolute(),
        "arms": arms,
        "curve": plan.curve,
        "costs": costs,
        "settings": settings,
        "expected": expect_spend(batch, plan),
        "identity": _identity(options, source, grader, costs, arms),
    }
    server = Server.find(options.base_url, arms[0].model, read_api_key(options.api_key_env))
    if options.engine != LOCAL:
        parts = RayBatch(source=source, grader=grader, server=server, **shared)
        path = locate_bundle(options.bundle)
        result = sample_on_ray(parts, path, address=find_cluster(options.engine), report=progress)
    else:
        job = BatchJob(span=Span.all(source), bundle=bundle, grader=load_grader(grader), **shared)
        job.on_progress = lambda done: progress(str(done))
        result = server.run(job)
    result |= {"price": plan.price, "expected_cost": plan.expected_cost}
    return result | _write_unsure(bundle, source, options.out)


def _write_unsure(bundle: Bundle, source: QuestionSource, out: Path) -> dict[str, Any]:
    """Write the unsure answers to a file of their own, if the bundle tells them from others."""
    if bundle.correctness is None or bundle.correctness.threshold is None:
        return {"unsure": None, "unsure_answers": None}
    path, parts = out / UNSURE, sorted(out.glob("**/answers/part-*.parquet"))
    return {"unsure": write_unsure(parts, source, path), "unsure_answers": str(path)}


def _check_bundle(bundle: Bundle, options: BatchOptions, *, mean: float) -> None:
    """Refuse a bundle that a batch at a mean budget per question should not or cannot use."""
    path = str(options.bundle)
    check_verdict(bundle, mean, path=path, is_accepted=options.accept_verdict)
    check_arms(bundle, path)
    check_signals(bundle, path)


def make_arms(options: BatchOptions, bundle: Bundle) -> list[BatchArm]:
    """Return how each arm of a bundle is sampled, with the limit of output tokens."""
    model = options.model or bundle.model
    if not bundle.arms:
        if model is None:
            raise ConfigError("the bundle names no model: give --model")
        known = bundle.settings or Settings()
        return [
            BatchArm(None, model, bundle.template or Template(), _limit(known, options, bundle))
        ]
    return [
        BatchArm(
            arm.name if len(bundle.arms) > 1 else None,
            arm.model,
            arm.template or bundle.template or Template(),
            _limit(arm.settings or bundle.settings or Settings(), options, bundle),
        )
        for arm in bundle.arms
    ]


def _check_engine(options: BatchOptions) -> None:
    """Refuse a directory in which the other engine has begun."""
    other = ROUND.format(0) if options.engine == LOCAL else JOB
    if (options.out / other).is_file():
        begun = RAY if options.engine == LOCAL else LOCAL
        raise ConfigError(
            f"{options.out} belongs to a batch with engine={begun}: go on with it, or use another "
            "directory"
        )


def _limit(settings: Settings, options: BatchOptions, bundle: Bundle) -> Settings:
    """Return settings with the smaller limit of output tokens, and the signals that votes need."""
    limits = [x for x in (settings.max_tokens, options.max_output_tokens) if x is not None]
    limit = min(limits, default=None)
    return replace(settings, max_tokens=limit, logprobs=bundle.needs_logprobs)


def _read_prices(options: BatchOptions, bundle: Bundle) -> TokenPriceList:
    if bundle.unit != MONEY:
        return {}
    if options.token_prices is None:
        raise ConfigError("a total in money needs token prices: give --token-prices")
    return parse_token_prices(options.token_prices, dict(options.price_as or {}))


def _find_grader(options: BatchOptions, bundle: Bundle) -> str:
    """Return the name of the grader, if there is such a grader."""
    name = options.grader or bundle.grader
    if name is None:
        raise ConfigError("the bundle names no grader: give --grader")
    return load_grader(name).name


def _identity(
    options: BatchOptions,
    source: QuestionSource,
    grader: str,
    costs: CallCosts,
    arms: Sequence[BatchArm],
) -> dict[str, Any]:
    """Return what a directory must agree on with the batch that continues in it."""
    priced = arms if costs.unit == MONEY else ()
    return {
        "bundle": find_digest(locate_bundle(options.bundle)),
        "files": [[file.path, file.n_rows] for file in source.files],
        "model": options.model,
        "max_output_tokens": options.max_output_tokens,
        "grader": grader,
        "token_prices": {
            arm.model: vars(find_token_prices(costs.token_prices, arm.model)) for arm in priced
        },
        "columns": [source.id_column, source.text_column],
    }


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
