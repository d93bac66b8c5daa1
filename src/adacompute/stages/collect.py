"""Collect: the stage that samples what a run still lacks from an OpenAI-compatible server.

Samples go to the ledger of the run as they are paid for, and are exported graded at the end. API
keys are read from the environment and are not stored.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adacompute.collection.adaptive import RoundSamples, collect_rounds
from adacompute.collection.collector import Collector, Progress
from adacompute.collection.export import export
from adacompute.collection.limits import AdaptiveLimiter, RateLimiter
from adacompute.collection.plan import MOST_AT_ONCE, CollectionLevel, LevelSpec, Plan
from adacompute.core.errors import DataError
from adacompute.graders.grader import load_grader
from adacompute.models.openai import Upstream
from adacompute.models.scorer import HttpScorer
from adacompute.spending.meter import Meter
from adacompute.spending.token_prices import NANO, Usage
from adacompute.stages.inputs import (
    read_api_key,
)
from adacompute.stages.probe import find_capabilities
from adacompute.storage.ledger import Ledger
from adacompute.storage.store import SAMPLES, Run

LEDGER, LOG = "ledger.sqlite", "collect.log"
BUSY = ("answered 429", "answered 503", "answered 529", "did not begin")
"""How the client words that a server has too much to do."""


def collect_run(
    plan: Plan, run: Path, *, report: Callable[[str, Progress], None] = lambda _, __: None
) -> dict[str, Any]:
    """Draw what a run still lacks, level by level, and export it graded."""
    place = Run(run)
    imported = place.file("import.manifest.json").is_file()
    if imported or (place.file(SAMPLES).is_file() and not place.file(LEDGER).is_file()):
        raise DataError(f"{run} holds imported samples: collect into another directory")
    ledger = Ledger(place.file(LEDGER))
    try:
        _check_modes(plan, run, ledger)
        with place.file(LOG).open("a") as log:
            done = asyncio.run(_collect(plan, ledger, log.write, report))
        exported = _export(plan, place, ledger)
    finally:
        ledger.close()
    rows = [
        {
            "level": spec.name,
            "model": spec.model,
            "wanted": level.wanted,
            "samples": level.done,
            "missing": level.missing,
            "unscored": level.unscored,
            "calls": level.calls,
            "drawn": level.drawn,
            "completion_tokens": level.tokens,
            "cost": level.cost / NANO,
            "failed": level.failed,
            "stopped": level.stopped,
            **{name: exported[spec.name][name] for name in ("correct", "unparsed")},
        }
        for spec, level in zip(plan.levels, done, strict=False)
    ]
    return {"questions": plan.questions.num_rows, "levels": rows}


def _check_modes(plan: Plan, run: Path, ledger: Ledger) -> None:
    """Refuse to mix what was drawn in other ways: the export of a level holds one of them."""
    for spec in plan.levels:
        asked = _asked_mode(plan, spec)
        for known in ledger.arms(sampled_only=True).values():
            if known["arm"] == spec.name and known != asked:
                names = {"model": "model", "template": "prompt", "settings": "settings"}
                other = " and ".join(
                    word for key, word in names.items() if known[key] != asked[key]
                )
                raise DataError(
                    f"{run} holds samples of the level {spec.name!r} with another {other}: collect "
                    "into another directory, or name a level of its own with --level name=…"
                )


def _asked_mode(plan: Plan, spec: LevelSpec) -> dict[str, str]:
    return {
        "arm": spec.name,
        "model": spec.model,
        "template": plan.template.name,
        "settings": spec.settings.canonical(),
    }


async def _collect(
    plan: Plan,
    ledger: Ledger,
    write: Callable[[str], object],
    report: Callable[[str, Progress], None],
) -> list[Progress]:
    limit = None if plan.most_cost is None else int(plan.most_cost * NANO)
    meter = Meter(limit, spent=ledger.totals()["cost"])
    rate_limiter = None
    if plan.requests_per_minute or plan.tokens_per_minute:
        rate_limiter = RateLimiter(requests=plan.requests_per_minute, tokens=plan.tokens_per_minute)
    done: list[Progress] = []
    for spec in plan.levels:
        concurrency = AdaptiveLimiter(max_calls=plan.concurrency)
        log = _Log(write, concurrency)
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(
                Upstream(
                    spec.base_url,
                    spec.model,
                    key=read_api_key(spec.api_key_env),
                    timeouts=plan.timeouts,
                    connections=plan.concurrency,
                    on_event=log,
                )
            )
            upstream.capabilities = await find_capabilities(upstream, spec)
            scorer = None
            if plan.scorer is not None:
                scorer = await stack.enter_async_context(_scorer(plan, plan.scorer, log))
            mode = _mode(plan, spec, upstream, scorer)
            level = _Level(
                ledger, mode, meter, concurrency, rate_limiter, partial(report, spec.name)
            )
            done.append(await _collect_level(plan, spec, level))
        if done[-1].stopped:
            break
    return done


@dataclass(frozen=True)
class _Level:
    """All that draws of a level need, but for which questions and how many."""

    ledger: Ledger
    mode: CollectionLevel
    meter: Meter
    concurrency: AdaptiveLimiter
    rate_limiter: RateLimiter | None
    report: Callable[[Progress], None]

    async def draw(self, questions: Sequence[tuple[str, str]], draws: int) -> Progress:
        """Bring questions to so many draws each."""
        mode = replace(self.mode, draws=draws)
        collector = Collector(
            self.ledger,
            mode,
            questions,
            self.meter,
            self.concurrency,
            self.rate_limiter,
            self.report,
        )
        with _Interrupts(collector):
            return await collector.run()


async def _collect_level(plan: Plan, spec: LevelSpec, level: _Level) -> Progress:
    """Draw a level whole, or in rounds for the questions that are undecided."""
    asked, samples = plan.asked(), spec.samples
    if plan.adaptive is None:
        return await level.draw(asked, samples)
    ids, gold = (plan.questions[name].to_pylist() for name in ("question_id", "gold"))
    drawn = RoundSamples(
        level.ledger,
        level.ledger.register_arm(**_asked_mode(plan, spec)),
        load_grader(plan.grader),
        dict(zip(ids, gold, strict=True)),
    )
    progress = await collect_rounds(asked, drawn, level.draw, samples=samples, budget=plan.adaptive)
    if level.mode.scorer is None:
        progress.unscored = 0
    return progress


def _scorer(plan: Plan, url: str, log: _Log) -> HttpScorer:
    return HttpScorer(
        url,
        key=read_api_key(plan.scorer_api_key_env),
        timeouts=plan.timeouts,
        connections=plan.concurrency,
        on_event=lambda event, fields: log(event, {"scorer": url, **fields}),
    )


def _mode(
    plan: Plan, spec: LevelSpec, upstream: Upstream, scorer: HttpScorer | None
) -> CollectionLevel:
    at_once = upstream.capabilities.choices(
        spec.samples, temperature=spec.settings.temperature, seeded=plan.seed is not None
    )
    return CollectionLevel(
        level=spec.name,
        model_name=spec.model,
        model=upstream,
        template=plan.template,
        settings=spec.settings,
        token_prices=spec.token_prices,
        draws=spec.samples,
        at_once=min(at_once, MOST_AT_ONCE),
        seed=plan.seed,
        scorer=scorer,
        score_price=plan.scorer_prices.cost(Usage(0, 0)),
    )


@dataclass(frozen=True)
class _Log:
    """Writes what went wrong, a line of JSON each, and lets the concurrency hear of it."""

    write: Callable[[str], object]
    concurrency: AdaptiveLimiter

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        if event == "retry" and str(fields.get("cause")).startswith(BUSY):
            self.concurrency.back_off()
        line = {"time": round(time.time(), 3), "event": event, **fields}
        self.write(json.dumps(line, default=str) + "\n")


@dataclass(frozen=True)
class _Interrupts:
    """The first Ctrl-C begins nothing new and keeps what is under way; the second ends at once."""

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


def _export(plan: Plan, place: Run, ledger: Ledger) -> dict[str, dict[str, int]]:
    """Write each level's samples: the first as the run's own, the others beside it."""
    questions = {row["question_id"]: row for row in plan.questions.to_pylist()}
    grader = load_grader(plan.grader)
    counts = {}
    outputs = []
    for i, spec in enumerate(plan.levels):
        mode = ledger.register_arm(**_asked_mode(plan, spec))
        name = SAMPLES if i == 0 else f"samples@{spec.name}.parquet"
        counts[spec.name] = export(ledger, mode, questions, grader, place.file(name))
        outputs.append(name)
    first = plan.levels[0]
    place.finish_written(
        "collect",
        arguments={"grader": plan.grader, "template": plan.template.name},
        names=outputs,
        result={
            "model": first.model,
            "grader": plan.grader,
            "template": asdict(plan.template),
            **counts[first.name],
        },
    )
    return counts
