"""Collector: samples what a store still lacks of one arm, and scores it.

It is a batch whose policy draws the same number of samples for every question: the calls, their
repetition, the account and the store are those of ``batch``. Samples that are still missing at the
end are counted; running the same command again samples them. It does not know files or graders.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from adacompute.batch.call_limits import RateLimiter
from adacompute.batch.calls import (
    UNLIMITED,
    Caller,
    QuestionAccount,
    ServersUnavailable,
    collect_rarely,
    draw_missing,
)
from adacompute.batch.progress import Progress, ProgressClock
from adacompute.collection.store import CollectionStore
from adacompute.core.errors import ModelError, RequestRejected
from adacompute.core.types import hash_text
from adacompute.models.calls import CallTracker
from adacompute.spending.account import LimitReached, Purchase
from adacompute.spending.attempts import CallBound
from adacompute.storage.paid_samples import SCORE, Payment

MAX_REFUSALS = 20
"""Rejected calls, before the first success, after which the collection stops."""

CALLS_PER_SLOT, MIN_CALLS = 8, 2048
"""Calls that may be under way or waiting to be stored, per concurrent call, and at least."""

SCORER = "scorer"
"""Name under which the price of scores is listed."""

SEEDS = 2**31
"""Number of seeds that every server accepts."""

Question = tuple[int, str]
"""The position and the text of a question."""


class Scorer(Protocol):
    """A scorer rates a text as an answer to a question."""

    async def score(self, question: str, text: str, *, tracker: CallTracker) -> float:
        """Return the score of a text as an answer to a question."""
        ...


def seed_of_sample(seed: int, arm: str, question: str, sample: int) -> int:
    """Return the seed of a sample, or of the call whose first sample it is.

    Each question has its own seeds. With shared seeds, the errors of all questions would be
    correlated, and means over questions would vary more than their standard errors say.
    """
    own = hashlib.blake2b(f"{arm}\n{question}".encode(), digest_size=4).digest()
    return (seed + int.from_bytes(own, "big") + sample) % SEEDS


@dataclass
class CollectionResult:
    """What was collected of an arm: planned and stored samples, and what this process did."""

    planned: int = 0
    done: int = 0
    unscored: int = 0
    new_samples: int = 0
    calls: int = 0
    tokens: int = 0
    scored: int = 0
    cost: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    stopped: str | None = None

    @property
    def missing(self) -> int:
        """Number of samples that are still missing."""
        return self.planned - self.done


@dataclass(eq=False)
class Collector:
    """Collects one arm into a store."""

    store: CollectionStore
    arm: str
    caller: Caller
    concurrency: int
    scorer: Scorer | None = None
    rate_limiter: RateLimiter | None = None
    report: Callable[[Progress], None] = lambda _: None

    def __post_init__(self) -> None:
        self.result = CollectionResult()
        self.caller.before_call = self._wait
        self._first_spent = self.caller.account.spent
        self._is_stopped = asyncio.Event()

    def stop(self, reason: str) -> None:
        """Start no further calls; running ones finish and are stored."""
        self.result.stopped = self.result.stopped or reason
        self._is_stopped.set()

    async def _wait(self, bound: CallBound) -> None:
        """Wait until the provider's limits allow a call; LimitReached if no more may start."""
        if self.rate_limiter is not None and not self.result.stopped:
            tokens = bound.prompt_tokens // 4 + bound.n_samples * self._expected_tokens()
            waits = (self.rate_limiter.acquire(tokens), self._is_stopped.wait())
            tasks = [asyncio.ensure_future(one) for one in waits]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        if self.result.stopped:
            raise LimitReached(self.result.stopped)

    async def collect(self, questions: Sequence[Question], n_samples: int) -> CollectionResult:
        """Sample until each question has ``n_samples``, calls only fail, or it is stopped."""
        account, result = self.caller.account, self.result
        result.planned = len(questions) * n_samples
        self._clock = ProgressClock(
            account.totals,
            noun="samples",
            planned=result.planned,
            unit=account.costs.unit,
            per_unit=account.costs.per_unit,
        )
        self._count(questions, n_samples)
        with collect_rarely():
            await self._fill_all(questions, n_samples)
        result.cost = account.spent - self._first_spent
        self._count(questions, n_samples)
        self.report(self._clock.record(self.caller.account.totals, self.result.done))
        return result

    def _count(self, questions: Sequence[Question], n_samples: int) -> None:
        """Count the stored samples."""
        result, positions = self.result, [position for position, _ in questions]
        result.done, scored = self.store.count(self.arm, positions, n_samples)
        result.unscored = 0 if self.scorer is None else result.done - scored

    async def _fill_all(self, questions: Sequence[Question], n_samples: int) -> None:
        """Fill questions in their order, with a bounded number of calls under way."""
        limit = max(MIN_CALLS, CALLS_PER_SLOT * self.concurrency)
        n_running, ended = 0, asyncio.Event()
        sizes: dict[asyncio.Task[None], int] = {}
        failure: BaseException | None = None

        def end(task: asyncio.Task[None]) -> None:
            nonlocal n_running, failure
            n_running -= sizes.pop(task)
            failure = failure or (None if task.cancelled() else task.exception())
            ended.set()

        try:
            for position, text in questions:
                missing = self.store.missing(self.arm, position, n_samples)
                unscored = self._find_unscored(position, n_samples)
                size = len(missing) + len(unscored)
                while n_running and n_running + size > limit and failure is None:
                    ended.clear()
                    await ended.wait()
                if self.result.stopped or failure is not None:
                    break
                if size:
                    task = asyncio.create_task(self._fill(position, text, missing, unscored))
                    sizes[task] = size
                    n_running += size
                    task.add_done_callback(end)
            while sizes and failure is None:
                ended.clear()
                await ended.wait()
        finally:
            for task in sizes:
                task.cancel()
            await asyncio.gather(*sizes, return_exceptions=True)
        if failure is not None:  # a bug or a full disk ends the collection
            raise failure

    def _find_unscored(self, position: int, n_samples: int) -> list[int]:
        if self.scorer is None:
            return []
        return self.store.unscored(self.arm, position, n_samples)

    async def _fill(
        self, position: int, text: str, missing: list[int], unscored: list[int]
    ) -> None:
        """Draw the missing samples of a question, and score those without a score."""
        account = QuestionAccount(position, text, hash_text(text), UNLIMITED)
        if unscored:
            await self._score(text, await asyncio.to_thread(self._read, position, unscored))
        while missing and not self.result.stopped:
            known: dict[int, Payment] = {}
            failure: ModelError | None = None
            try:
                failure = await draw_missing(self.caller, account, self.arm, missing, known)
            except ServersUnavailable as error:
                self.stop(str(error))
            self._note(list(known.values()))
            await self._score(text, list(known.values()))
            missing = [number for number in missing if number not in known]
            if failure is not None:
                self._count_failure(failure, is_first=not self.result.new_samples)
            if failure is not None or not known:
                return

    def _read(self, position: int, numbers: list[int]) -> list[Payment]:
        """Read stored samples of a question."""
        for _, by_arm in self.store.read([self.arm], [position]):
            return [one for one in by_arm[self.arm] if one.number in numbers]
        return []

    def _note(self, drawn: Sequence[Payment]) -> None:
        result = self.result
        self.store.note(drawn)
        result.calls += len({one.attempt for one in drawn})
        result.new_samples += len(drawn)
        result.done += len(drawn)
        result.tokens += sum(one.sample.completion_tokens or 0 for one in drawn if one.sample)
        self.report(self._clock.record(self.caller.account.totals, self.result.done))

    def _expected_tokens(self) -> int:
        """Return the mean tokens per completion so far, or the limit before the first one."""
        done, limit = self.result.new_samples, self.caller.arms[0].settings.max_tokens
        return self.result.tokens // done if done else limit or 0

    async def _score(self, text: str, samples: Sequence[Payment]) -> None:
        """Score samples. Failures are not repeated: the next run requests every missing score."""
        if self.scorer is not None:
            await asyncio.gather(*(self._score_one(self.scorer, text, one) for one in samples))

    async def _score_one(self, scorer: Scorer, question: str, sampled: Payment) -> None:
        text = "" if sampled.sample is None else sampled.sample.text
        bound = CallBound(SCORER, 0, 0)
        key = (sampled.position, sampled.arm, sampled.number)
        call = self.caller.account.start_call(Purchase(*key, bound, SCORE))
        try:
            found = await scorer.score(question, text, tracker=call)
        except ModelError as error:
            await call.store()
            self._count_failure(error, is_first=not self.result.scored)
            return
        self.store.note(await call.store(score=found))
        self.result.scored += 1

    def _count_failure(self, error: ModelError, *, is_first: bool) -> None:
        """Count a failure, and stop at the limit or when every call so far was rejected."""
        result, message = self.result, str(error)[:200]
        if isinstance(error, LimitReached):
            self.stop("the next call may cost more than is left of the maximum cost")
            return
        result.failed[message] = result.failed.get(message, 0) + 1
        n_failed = sum(result.failed.values())
        if isinstance(error, RequestRejected) and is_first and n_failed >= MAX_REFUSALS:
            self.stop(f"every call is rejected: {message}")
