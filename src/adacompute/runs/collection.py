"""Collection: draws what a run still lacks, and never loses a sample that was paid for.

Questions are claimed from the ledger a page at a time; each call reserves what it may cost at
most, draws, settles, and counts as done only when its samples are durable. A call that fails for
now is tried again later, a bounded number of times; what is still missing at the end is said, and
asked for when the same command is run again. It knows modes and the ledger, not files or graders.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeVar

from adacompute.core.errors import (
    DataError,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRefused,
)
from adacompute.models.templates import Template
from adacompute.models.upstream import Draw, Prompt, Settings
from adacompute.runs.concurrency import Concurrency
from adacompute.spending.meter import Meter
from adacompute.spending.tariffs import NANO, Tariff, Usage, share_out
from adacompute.storage.ledger import Ledger, Sampled

PAGE = 512
"""Questions claimed at once."""

TRIES = 3
"""How often a call that failed for now is tried again, after the client's own retries."""

REFUSALS = 20
"""So many refusals before anything was drawn end the collection: all would be refused."""

HEARTBEAT_S = 15.0
MOST_TOKENS = 32_768
"""Length of a completion where no limit is set, for the worst case."""

KEPT = tuple(field.name for field in fields(Draw))
T = TypeVar("T")


class Model(Protocol):
    """What draws: one call, as many samples as it returns."""

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Draw]:
        """Draw up to ``count`` samples in one call."""


def prompt_size(prompt: Prompt) -> int:
    """Characters of a prompt: no model makes more tokens of it."""
    if prompt.text is not None:
        return len(prompt.text)
    return sum(len(json.dumps(message, ensure_ascii=False)) for message in prompt.messages or ())


class Pace(Protocol):
    """Limits of requests and tokens a minute."""

    async def wait(self, tokens: int) -> None:
        """Wait until one request of so many tokens may start."""


@dataclass(frozen=True, eq=False)
class Mode:
    """One operating level: a model, how it is asked, how often, and what it costs."""

    level: str
    model_name: str
    model: Model
    template: Template
    settings: Settings
    tariff: Tariff
    draws: int
    at_once: int = 1
    seed: int | None = 0


@dataclass
class Progress:
    """How far a collection is."""

    wanted: int
    done: int
    drawn: int = 0
    calls: int = 0
    tokens: int = 0
    cost: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def missing(self) -> int:
        """Samples that are still lacking."""
        return self.wanted - self.done

    def __str__(self) -> str:
        left = self.missing / self.rate if self.drawn else float("nan")
        money = f", cost {self.cost / NANO:.4g}" if self.cost else ""
        return (
            f"{self.done} of {self.wanted} samples, {self.rate:.1f}/s, {self.tokens} tokens"
            f"{money}, {left:.0f} s left"
        )

    @property
    def rate(self) -> float:
        """Samples a second, so far."""
        return self.drawn / max(1e-9, time.monotonic() - self.started)


@dataclass(frozen=True)
class Work:
    """Draws of one question that are to be made in one call."""

    question: str
    text: str
    draws: tuple[int, ...]
    tries: int = 0


@dataclass(eq=False)
class Collector:
    """Collects one mode into a ledger."""

    ledger: Ledger
    mode: Mode
    questions: Sequence[tuple[str, str]]
    meter: Meter
    concurrency: Concurrency
    pace: Pace | None = None
    report: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._number = self.ledger.mode(
            level=self.mode.level,
            model=self.mode.model_name,
            template=self.mode.template.name,
            settings=self.mode.settings.canonical(),
        )
        wanted = len(self.questions) * self.mode.draws
        have = self.ledger.count(self._number, below=self.mode.draws)
        self.progress = Progress(wanted, have)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._pending: list[tuple[list[Sampled], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._again: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None

    def stop(self, why: str) -> None:
        """Begin nothing new; what is under way is finished and kept."""
        self.progress.stopped = self.progress.stopped or why

    async def run(self) -> Progress:
        """Draw until nothing is missing, nothing more can be had, or it is stopped."""
        heartbeat = asyncio.create_task(self._beat())
        try:
            await self._draw_all()
        finally:
            heartbeat.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._writing is not None:
                await self._writing
            self._writer.shutdown()
        self.progress.done = self.ledger.count(self._number, below=self.mode.draws)
        self.report(self.progress)
        return self.progress

    async def _draw_all(self) -> None:
        async for work in self._plan():
            if self.progress.stopped or self._fault:
                break
            await self._begin(work)
        while self._tasks or self._fault or (self._again and not self.progress.stopped):
            while self._again and not self.progress.stopped:
                await self._begin(self._again.popleft())
            await self._one_done()

    async def _plan(self) -> AsyncIterator[Work]:
        """Claim questions a page at a time and cut what they lack into calls."""
        for start in range(0, len(self.questions), PAGE):
            page = dict(self.questions[start : start + PAGE])
            missing = await self._in_writer(
                self.ledger.claim, list(page), self._number, self.mode.draws
            )
            for question, draws in missing.items():
                for i in range(0, len(draws), self.mode.at_once):
                    yield Work(question, page[question], tuple(draws[i : i + self.mode.at_once]))

    async def _begin(self, work: Work) -> None:
        """Start a call when there is a place for it and money for its worst case."""
        prompt = self.mode.template.render(work.text)
        size = prompt_size(prompt)
        most = self.mode.tariff.most(
            prompt_chars=size,
            draws=len(work.draws),
            max_tokens=self.mode.settings.max_tokens or MOST_TOKENS,
        )
        while not self.meter.reserve(most):
            if not self._tasks:
                self.stop(f"the next call may cost more than is left of {self.meter.limit}")
                return
            await self._one_done()
        if self.pace is not None:
            await self.pace.wait(size // 4 + len(work.draws) * self._usual_tokens())
        await self.concurrency.enter()
        task = asyncio.create_task(self._work(work, prompt, most))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _usual_tokens(self) -> int:
        """Tokens of a completion, as far as is known."""
        drawn = self.progress.drawn
        return self.progress.tokens // drawn if drawn else (self.mode.settings.max_tokens or 0)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._fault = task.exception() or self._fault

    async def _one_done(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._fault is not None:  # a fault of ours, or a full disk, ends the collection
            raise self._fault

    async def _work(self, work: Work, prompt: Prompt, most: int) -> None:
        """Make one call, and keep what it brought."""
        seconds = None
        spent = 0
        try:
            seed = None if self.mode.seed is None else self.mode.seed + work.draws[0]
            began = time.monotonic()
            draws = await self.mode.model.call(
                prompt, self.mode.settings, count=len(work.draws), seed=seed
            )
            seconds = time.monotonic() - began
            draws = draws[: len(work.draws)]
            spent = self._cost(draws)
            await self._store(work, draws, spent)
        except ModelError as error:
            # A call that hung may have been served and billed: it counts as the worst case.
            spent = most if isinstance(error, ModelTimeout) else 0
            self._fail(work, error)
            return
        finally:
            self.meter.settle(most, actual=spent)
            self.progress.cost += spent
            self.concurrency.leave(seconds)
        rest = work.draws[len(draws) :]
        if rest:  # fewer choices than were asked for
            self._again.append(replace(work, draws=rest))

    def _cost(self, draws: Sequence[Draw]) -> int:
        usage = Usage(
            prompt=max((d.prompt_tokens or 0 for d in draws), default=0),
            cached=max((d.cached_tokens for d in draws), default=0),
            completion=sum(d.completion_tokens or 0 for d in draws),
            reasoning=sum(d.reasoning_tokens for d in draws),
        )
        return self.mode.tariff.cost(usage)

    def _fail(self, work: Work, error: ModelError) -> None:
        """Count a failed call, and try it again later where that can help."""
        what = str(error)[:200]
        self.progress.failed[what] = self.progress.failed.get(what, 0) + 1
        if isinstance(error, RequestRefused):
            if not self.progress.drawn and sum(self.progress.failed.values()) >= REFUSALS:
                self.stop(f"every call is refused: {what}")
            return
        if isinstance(error, RateLimited | ModelTimeout):
            self.concurrency.trouble()
        if work.tries + 1 < TRIES:
            self._again.append(replace(work, tries=work.tries + 1))

    async def _store(self, work: Work, draws: Sequence[Draw], cost: int) -> None:
        """Return when the samples are durable; calls that finish together share one commit."""
        shares = share_out(cost, max(1, len(draws)))
        samples = [
            Sampled(
                question=work.question,
                mode=self._number,
                draw=number,
                cost=share,
                **{name: getattr(draw, name) for name in KEPT},
            )
            for number, share, draw in zip(work.draws, shares, draws, strict=False)
        ]
        stored = asyncio.get_running_loop().create_future()
        self._pending.append((samples, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await stored
        self.progress.calls += 1
        self.progress.drawn += len(draws)
        self.progress.done += len(draws)
        self.progress.tokens += sum(d.completion_tokens or 0 for d in draws)
        self.report(self.progress)

    async def _write(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            rows = [sample for samples, _ in batch for sample in samples]
            fault = None
            try:
                await self._in_writer(self.ledger.record, rows)
            except DataError as error:
                fault = error
            for stored in [future for _, future in batch if not future.done()]:  # not cancelled
                if fault is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(fault)
        self._writing = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._in_writer(self.ledger.hear)

    async def _in_writer(self, function: Callable[..., T], *arguments: object) -> T:
        """Use the ledger in its own thread, so that the loop never waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, function, *arguments)
