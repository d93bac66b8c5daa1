"""Stream: one pass over the questions of a batch, as many at a time as calls allow.

Each question is a session of the same policy as in the gateway. Questions start in their order and
end in any; those that end make room for others, so a slow one holds up nobody until the lag of the
allowances is reached. The price of a block depends on what was spent up to the lag, so that the
money lasts for the questions that are left. It knows nothing of files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from adacompute.batch.allowances import Allowances, Demand
from adacompute.batch.answers import (
    ANSWERED,
    ERROR,
    LIMITED,
    UNANSWERED,
    BatchAnswer,
    Status,
)
from adacompute.batch.calls import Caller, PaidModel, QuestionAccount
from adacompute.core.errors import ModelError
from adacompute.core.types import hash_text
from adacompute.graders.grader import Grader
from adacompute.models.model import CallUsage
from adacompute.policies.bundles.bundle import Bundle
from adacompute.sampling.blocks import decide
from adacompute.sampling.grading import Grading
from adacompute.sampling.loop import Decider, run_session
from adacompute.sampling.session import Session
from adacompute.spending.account import LimitReached
from adacompute.storage.paid_samples import SAMPLE, Payment

NO_DEMAND = Demand(0, 0, 0)


@dataclass(frozen=True, eq=False)
class Item:
    """A question to answer, with what was paid for it before.

    ``price``, ``allowance`` and ``base``, its cost, are those of an earlier pass.
    """

    position: int
    question_id: str
    text: str | None
    paid: Sequence[Payment] = ()
    price: float | None = None
    base: int = 0
    allowance: int | None = None


PriceOf = Callable[[int, int], float]
"""Returns the price of the next block, from the questions that have ended and what they spent."""


@dataclass(eq=False)
class Stream:
    """One pass. ``on_answer`` receives each answer when its question has ended."""

    bundle: Bundle
    grader: Grader
    caller: Caller
    allowances: Allowances
    price_of: PriceOf
    mean: int
    on_answer: Callable[[BatchAnswer], None]
    _decider: Decider = field(default_factory=Decider)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, blocks: AsyncIterator[list[Item]]) -> None:
        """Answer all questions; the first error that is not a question's own ends the pass."""
        grading = Grading(self.grader)
        try:
            async with asyncio.TaskGroup() as group:
                async for block in blocks:
                    await self._start_block(block, grading, group)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await asyncio.to_thread(grading.close)

    async def _start_block(
        self, block: list[Item], grading: Grading, group: asyncio.TaskGroup
    ) -> None:
        n_ended, spent = await self._wait_for_lag()
        price = self.price_of(n_ended, spent)
        sessions = [self._open(item, price) for item in block]
        due = [one.progress for one in sessions if one is not None]
        await asyncio.to_thread(decide, due)
        for item, session in zip(block, sessions, strict=True):
            first = self.allowances.n_started
            if session is None:
                await self._allow(NO_DEMAND)
                self._end(first, _failed(item, price, "the row has no text"), 0)
                continue
            account = self._account(item)
            demand = self.caller.demand(
                account, max_samples=self.bundle.max_samples, mean=self.mean
            )
            account.allowance = await self._allow(demand)
            group.create_task(self._answer(first, item, session, account, grading))

    def _open(self, item: Item, price: float) -> Session | None:
        if item.text is None:
            return None
        chosen = price if item.price is None else item.price
        return Session(self.bundle, item.text, price=chosen, grader=self.grader)

    def _account(self, item: Item) -> QuestionAccount:
        text = item.text or ""
        account = QuestionAccount(item.position, text, hash_text(text), 0, base=item.base)
        for call in item.paid:
            if call.kind == SAMPLE:
                account.paid.setdefault(call.arm, {})[call.number] = call
            else:
                account.spent += call.cost
        return account

    async def _wait_for_lag(self) -> tuple[int, int]:
        """Wait until the questions have ended that the next price depends on."""
        while (found := self.allowances.spent_at_lag()) is None:
            await self._next_end()
        return found

    async def _allow(self, demand: Demand) -> int:
        """Wait for the allowance of the next question."""
        while (allowance := self.allowances.start(demand)) is None:
            await self._next_end()
        return allowance

    async def _next_end(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    async def _answer(
        self, number: int, item: Item, session: Session, account: QuestionAccount, grading: Grading
    ) -> None:
        """Run one question to its end; an error of the model is written as its answer."""
        error: str | None = None
        model = PaidModel(self.caller, account)
        try:
            await run_session(
                session,
                model,
                grading=grading,
                on_usage=_ignore,
                decider=self._decider,
            )
        except LimitReached:
            account.is_limited = True
        except ModelError as failure:
            error = str(failure)
        if (rest := model.take_rest()) and session.arm is None:
            session.finish([await grading.parse(session, one) for one in rest])
        chosen, (p_correct, is_sure) = session.chosen, session.judge()
        answer = BatchAnswer(
            position=item.position,
            question_id=item.question_id,
            answer=session.answer,
            text=None if chosen is None else session.samples[chosen].text,
            n_samples=session.n_samples,
            agreement=session.agreement,
            p_correct=p_correct,
            sure=is_sure,
            cost=account.spent,
            allowance=account.allowance if item.allowance is None else item.allowance,
            price=session.price,
            status=_status(session, account, error),
            error=error,
        )
        self._end(number, answer, account.spent - account.base)

    def _end(self, number: int, answer: BatchAnswer, spent: int) -> None:
        self.allowances.settle(number, spent)
        self.on_answer(answer)
        self._settled.set()


def _status(session: Session, account: QuestionAccount, error: str | None) -> Status:
    if error is not None:
        return ERROR
    if account.is_limited:
        return LIMITED
    return UNANSWERED if session.answer is None else ANSWERED


def _failed(item: Item, price: float, reason: str) -> BatchAnswer:
    return BatchAnswer(
        item.position, item.question_id, None, None, 0, None, None, None, 0, 0, price, ERROR, reason
    )


def _ignore(usage: CallUsage) -> None:
    """Do nothing with usage: the caller has recorded it already."""
    del usage
