"""Grading: extract the answers of samples without holding the event loop.

Fast graders run in the event loop: they take time linear in the length of the text. All others run
in threads of their own, with a bounded queue, a time limit per sample and a circuit breaker. A
sample that cannot be graded is unparsed at once or after the time limit, and is reported to
``on_failure``. The graders ``math`` and ``cmd:`` use processes, which are killed at their own time
limit. A grader that is a Python object of the caller cannot be killed: a sample that it does not
finish keeps one of its threads, and when all are taken, its samples are unparsed at once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from adacompute.core.errors import GraderError
from adacompute.graders.command import CommandGrader
from adacompute.graders.grader import Grader
from adacompute.graders.math import MathGrader
from adacompute.models.messages import Sample
from adacompute.sampling.circuit_breaker import CircuitBreaker
from adacompute.sampling.session import ParsedAnswer, Session

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""A sample that takes longer to grade, its wait in the queue included, is unparsed."""

MAX_QUEUE = 1000
"""Samples that may wait for a grader; more of them are unparsed at once."""

MAX_THREADS = 4
"""Threads of a grader that is the caller's own Python object: a sample may keep one of them."""

FAST_GRADERS = frozenset({"numeric", "choice", "exact"})
"""Graders that answer in microseconds and need no thread."""

LARGE = 50_000
"""Characters that a fast grader parses within milliseconds; longer texts need a thread."""

FailureReason = Literal["timeout", "error", "queue_full", "circuit_open"]
"""Why a sample was not graded."""

T = TypeVar("T")


class _UndecidedError(Exception):
    """Two answers can only be compared by the grader's process."""


class Grading:
    """Grades the samples of all sessions that share a grader."""

    def __init__(
        self,
        grader: Grader,
        *,
        timeout_s: float | None = None,
        max_queue: int = MAX_QUEUE,
        breaker: CircuitBreaker | None = None,
        on_failure: Callable[[FailureReason], None] | None = None,
    ) -> None:
        self.grader = grader
        self.is_fast = grader.name in FAST_GRADERS
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._max_queue = max_queue
        self._breaker = breaker or CircuitBreaker()
        self._on_failure = on_failure
        has_process = isinstance(grader, CommandGrader | MathGrader)
        self._lane = _Lane(1 if has_process else MAX_THREADS)
        # It extracts quickly, and compares some answers without its process.
        self._quick = grader if isinstance(grader, MathGrader) else None
        self._n_skipped = 0

    async def start(self) -> None:
        """Start the grader's process, if it has one that takes long to start."""
        if callable(start := getattr(self.grader, "start", None)):
            try:
                await self._lane.submit(start)
            except GraderError as error:
                self._fail("error", error)

    async def parse(self, session: Session, sample: Sample) -> ParsedAnswer:
        """Extract the answer of a sample; it is unparsed if the grader fails or is too slow."""
        if len(sample.text) <= LARGE:
            if self.is_fast:
                return session.parse(sample)
            if self._quick is not None:
                try:
                    return session.parse(sample, equal=self._compare_quickly)
                except _UndecidedError:
                    pass
        equal = None if self._quick is None else self._quick.compare
        return await self._parse_in_turn(sample, lambda: session.parse(sample, equal=equal))

    def close(self) -> None:
        """Stop the thread and the grader's process; tasks that wait for a sample are cancelled."""
        self._lane.close()
        if callable(close := getattr(self.grader, "close", None)):
            close()

    def _compare_quickly(self, left: str, right: str) -> bool:
        found = None if self._quick is None else self._quick.compare_quickly(left, right)
        if found is None:
            raise _UndecidedError
        return found

    async def _parse_in_turn(
        self, sample: Sample, parse: Callable[[], ParsedAnswer]
    ) -> ParsedAnswer:
        """Wait for the thread; or probe without waiting if the circuit is open."""
        unparsed = ParsedAnswer(None, sample)
        if self._breaker.is_open:
            if not self._lane.n_jobs and self._breaker.start_probe():
                self._lane.submit(parse).add_done_callback(self._end_probe)
            self._fail("circuit_open")
            return unparsed
        if self._lane.n_jobs >= self._max_queue:
            self._fail("queue_full")
            return unparsed
        try:
            async with asyncio.timeout(self._timeout_s):
                parsed = await self._lane.submit(parse)
        except TimeoutError:
            self._fail("timeout")
        except _CircuitOpenedError:
            self._fail("circuit_open")
        except GraderError as error:
            self._fail("error", error)
        else:
            if not self._breaker.is_open:
                self._breaker.record(is_failure=False)
            return parsed
        return unparsed

    def _end_probe(self, probe: asyncio.Future[ParsedAnswer]) -> None:
        is_failure = probe.cancelled() or probe.exception() is not None
        if self._breaker.end_probe(is_failure=is_failure):
            logger.warning(
                "the grader %r works again; %d samples were left unparsed meanwhile",
                self.grader.name,
                self._n_skipped,
            )
            self._n_skipped = 0

    def _fail(self, reason: FailureReason, error: GraderError | None = None) -> None:
        """Report a sample that is not graded, and open the circuit after several failures."""
        if self._on_failure is not None:
            self._on_failure(reason)
        if reason == "circuit_open":
            self._n_skipped += 1
            return
        detail = f": {error}" if error is not None else ""
        logger.warning("a sample is unparsed (%s)%s", reason, detail)
        if reason != "queue_full" and self._breaker.record(is_failure=True):
            self._lane.drop_waiting(_CircuitOpenedError())
            logger.warning(
                "the grader %r fails: its samples are unparsed until it works again",
                self.grader.name,
            )


class _CircuitOpenedError(Exception):
    """The circuit breaker opened while a sample waited."""


class _Lane:
    """Threads that run functions in turn; they never keep a process from ending."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._n_threads = 0
        self._jobs = _Jobs()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._stop = weakref.finalize(self, self._jobs.queue.put, None)

    @property
    def n_jobs(self) -> int:
        """Functions that run or wait, abandoned ones included."""
        return self._jobs.n_submitted - self._jobs.n_finished

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function when the earlier ones are done; a cancelled one may still run."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        if self._n_threads <= self.n_jobs and self._n_threads < self._max_threads:
            self._n_threads += 1
            threading.Thread(target=_work, args=(self._jobs,), daemon=True).start()
        self._jobs.n_submitted += 1
        self._jobs.queue.put(_Job(function, future))
        return future

    def drop_waiting(self, error: Exception) -> None:
        """Let everyone who waits fail with an error."""
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """End the thread after what it runs; everyone who waits is cancelled."""
        for future in tuple(self._waiting):
            future.cancel()
        self._stop()


class _Jobs:
    """What a lane shares with its thread, which must not keep the lane alive."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.n_submitted = 0
        self.n_finished = 0


@dataclass(frozen=True)
class _Job:
    """A function that a task waits for; as a context, it hands errors over to the task."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]

    def run(self) -> None:
        """Run the function, unless nobody waits for it any longer."""
        if not self.future.done():
            with self:
                self._hand_over(self.future.set_result, self.function())

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._hand_over(self.future.set_exception, error)
        return True

    def _hand_over(self, settle: Callable[[Any], None], value: object) -> None:
        def end() -> None:
            if not self.future.done():
                settle(value)

        with suppress(RuntimeError):  # the loop has ended
            self.future.get_loop().call_soon_threadsafe(end)


def _work(jobs: _Jobs) -> None:
    while (job := jobs.queue.get()) is not None:
        job.run()
        with jobs.lock:
            jobs.n_finished += 1
        del job
    jobs.queue.put(None)  # for the other threads
