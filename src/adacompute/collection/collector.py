"""Collector: samples what a ledger still lacks, without losing a sample that was paid for.

Questions are claimed from the ledger a page at a time. Each call reserves its maximum cost, samples
and settles; it is done when its samples are durable. Then they are scored, if there is a scorer. A
call with a temporary failure is repeated later, a bounded number of times. Samples that are still
missing at the end are counted; running the same command again samples them. It does not know files
or graders.
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

from adacompute.collection.cost_cap import CostCap
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
from adacompute.spending.meter import CapReached, Reservation
from adacompute.spending.token_prices import NANO, Usage, split_cost
from adacompute.storage.ledger import Ledger, StoredSample

PAGE_SIZE = 512
"""Questions per claim."""

MAX_TRIES = 3
"""Attempts of a call with temporary failures, each with the client's own retries."""

MAX_REFUSALS = 20
"""Rejected calls, before the first success, after which the collection stops."""

HEARTBEAT_S = 15.0
SAMPLE_FIELDS = tuple({f.name for f in fields(Sample)} & {f.name for f in fields(StoredSample)})
T = TypeVar("T")


def max_lost_calls(calls: int) -> int:
    """Return how many calls the end of a process can lose: running ones and unwritten ones."""
    return calls + max(1, calls // 8)


@dataclass
class CollectionProgress:
    """Progress of a collection: planned and stored samples, calls, tokens, cost and failures."""

    planned: int
    done: int
    new_samples: int = 0
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
        """Number of samples that are still missing."""
        return self.planned - self.done

    def __str__(self) -> str:
        left_s = self.missing / self.rate if self.new_samples else float("nan")
        cost = f", cost {self.cost / NANO:.4g}" if self.cost else ""
        return (
            f"{self.done} of {self.planned} samples, {self.rate:.1f}/s, {self.tokens} tokens"
            f"{cost}, {left_s:.0f} s left"
        )

    @property
    def rate(self) -> float:
        """Samples per second so far."""
        return self.new_samples / max(1e-9, time.monotonic() - self.started)


@dataclass(frozen=True)
class Work:
    """One call for samples of a question, or stored samples that have no score yet."""

    question: str
    text: str
    samples: tuple[int, ...]
    tries: int = 0
    stored: tuple[StoredSample, ...] = ()


@dataclass(eq=False)
class Collector:
    """Collects one level into a ledger."""

    ledger: Ledger
    level: CollectionLevel
    questions: Sequence[tuple[str, str]]
    limiter: AdaptiveLimiter
    cap: CostCap | None = None
    rate_limiter: RateLimiter | None = None
    report: Callable[[CollectionProgress], None] = lambda _: None

    def __post_init__(self) -> None:
        self._arm_id = self.ledger.register_arm(
            arm=self.level.arm,
            model=self.level.model_name,
            template=self.level.template.name,
            settings=self.level.settings.canonical(),
        )
        self.progress = CollectionProgress(len(self.questions) * self.level.n_samples, done=0)
        self._count()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._pending: list[tuple[Sequence[StoredSample], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._retries: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unfinished = asyncio.Semaphore(max_lost_calls(self.limiter.max_calls))
        self._error: BaseException | None = None

    def stop(self, reason: str) -> None:
        """Start no further calls; running ones finish and are stored."""
        self.progress.stopped = self.progress.stopped or reason

    async def run(self) -> CollectionProgress:
        """Sample until nothing is missing, only failing calls are left, or it is stopped."""
        heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            await self._sample_all()
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
        """Count the stored samples."""
        names = [name for name, _ in self.questions]
        done, scored = self.ledger.count(names, self._arm_id, below=self.level.n_samples)
        self.progress.done = done
        self.progress.unscored = 0 if self.level.scorer is None else done - scored

    async def _sample_all(self) -> None:
        async for work in self._plan():
            if self.progress.stopped or self._error:
                break
            await self._begin(work)
        while self._tasks or self._error or (self._retries and not self.progress.stopped):
            while self._retries and not self.progress.stopped:
                await self._begin(self._retries.popleft())
            await self._wait_for_one()

    async def _plan(self) -> AsyncIterator[Work]:
        """Claim questions a page at a time and split their missing samples into calls."""
        scored = self.level.scorer is not None
        claim = partial(
            self.ledger.claim, arm_id=self._arm_id, n_samples=self.level.n_samples, scored=scored
        )
        for start in range(0, len(self.questions), PAGE_SIZE):
            page = dict(self.questions[start : start + PAGE_SIZE])
            missing = await self._in_ledger_thread(claim, list(page))
            for question, numbers in missing.items():
                stored, unsampled = {}, numbers
                if scored:
                    stored = await self._in_ledger_thread(
                        self.ledger.unscored, question, self._arm_id
                    )
                    unsampled = [n for n in numbers if n not in stored]
                if kept := tuple(stored[n] for n in numbers if n in stored):
                    yield Work(question, page[question], (), stored=kept)
                size = self.level.samples_per_call
                for i in range(0, len(unsampled), size):
                    yield Work(question, page[question], tuple(unsampled[i : i + size]))

    async def _begin(self, work: Work) -> None:
        """Start a call once the limits allow it and its maximum cost is reserved."""
        prompt = self.level.template.render(work.text)
        size = prompt_size(prompt)
        max_cost = self.level.max_cost(size, len(work.samples)) if work.samples else 0
        scores = len(work.samples) + len(work.stored)
        max_cost += scores * self.level.score_price
        reservation = await self._reserve(max_cost)
        if self.progress.stopped:
            if reservation is not None:
                reservation.release()
            return
        if self.rate_limiter is not None and work.samples:
            await self.rate_limiter.acquire(size // 4 + len(work.samples) * self._expected_tokens())
        await self._unfinished.acquire()
        if work.samples:
            await self.limiter.acquire()
        task = asyncio.create_task(self._work(work, prompt, max_cost, reservation))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def _reserve(self, max_cost: int) -> Reservation | None:
        """Reserve the maximum cost of a call, and wait while running calls may leave some of it."""
        while self.cap is not None and not self.progress.stopped:
            try:
                return await self.cap.reserve(max_cost)
            except CapReached as refusal:
                if self._tasks:
                    await self._wait_for_one()
                elif refusal.is_spent:
                    self.stop("the next call may cost more than is left of the maximum cost")
                else:  # of other processes
                    await asyncio.sleep(refusal.retry_after_s)
        return None

    def _expected_tokens(self) -> int:
        """Return the mean tokens per completion so far, or the limit before the first one."""
        done = self.progress.new_samples
        return self.progress.tokens // done if done else (self.level.settings.max_tokens or 0)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unfinished.release()
        if not task.cancelled():
            self._error = task.exception() or self._error

    async def _wait_for_one(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._error is not None:  # a bug or a full disk ends the collection
            raise self._error

    async def _work(
        self, work: Work, prompt: Prompt, max_cost: int, reservation: Reservation | None
    ) -> None:
        """Make one call, store its samples, and score them."""
        spent = 0
        try:
            samples = work.stored
            if not samples:
                # A call that is cancelled or times out may be billed.
                spent = max_cost - len(work.samples) * self.level.score_price
                received = await self._call(work, prompt)
                spent = self._cost(received)
                samples = self._samples(work, received[: len(work.samples)], spent)
                await self._store(samples)
                self._count_new(samples)
            spent += await self._score(work, samples)
        except ModelError as error:
            if not isinstance(error, ModelTimeout):
                spent = 0
            self._fail(work, error)
            return
        finally:
            if reservation is not None:
                reservation.settle({"money": spent})
            self.progress.cost += spent
        rest = work.samples[len(samples) :]
        if rest:  # the server returned fewer choices than requested
            self._retries.append(replace(work, samples=rest))

    async def _call(self, work: Work, prompt: Prompt) -> list[Sample]:
        """Make one call, and release its slot before its samples are stored."""
        seed = self.level.seed_of(work.question, work.samples[0])
        latency_s = None
        try:
            samples = await self.level.model.call(
                prompt, self.level.settings, count=len(work.samples), seed=seed
            )
            latency_s = samples[0].latency_s  # of the successful attempt, without waits
        finally:
            self.limiter.release(latency_s)
        return samples

    def _cost(self, samples: Sequence[Sample]) -> int:
        usage = Usage(
            prompt=max((s.prompt_tokens or 0 for s in samples), default=0),
            cached=max((s.cached_tokens for s in samples), default=0),
            completion=sum(s.completion_tokens or 0 for s in samples),
            reasoning=sum(s.reasoning_tokens for s in samples),
        )
        return self.level.token_prices.cost(usage)

    async def _score(self, work: Work, samples: Sequence[StoredSample]) -> int:
        """Score stored samples and return the cost.

        Failed scores are not repeated here: the next run requests every missing score.
        """
        scorer, price = self.level.scorer, self.level.score_price
        if scorer is None:
            return 0

        async def score(sampled: StoredSample) -> int:
            try:
                found = await scorer.score(work.text, sampled.text)
            except ModelError as error:
                self._count_failure(error, is_first=not self.progress.scored)
                return price if isinstance(error, ModelTimeout) else 0
            await self._store([replace(sampled, score=found, cost=sampled.cost + price)])
            self.progress.scored += 1
            return price

        return sum(await asyncio.gather(*(score(sampled) for sampled in samples)))

    def _fail(self, work: Work, error: ModelError) -> None:
        """Count a failed call, and repeat it later unless it was rejected."""
        self._count_failure(error, is_first=not self.progress.new_samples)
        if work.tries + 1 < MAX_TRIES and not isinstance(error, RequestRejected):
            self._retries.append(replace(work, tries=work.tries + 1))

    def _count_failure(self, error: ModelError, *, is_first: bool) -> None:
        """Count a failure, and stop when every call so far was rejected."""
        message = str(error)[:200]
        self.progress.failed[message] = self.progress.failed.get(message, 0) + 1
        if isinstance(error, RequestRejected):
            if is_first and sum(self.progress.failed.values()) >= MAX_REFUSALS:
                self.stop(f"every call is rejected: {message}")
        elif isinstance(error, RateLimited | ModelTimeout):
            self.limiter.back_off()

    def _samples(
        self, work: Work, samples: Sequence[Sample], cost: int
    ) -> tuple[StoredSample, ...]:
        shares = split_cost(cost, max(1, len(samples)))
        return tuple(
            StoredSample(
                question=work.question,
                arm_id=self._arm_id,
                sample=number,
                cost=share,
                **{name: getattr(sample, name) for name in SAMPLE_FIELDS},
            )
            for number, share, sample in zip(work.samples, shares, samples, strict=False)
        )

    def _count_new(self, samples: Sequence[StoredSample]) -> None:
        self.progress.calls += 1
        self.progress.new_samples += len(samples)
        self.progress.done += len(samples)
        self.progress.tokens += sum(sampled.completion_tokens or 0 for sampled in samples)
        self.report(self.progress)

    async def _store(self, samples: Sequence[StoredSample]) -> None:
        """Return when the samples are durable; concurrent calls share one commit."""
        stored = asyncio.get_running_loop().create_future()
        self._pending.append((samples, stored))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await stored

    async def _write(self) -> None:
        while self._pending:
            await asyncio.sleep(0)  # let concurrent calls join this commit
            batch, self._pending = self._pending, []
            rows = [sample for samples, _ in batch for sample in samples]
            failure = None
            try:
                await self._in_ledger_thread(self.ledger.record, rows)
            except DataError as error:
                failure = error
            for stored in [future for _, future in batch if not future.done()]:  # not cancelled
                if failure is None:
                    stored.set_result(None)
                else:
                    stored.set_exception(failure)
        self._writing = None

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._in_ledger_thread(self.ledger.heartbeat)

    async def _in_ledger_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Use the ledger in its own thread, so that the event loop never waits for the disk."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, function, *arguments)
