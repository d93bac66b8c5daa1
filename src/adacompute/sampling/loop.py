"""Loop: one session from its first request to its answer, over any model.

Ask, sample, parse, tell, until the session is done; cancel samples that cannot change the answer;
stop at the deadline. The library's ``Sampler`` and the gateway both run this loop. It knows nothing
of HTTP or of where models and questions come from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from adacompute.core.errors import ModelError
from adacompute.models.messages import Sample
from adacompute.models.model import Model, OnUsage
from adacompute.sampling.blocks import QuestionProgress, decide, decide_by_lookup
from adacompute.sampling.grading import LARGE, Grading
from adacompute.sampling.session import ParsedAnswer, Request, Session


class Decider:
    """Decides for all sessions that wait at the same time, in one block.

    Alone, a decision takes about as long as one for 64 questions.
    """

    def __init__(self) -> None:
        self._waiting: list[QuestionProgress] = []

    async def decide(self, session: Session) -> None:
        """Make the decision that is due in a session, together with others that wait."""
        if decide_by_lookup(session.progress):
            return
        self._waiting.append(session.progress)
        await asyncio.sleep(0)  # until every task that can run waits here or elsewhere
        if session.progress.is_due:  # the first to go on decides for all
            waiting, self._waiting = self._waiting, []
            decide(waiting)


@dataclass(frozen=True)
class SessionEnd:
    """Whether a session got all samples that it asked for, and how long each round of them took."""

    is_complete: bool
    round_s: tuple[float, ...]


async def run_session(
    session: Session,
    model: Model,
    *,
    grading: Grading,
    on_usage: OnUsage,
    deadline_s: float | None = None,
    decider: Decider | None = None,
) -> SessionEnd:
    """Sample and decide until the session is done.

    A deadline ends it early, but never before the first sample is there. So does a failure of the
    model, which is raised only if there is no sample at all.
    """
    deadline = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s
    run, round_s = _Run(session, model, grading, on_usage, deadline), list[float]()
    try:
        while True:
            if decider is not None and session.progress.is_due:
                await decider.decide(session)
            if run.is_late():
                run.is_complete = False
                break
            if not (request := session.ask()):
                break
            start = time.perf_counter()
            goes_on = await run.sample(request)
            round_s.append(time.perf_counter() - start)
            if not goes_on:
                break
    except ModelError:
        if not session.samples:
            raise
        run.is_complete = False
    session.finish(run.surplus)
    return SessionEnd(run.is_complete, tuple(round_s))


@dataclass
class _Run:
    """One session under way."""

    session: Session
    model: Model
    grading: Grading
    on_usage: OnUsage
    deadline: float | None
    surplus: list[Sample | ParsedAnswer] = field(default_factory=list)
    is_complete: bool = True

    def is_late(self) -> bool:
        """Whether the deadline has passed; it does not pass before there is a sample."""
        if self.deadline is None or not self.session.samples or self.session.is_done:
            return False
        return asyncio.get_running_loop().time() > self.deadline

    async def sample(self, request: Request) -> bool:
        """Get the samples of a request; return whether another request may follow.

        The first sample has all the time that it needs: without one there is no answer.
        """
        session, before = self.session, self.session.n_samples
        if self.surplus:
            session.tell(self.surplus[: request.n])
            del self.surplus[: request.n]
            return True
        samples = self.model.sample(
            session.question or "", request.n, arm=request.arm, on_usage=self.on_usage
        )
        limit = asyncio.timeout_at(self.deadline if session.samples else None)
        try:
            async with aclosing(samples), limit:
                can_cancel = await self._collect(samples, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            self.is_complete = False
            return False
        if session.n_samples == before:
            raise ModelError("the model returned no samples")
        return not can_cancel

    async def _collect(self, samples: AsyncGenerator[Sample, None], limit: asyncio.Timeout) -> bool:
        """Tell samples, call by call; return early if the rest can be cancelled."""
        session, of_call, is_fast = self.session, list[Sample](), self.grading.is_fast
        async for sample in samples:
            of_call.append(sample)
            is_fast = is_fast and len(sample.text) <= LARGE
            if len(of_call) < sample.samples_per_call:
                continue
            if is_fast:
                self._tell(of_call)
            else:
                await self._parse_and_tell(of_call)
            if session.can_cancel:
                return True
            limit.reschedule(self.deadline)
            of_call, is_fast = [], self.grading.is_fast
        if of_call:
            await self._parse_and_tell(of_call)
        return False

    def _tell(self, samples: Sequence[Sample | ParsedAnswer]) -> None:
        """Tell samples; those beyond what was asked for are kept for later."""
        missing = self.session.n_planned - self.session.n_samples
        self.surplus += samples[missing:]
        self.session.tell(samples[:missing])

    async def _parse_and_tell(self, samples: list[Sample]) -> None:
        """Parse samples and tell each at once: what is parsed in time counts."""
        for sample in samples:
            self._tell([await self.grading.parse(self.session, sample)])
