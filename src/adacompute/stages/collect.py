"""Collect: the stage that samples what a run still lacks from an OpenAI-compatible server.

Samples go to the store of the run as they arrive, and are exported with grades at the end. API
keys are read from the environment and are not stored.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from adacompute.batch.call_limits import AdaptiveLimiter, RateLimiter
from adacompute.batch.calls import BatchArm, Caller, QuestionAccount
from adacompute.batch.progress import Progress
from adacompute.collection.arms import ArmSpec
from adacompute.collection.collector import (
    SCORER,
    CollectionResult,
    Collector,
    seed_of_sample,
)
from adacompute.collection.export import export
from adacompute.collection.plan import MAX_SAMPLES_PER_CALL, Plan
from adacompute.collection.store import Arm, CollectionStore
from adacompute.core.errors import DataError, ModelError
from adacompute.graders.grader import load_grader
from adacompute.models.capabilities_cache import cache_path, load_cached, save_cached
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe
from adacompute.models.scorer import HttpScorer
from adacompute.spending.account import ProbeCalls, SpendingAccount
from adacompute.spending.call_costs import MONEY, CallCosts
from adacompute.spending.token_prices import NANO
from adacompute.stages.inputs import read_api_key
from adacompute.storage.paid_samples import lock_directory
from adacompute.storage.store import SAMPLES, Run

PROBE_TTL_S = 7 * 24 * 3600.0
"""How long what a probe found is kept, so that collections do not probe the same server again."""

SCORER_API_KEY_ENV = "SCORER_API_KEY"
LOG = "collect.log"
OVERLOADED = ("answered 429", "answered 503", "answered 529", "did not begin")
"""How the client's retry events start when a server is overloaded."""


def collect_run(
    plan: Plan, run: Path, *, report: Callable[[str, Progress], None] = lambda _, __: None
) -> dict[str, Any]:
    """Sample what a run still lacks, arm by arm, and export it with grades."""
    files = Run(run)
    is_imported = files.file("import.manifest.json").is_file()
    was_collected = files.file("collect.manifest.json").is_file()
    if is_imported or (files.file(SAMPLES).is_file() and not was_collected):
        raise DataError(f"{run} holds imported samples: collect into another directory")
    store = CollectionStore(run)
    with lock_directory(store.directory):
        store.register_arms([_describe_arm(spec) for spec in plan.arms])
        with files.file(LOG).open("a") as log:
            finished, spent, lost = asyncio.run(_collect(plan, store, log.write, report))
        exported = _export(plan, files, store)
    rows = [
        {
            "arm": spec.name,
            "model": spec.model,
            "samples_planned": result.planned,
            "samples": result.done,
            "missing": result.missing,
            "unscored": result.unscored,
            "calls": result.calls,
            "new_samples": result.new_samples,
            "completion_tokens": result.tokens,
            "cost": result.cost / NANO,
            "failed": result.failed,
            "stopped": result.stopped,
            **{name: exported[spec.name][name] for name in ("correct", "unparsed")},
        }
        for spec, result in zip(plan.arms, finished, strict=False)
    ]
    amounts = {"spent": spent / NANO, "lost": lost / NANO}
    return {"questions": plan.questions.num_rows, **amounts, "arms": rows}


def describe_missing(result: dict[str, Any]) -> str | None:
    """Return in words what a collection still lacks, or None if it is complete."""
    counts = {
        noun: sum(arm[key] for arm in result["arms"])
        for key, noun in (("missing", "samples"), ("unscored", "scores"))
    }
    words = " and ".join(f"{count} {noun}" for noun, count in counts.items() if count)
    return f"{words} are missing" if words else None


def _describe_arm(spec: ArmSpec) -> Arm:
    return {
        "arm": spec.name,
        "model": spec.model,
        "template": spec.template.name,
        "settings": spec.settings.canonical(),
    }


async def _collect(
    plan: Plan,
    store: CollectionStore,
    write: Callable[[str], object],
    report: Callable[[str, Progress], None],
) -> tuple[list[CollectionResult], int, int]:
    """Sample arm by arm; return the results, and what the run has spent and lost."""
    prices = {spec.model: spec.token_prices for spec in plan.arms}
    costs = CallCosts(MONEY, {**prices, SCORER: plan.scorer_prices})
    texts = plan.question_texts()
    positions = store.register_questions(name for name, _ in texts)
    questions = [(i, text) for i, (_, text) in zip(positions, texts, strict=True)]
    rate_limiter = None
    if plan.requests_per_minute or plan.tokens_per_minute:
        rate_limiter = RateLimiter(requests=plan.requests_per_minute, tokens=plan.tokens_per_minute)
    finished: list[CollectionResult] = []
    async with SpendingAccount(
        store.directory,
        costs,
        limit=None if plan.max_cost is None else costs.to_amount(plan.max_cost),
        arms=[arm["arm"] for arm in store.arms],
        patience_s=plan.patience_s,
    ) as account:
        for spec in plan.arms:
            limiter = AdaptiveLimiter(max_calls=plan.concurrency)
            async with _open_collector(plan, spec, store, account, _Log(write, limiter)) as found:
                found.report = partial(report, spec.name)
                found.rate_limiter = rate_limiter
                with _Interrupts(found):
                    finished.append(await found.collect(questions, spec.n_samples))
            if finished[-1].stopped:
                break
        return finished, account.spent, account.totals.lost


@asynccontextmanager
async def _open_collector(
    plan: Plan, spec: ArmSpec, store: CollectionStore, account: SpendingAccount, log: _Log
) -> AsyncIterator[Collector]:
    """Connect to the server of an arm, and to the scorer if there is one."""
    async with AsyncExitStack() as stack:
        probing = ProbeCalls(account, spec.name)
        upstream = await stack.enter_async_context(
            Upstream(
                spec.base_url,
                spec.model,
                api_key=read_api_key(spec.api_key_env),
                limits=EndpointLimits(timeouts=plan.timeouts, max_connections=plan.concurrency),
                on_event=log,
                tracker=probing,
            )
        )
        try:
            upstream.capabilities = await _find_capabilities(
                upstream, spec, is_complete=lambda: not probing.is_limited
            )
        finally:
            await probing.store()
        scorer = None
        if plan.scorer is not None:
            scorer = await stack.enter_async_context(_open_scorer(plan, plan.scorer, log))
        n_samples = upstream.capabilities.choices(
            min(spec.n_samples, MAX_SAMPLES_PER_CALL),
            temperature=spec.settings.temperature,
            seeded=plan.seed is not None,
        )

        def seed_of(question: QuestionAccount, arm: str | None, number: int) -> int | None:
            if plan.seed is None:
                return None
            return seed_of_sample(plan.seed, arm or "", store.ids[question.position], number)

        caller = Caller(
            upstream,
            [BatchArm(spec.name, spec.model, spec.template, spec.settings)],
            account,
            log.limiter,
            samples_per_call=n_samples,
            patience_s=plan.patience_s,
            seed_of=seed_of,
            on_event=log,
        )
        yield Collector(store, spec.name, caller, plan.concurrency, scorer)


async def _find_capabilities(
    upstream: Upstream, spec: ArmSpec, *, is_complete: Callable[[], bool]
) -> Capabilities:
    """Return the cached capabilities of a server; without a cache, probe it.

    What a probe found is kept if ``is_complete`` says so afterwards; else nothing is known.
    """
    path = cache_path()
    known = load_cached(path, spec.base_url, spec.model)
    if known is None:
        try:
            known = await probe(upstream)
        except ModelError:
            if is_complete():
                raise
        if known is None or not is_complete():
            return Capabilities()
        save_cached(path, spec.base_url, spec.model, known, ttl_s=PROBE_TTL_S)
    return known


def _open_scorer(plan: Plan, url: str, log: _Log) -> HttpScorer:
    return HttpScorer(
        url,
        api_key=read_api_key(SCORER_API_KEY_ENV),
        limits=EndpointLimits(timeouts=plan.timeouts, max_connections=plan.concurrency),
        on_event=lambda event, fields: log(event, {"scorer": url, **fields}),
    )


@dataclass(frozen=True)
class _Log:
    """Writes events as lines of JSON, and backs off when the server is overloaded."""

    write: Callable[[str], object]
    limiter: AdaptiveLimiter

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        cause = str(fields.get("cause"))
        if event in {"retry", "failed"} and any(one in cause for one in OVERLOADED):
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


def _export(plan: Plan, files: Run, store: CollectionStore) -> dict[str, dict[str, int]]:
    """Write the samples of all arms as the run's samples, and return the counts of each arm."""
    questions = {row["question_id"]: row for row in plan.questions.to_pylist()}
    arms = [_describe_arm(spec) for spec in plan.arms]
    counts = export(store, arms, questions, load_grader(plan.grader), files.file(SAMPLES))
    total = {name: sum(own[name] for own in counts.values()) for name in counts[plan.arms[0].name]}
    templates = [asdict(spec.template) for spec in plan.arms]
    settings = [asdict(spec.settings) for spec in plan.arms]
    files.finish_written(
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
