"""Collect: the stage that samples what a run still lacks from an OpenAI-compatible server.

Samples go to the ledger of the run as they arrive, and are exported with grades at the end. API
keys are read from the environment and are not stored.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adacompute.collection.adaptive import RoundSamples, collect_rounds
from adacompute.collection.arms import ArmSpec
from adacompute.collection.collector import CollectionProgress, Collector
from adacompute.collection.cost_cap import CostCap
from adacompute.collection.export import export
from adacompute.collection.limits import AdaptiveLimiter, RateLimiter
from adacompute.collection.plan import MAX_SAMPLES_PER_CALL, CollectionLevel, Plan
from adacompute.core.errors import DataError
from adacompute.graders.grader import load_grader
from adacompute.models.openai import Upstream
from adacompute.models.scorer import HttpScorer
from adacompute.spending.token_prices import NANO, Usage
from adacompute.stages.inputs import read_api_key
from adacompute.stages.probe import find_capabilities
from adacompute.storage.ledger import Ledger
from adacompute.storage.store import SAMPLES, Run

LEDGER, LOG = "ledger.sqlite", "collect.log"
OVERLOADED = ("answered 429", "answered 503", "answered 529", "did not begin")
"""How the client's retry events start when a server is overloaded."""


def collect_run(
    plan: Plan, run: Path, *, report: Callable[[str, CollectionProgress], None] = lambda _, __: None
) -> dict[str, Any]:
    """Sample what a run still lacks, arm by arm, and export it with grades."""
    store = Run(run)
    is_imported = store.file("import.manifest.json").is_file()
    if is_imported or (store.file(SAMPLES).is_file() and not store.file(LEDGER).is_file()):
        raise DataError(f"{run} holds imported samples: collect into another directory")
    ledger = Ledger(store.file(LEDGER))
    try:
        _check_arms(plan, run, ledger)
        with store.file(LOG).open("a") as log:
            finished = asyncio.run(_collect(plan, ledger, log.write, report))
        exported = _export(plan, store, ledger)
    finally:
        ledger.close()
    rows = [
        {
            "arm": spec.name,
            "model": spec.model,
            "samples_planned": progress.planned,
            "samples": progress.done,
            "missing": progress.missing,
            "unscored": progress.unscored,
            "calls": progress.calls,
            "new_samples": progress.new_samples,
            "completion_tokens": progress.tokens,
            "cost": progress.cost / NANO,
            "failed": progress.failed,
            "stopped": progress.stopped,
            **{name: exported[spec.name][name] for name in ("correct", "unparsed")},
        }
        for spec, progress in zip(plan.arms, finished, strict=False)
    ]
    return {"questions": plan.questions.num_rows, "arms": rows}


def describe_missing(result: dict[str, Any]) -> str | None:
    """Return in words what a collection still lacks, or None if it is complete."""
    counts = {
        noun: sum(arm[key] for arm in result["arms"])
        for key, noun in (("missing", "samples"), ("unscored", "scores"))
    }
    words = " and ".join(f"{count} {noun}" for noun, count in counts.items() if count)
    return f"{words} are missing" if words else None


def _check_arms(plan: Plan, run: Path, ledger: Ledger) -> None:
    """Refuse an arm whose samples in the ledger have another model, prompt or settings."""
    for spec in plan.arms:
        given = _describe_arm(spec)
        for stored in ledger.arms(sampled_only=True).values():
            if stored["arm"] == spec.name and stored != given:
                names = {"model": "model", "template": "prompt", "settings": "settings"}
                other = " and ".join(
                    name for key, name in names.items() if stored[key] != given[key]
                )
                raise DataError(
                    f"{run} holds samples of the arm {spec.name!r} with another {other}: collect "
                    "into another directory, or give the arm a name of its own with --arm name=…"
                )


def _describe_arm(spec: ArmSpec) -> dict[str, str]:
    return {
        "arm": spec.name,
        "model": spec.model,
        "template": spec.template.name,
        "settings": spec.settings.canonical(),
    }


async def _collect(
    plan: Plan,
    ledger: Ledger,
    write: Callable[[str], object],
    report: Callable[[str, CollectionProgress], None],
) -> list[CollectionProgress]:
    rate_limiter = None
    if plan.requests_per_minute or plan.tokens_per_minute:
        rate_limiter = RateLimiter(requests=plan.requests_per_minute, tokens=plan.tokens_per_minute)
    finished: list[CollectionProgress] = []
    async with AsyncExitStack() as stack:
        cap = None
        if not plan.is_free:
            limit = None if plan.max_cost is None else int(plan.max_cost * NANO)
            cap = await stack.enter_async_context(CostCap(ledger, limit))
        for spec in plan.arms:
            limiter = AdaptiveLimiter(max_calls=plan.concurrency)
            log = _Log(write, limiter)
            async with _open_level(plan, spec, log) as level:
                sampler = _ArmSampler(
                    ledger, level, limiter, cap, rate_limiter, partial(report, spec.name)
                )
                finished.append(await _collect_arm(plan, spec, sampler))
            if finished[-1].stopped:
                break
    return finished


@asynccontextmanager
async def _open_level(plan: Plan, spec: ArmSpec, log: _Log) -> AsyncIterator[CollectionLevel]:
    """Connect to the server of an arm, and to the scorer if there is one."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(
            Upstream(
                spec.base_url,
                spec.model,
                api_key=read_api_key(spec.api_key_env),
                timeouts=plan.timeouts,
                max_connections=plan.concurrency,
                on_event=log,
            )
        )
        upstream.capabilities = await find_capabilities(upstream, spec.base_url, spec.model)
        scorer = None
        if plan.scorer is not None:
            scorer = await stack.enter_async_context(_open_scorer(plan, plan.scorer, log))
        yield _make_level(plan, spec, upstream, scorer)


@dataclass(frozen=True)
class _ArmSampler:
    """Everything that sampling an arm needs, apart from the questions and their number."""

    ledger: Ledger
    level: CollectionLevel
    limiter: AdaptiveLimiter
    cap: CostCap | None
    rate_limiter: RateLimiter | None
    report: Callable[[CollectionProgress], None]

    async def sample(
        self, questions: Sequence[tuple[str, str]], n_samples: int
    ) -> CollectionProgress:
        """Sample until each question has ``n_samples``."""
        collector = Collector(
            self.ledger,
            replace(self.level, n_samples=n_samples),
            questions,
            self.limiter,
            self.cap,
            self.rate_limiter,
            self.report,
        )
        with _Interrupts(collector):
            return await collector.run()


async def _collect_arm(plan: Plan, spec: ArmSpec, sampler: _ArmSampler) -> CollectionProgress:
    """Sample an arm completely, or in rounds of undecided questions."""
    questions = plan.question_texts()
    if plan.adaptive is None:
        return await sampler.sample(questions, spec.n_samples)
    ids, gold = (plan.questions[name].to_pylist() for name in ("question_id", "gold"))
    graded = RoundSamples(
        sampler.ledger,
        sampler.ledger.register_arm(**_describe_arm(spec)),
        load_grader(plan.grader),
        dict(zip(ids, gold, strict=True)),
    )
    progress = await collect_rounds(
        questions, graded, sampler.sample, max_samples=spec.n_samples, budget=plan.adaptive
    )
    if sampler.level.scorer is None:
        progress.unscored = 0
    return progress


def _open_scorer(plan: Plan, url: str, log: _Log) -> HttpScorer:
    return HttpScorer(
        url,
        api_key=read_api_key(plan.scorer_api_key_env),
        timeouts=plan.timeouts,
        max_connections=plan.concurrency,
        on_event=lambda event, fields: log(event, {"scorer": url, **fields}),
    )


def _make_level(
    plan: Plan, spec: ArmSpec, upstream: Upstream, scorer: HttpScorer | None
) -> CollectionLevel:
    samples_per_call = upstream.capabilities.choices(
        spec.n_samples, temperature=spec.settings.temperature, seeded=plan.seed is not None
    )
    return CollectionLevel(
        arm=spec.name,
        model_name=spec.model,
        model=upstream,
        template=spec.template,
        settings=spec.settings,
        token_prices=spec.token_prices,
        n_samples=spec.n_samples,
        samples_per_call=min(samples_per_call, MAX_SAMPLES_PER_CALL),
        seed=plan.seed,
        scorer=scorer,
        score_price=plan.scorer_prices.cost(Usage(0, 0)),
    )


@dataclass(frozen=True)
class _Log:
    """Writes events as lines of JSON, and backs off when the server is overloaded."""

    write: Callable[[str], object]
    limiter: AdaptiveLimiter

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        if event == "retry" and str(fields.get("cause")).startswith(OVERLOADED):
            self.limiter.back_off()
        line = {"time": round(time.time(), 3), "event": event, **fields}
        self.write(json.dumps(line, default=str) + "\n")


@dataclass(frozen=True)
class _Interrupts:
    """Stops a collector at the first Ctrl-C; running calls finish. The second Ctrl-C ends it."""

    collector: Collector

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(signal.SIGINT, self._stop, loop)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collector.stop("interrupted")
        loop.remove_signal_handler(signal.SIGINT)

    def __exit__(self, *_: object) -> None:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _export(plan: Plan, store: Run, ledger: Ledger) -> dict[str, dict[str, int]]:
    """Write the samples of all arms as the run's samples, and return the counts of each arm."""
    questions = {row["question_id"]: row for row in plan.questions.to_pylist()}
    arm_ids = [ledger.register_arm(**_describe_arm(spec)) for spec in plan.arms]
    found = export(ledger, arm_ids, questions, load_grader(plan.grader), store.file(SAMPLES))
    counts = {spec.name: found[arm] for spec, arm in zip(plan.arms, arm_ids, strict=True)}
    total = {name: sum(own[name] for own in counts.values()) for name in found[arm_ids[0]]}
    templates = [asdict(spec.template) for spec in plan.arms]
    settings = [asdict(spec.settings) for spec in plan.arms]
    store.finish_written(
        "collect",
        arguments={
            "grader": plan.grader,
            "template": "+".join(dict.fromkeys(spec.template.name for spec in plan.arms)),
        },
        names=[SAMPLES],
        result={
            "model": _common([spec.model for spec in plan.arms]),
            "grader": plan.grader,
            "template": _common(templates),
            "settings": _common(settings),
            **total,
            "arms": [
                {
                    "arm": spec.name,
                    "model": spec.model,
                    "template": template,
                    "settings": own,
                    "token_prices": asdict(spec.token_prices),
                    **counts[spec.name],
                }
                for spec, template, own in zip(plan.arms, templates, settings, strict=True)
            ],
        },
    )
    return counts


def _common(values: Sequence[Any]) -> Any:  # noqa: ANN401 - of the values' type
    """Return the value that all arms have, or None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None
