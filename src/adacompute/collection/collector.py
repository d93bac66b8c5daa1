"""Collection: draws what a run still lacks, and never loses a sample that was paid for.

Questions are claimed from the ledger a page at a time; each call reserves what it may cost at
most, draws, settles, and counts as done only when its samples are durable. Then they are scored,
where there is a scorer. A call that fails for now is tried again later, a bounded number of times;
what is still missing at the end is said, and asked for when the same command is run again. It knows
modes and the ledger, not files or graders.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

from adacompute.collection.limits import AdaptiveLimiter, RateLimiter
from adacompute.collection.plan import CollectionLevel, prompt_size
from adacompute.core.errors import (
    DataError,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRejected,
)
from adacompute.models.messages import Prompt, Sample
from adacompute.spending.meter import Meter
from adacompute.spending.token_prices import NANO, Usage, split_cost
from adacompute.storage.ledger import Ledger, StoredSample

PAGE = 512
"""Questions claimed at once."""

TRIES = 3
"""How often a call that failed for now is tried again, after the client's own retries."""

REFUSALS = 20
"""So many refusals before anything was drawn end the collection: all would be refused."""

HEARTBEAT_S = 15.0
KEPT = tuple(field.name for field in fields(Sample))
T = TypeVar("T")


def at_risk(calls: int) -> int:
    """What the end of a process can lose at most: calls under way, and an eighth to be written."""
    return calls + max(1, calls // 8)


@dataclass
class Progress:
    """How far a collection is."""

    wanted: int
    done: int
    drawn: int = 0
    calls: int = 0
    tokens: int = 0
    cost: int = 0
    scored: int = 0
    unscored: int = 0
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
    """Draws of one question that are to be made in one call, or stored ones that lack a score."""

    question: str
    text: str
    draws: tuple[int, ...]
    tries: int = 0
    stored: tuple[StoredSample, ...] = ()


@dataclass(eq=False)
class Collector:
    """Collects one mode into a ledger."""

    ledger: Ledger
    mode: CollectionLevel
    questions: Sequence[tuple[str, str]]
    meter: Meter
    concurrency: AdaptiveLimiter
    rate_limiter: RateLimiter | None = None
    report: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._arm_id = self.ledger.register_arm(
            arm=self.mode.level,
            model=self.mode.model_name,
            template=self.mode.template.name,
            settings=self.mode.settings.canonical(),
        )
        self.progress = Progress(len(self.questions) * self.mode.draws, done=0)
        self._count()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._pending: list[tuple[Sequence[StoredSample], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._again: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished = asyncio.Semaphore(at_risk(self.concurrency.max_calls))
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
        self._count()
        self.report(self.progress)
        return self.progress

    def _count(self) -> None:
        """Count what is durable."""
        names = [name for name, _ in self.questions]
        done, scored = self.ledger.count(names, self._arm_id, below=self.mode.draws)
        self.progress.done = done
        self.progress.unscored = 0 if self.mode.scorer is None else done - scored

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
        scored = self.mode.scorer is not None
        claim = partial(
            self.ledger.claim, arm_id=self._arm_id, n_samples=self.mode.draws, scored=scored
        )
        for start in range(0, len(self.questions), PAGE):
            page = dict(self.questions[start : start + PAGE])
            missing = await self._in_writer(claim, list(page))
            for question, lacking in missing.items():
                stored, draws = {}, lacking
                if scored:
                    stored = await self._in_writer(self.ledger.unscored, question, self._arm_id)
                    draws = [d for d in lacking if d not in stored]
                if kept := tuple(stored[d] for d in lacking if d in stored):
                    yield Work(question, page[question], (), stored=kept)
                for i in range(0, len(draws), self.mode.at_once):
                    yield Work(question, page[question], tuple(draws[i : i + self.mode.at_once]))

    async def _begin(self, work: Work) -> None:
        """Start a call when there is a place for it and money for its worst case."""
        prompt = self.mode.template.render(work.text)
        size = prompt_size(prompt)
        most = self.mode.most(size, len(work.draws)) if work.draws else 0
        scores = len(work.draws) + len(work.stored)
        most += scores * self.mode.score_price
        while not self.meter.reserve(most):
            if not self._tasks:
                self.stop(f"the next call may cost more than is left of {self.meter.limit}")
                return
            await self._one_done()
        if self.rate_limiter is not None and work.draws:
            await self.rate_limiter.acquire(size // 4 + len(work.draws) * self._usual_tokens())
        await self._unfinished.acquire()
        if work.draws:
            await self.concurrency.acquire()
        task = asyncio.create_task(self._work(work, prompt, most))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _usual_tokens(self) -> int:
        """Tokens of a completion, as far as is known."""
        drawn = self.progress.drawn
        return self.progress.tokens // drawn if drawn else (self.mode.settings.max_tokens or 0)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unfinished.release()
        if not task.cancelled():
            self._fault = task.exception() or self._fault

    async def _one_done(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._fault is not None:  # a fault of ours, or a full disk, ends the collection
            raise self._fault

    async def _work(self, work: Work, prompt: Prompt, most: int) -> None:
        """Make one call, keep what it brought, and have it scored."""
        spent = 0
        try:
            samples = work.stored
            if not samples:
                draws = await self._call(work, prompt)
                spent = self._cost(draws)
                samples = self._samples(work, draws[: len(work.draws)], spent)
                await self._keep(samples)
                self._drawn(samples)
            spent += await self._score(work, samples)
        except ModelError as error:
            # A call that hung may have been served and billed: it counts as the worst case.
            if isinstance(error, ModelTimeout):
                spent = most - len(work.draws) * self.mode.score_price
            self._fail(work, error)
            return
        finally:
            self.meter.settle(most, actual=spent)
            self.progress.cost += spent
        rest = work.draws[len(samples) :]
        if rest:  # fewer choices than were asked for
            self._again.append(replace(work, draws=rest))

    async def _call(self, work: Work, prompt: Prompt) -> list[Sample]:
        """Make one call, and give its place to the next before anything else is done."""
        seed = self.mode.seed_of(work.question, work.draws[0])
        seconds = None
        try:
            draws = await self.mode.model.call(
                prompt, self.mode.settings, count=len(work.draws), seed=seed
            )
            seconds = draws[0].latency_s  # of the attempt that went well, without the waits
        finally:
            self.concurrency.release(seconds)
        return draws

    def _cost(self, draws: Sequence[Sample]) -> int:
        usage = Usage(
            prompt=max((d.prompt_tokens or 0 for d in draws), default=0),
            cached=max((d.cached_tokens for d in draws), default=0),
            completion=sum(d.completion_tokens or 0 for d in draws),
            reasoning=sum(d.reasoning_tokens for d in draws),
        )
        return self.mode.token_prices.cost(usage)

    async def _score(self, work: Work, samples: Sequence[StoredSample]) -> int:
        """Score samples that are durable; what cannot be scored stays as it is. Returns the cost.

        Failed ones are not tried again here: the next run asks for every score that is missing.
        """
        scorer, price = self.mode.scorer, self.mode.score_price
        if scorer is None:
            return 0

        async def score(sampled: StoredSample) -> int:
            try:
                found = await scorer.score(work.text, sampled.text)
            except ModelError as error:
                self._note(error, useless=not self.progress.scored)
                return price if isinstance(error, ModelTimeout) else 0
            await self._keep([replace(sampled, score=found, cost=sampled.cost + price)])
            self.progress.scored += 1
            return price

        return sum(await asyncio.gather(*(score(sampled) for sampled in samples)))

    def _fail(self, work: Work, error: ModelError) -> None:
        """Count a failed call, and try it again later where that can help."""
        self._note(error, useless=not self.progress.drawn)
        if work.tries + 1 < TRIES and not isinstance(error, RequestRejected):
            self._again.append(replace(work, tries=work.tries + 1))

    def _note(self, error: ModelError, *, useless: bool) -> None:
        """Count a failure; refusals end it all when nothing but refusals ever came."""
        what = str(error)[:200]
        self.progress.failed[what] = self.progress.failed.get(what, 0) + 1
        if isinstance(error, RequestRejected):
            if useless and sum(self.progress.failed.values()) >= REFUSALS:
                self.stop(f"every call is refused: {what}")
        elif isinstance(error, RateLimited | ModelTimeout):
            self.concurrency.back_off()

    def _samples(self, work: Work, draws: Sequence[Sample], cost: int) -> tuple[StoredSample, ...]:
        shares = split_cost(cost, max(1, len(draws)))
        return tuple(
            StoredSample(
                question=work.question,
                arm_id=self._arm_id,
                sample=number,
                cost=share,
                **{name: getattr(draw, name) for name in KEPT},
            )
            for number, share, draw in zip(work.draws, shares, draws, strict=False)
        )

    def _drawn(self, samples: Sequence[StoredSample]) -> None:
        self.progress.calls += 1
        self.progress.drawn += len(samples)
        self.progress.done += len(samples)
        self.progress.tokens += sum(sampled.completion_tokens or 0 for sampled in samples)
        self.report(self.progress)

    async def _keep(self, samples: Sequence[StoredSample]) -> None:
        """Return when samples are durable; what comes together shares one commit."""
        stored = asyncio.get_running_loop().create_future()
        self._pending.append((samples, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await stored

    async def _write(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # what came in the same moment is written together
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
            await self._in_writer(self.ledger.heartbeat)

    async def _in_writer(self, function: Callable[..., T], *arguments: object) -> T:
        """Use the ledger in its own thread, so that the loop never waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, function, *arguments)
