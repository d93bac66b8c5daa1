"""Account: what was paid in one directory, and what may still be, for ``collect`` and ``batch``.

The store of paid samples is the account: whatever is in it is spent. Before an attempt is sent, its
maximum is reserved and written down. What the store holds, what has ended and is not stored yet,
and what is reserved never add up to more than the limit, so the limit holds whatever was planned,
whatever fails and however often the process is killed. Attempts that were open when a process was
killed are stored as lost, at their maximum, before the next process sends anything.

It does not survive a loss of power: what was open then, and segments that the disk had not written,
are not counted. There is one process at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from adacompute.core.errors import ModelError
from adacompute.models.calls import NO_USAGE
from adacompute.models.messages import Sample
from adacompute.models.model import CallUsage
from adacompute.spending.attempts import Attempt, CallBound
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.open_calls import OpenCall, OpenCalls
from adacompute.spending.token_prices import split_cost
from adacompute.storage.paid_samples import (
    FAILED,
    FLUSH_S,
    LOST,
    PATIENCE_S,
    PROBE,
    SAMPLE,
    SCORE,
    SEGMENTS,
    Kind,
    PaidTotals,
    Payment,
    SegmentWriter,
    has_attempts,
    sum_payments,
)

if TYPE_CHECKING:
    from types import TracebackType

logger = logging.getLogger(__name__)

OPEN_CALLS = "open-calls.bin"
"""Name of the file of attempts under way."""


class LimitReached(ModelError):  # noqa: N818 - an end, not an error
    """The next attempt may cost more than is left."""


class Allowance(Protocol):
    """A part of the limit that some attempts share, such as that of one question."""

    def reserve(self, amount: int) -> None:
        """Reserve an amount; LimitReached if it does not fit."""
        ...

    def settle(self, reserved: int, spent: int) -> None:
        """Replace what was reserved by what was spent."""
        ...


@dataclass(frozen=True)
class Purchase:
    """What a call is for: the kind of payment, the question, the arm and the first sample."""

    position: int
    arm: str | None
    number: int
    bound: CallBound
    kind: Kind = SAMPLE


class SpendingAccount:
    """The account of a directory; use it as an asynchronous context manager.

    ``limit`` is in amounts of ``costs``, None for none. ``arms`` are the names of all arms, in an
    order that never changes.
    """

    def __init__(
        self,
        directory: Path,
        costs: CallCosts,
        *,
        limit: int | None = None,
        arms: Sequence[str | None] = (None,),
        flush_s: float = FLUSH_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.costs = costs
        self.limit = limit
        self.segments = directory / SEGMENTS
        self._path = directory / OPEN_CALLS
        self._arms = {name: i for i, name in enumerate(arms)}
        self._flush_s = flush_s
        self._patience_s = patience_s
        self._ended = self._reserved = self._n_open = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        self._writer = SegmentWriter(
            self.segments, interval_s=self._flush_s, patience_s=min(PATIENCE_S, self._patience_s)
        )
        self._open_calls = OpenCalls(self._path)
        self.totals: PaidTotals = await asyncio.to_thread(sum_payments, self.segments)
        lost = self._open_calls.lost
        known = has_attempts(self.segments, {call.attempt for call in lost})
        names = {i: name for name, i in self._arms.items()}
        await self._store(
            [
                Payment(one.position, names.get(one.arm), one.number, one.cost, None, LOST, attempt)
                for one in lost
                if (attempt := one.attempt) not in known
            ]
        )
        self._open_calls.clear_lost()
        self._last_attempt = max([self.totals.last_attempt, *(one.attempt for one in lost)])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._writer.close()
        self._open_calls.close()

    @property
    def spent(self) -> int:
        """What is stored, and what has ended and will be."""
        return self.totals.spent + self._ended

    def start_call(self, purchase: Purchase, allowance: Allowance | None = None) -> PaidCall:
        """Return the tracker of a call, which pays for each of its attempts."""
        return PaidCall(self, purchase, allowance)

    async def reserve(self, amount: int) -> None:
        """Reserve an amount; wait while attempts that are open may leave enough of the limit.

        LimitReached if what is spent leaves too little.
        """
        while self.limit is not None and self.spent + self._reserved + amount > self.limit:
            if self.spent + amount > self.limit:
                raise LimitReached("the next call may cost more than is left")
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]
        self._reserved += amount
        self._n_open += 1

    def release(self, amount: int, spent: int) -> None:
        """Replace what was reserved by what was spent."""
        self._reserved -= amount
        self._ended += spent
        self._n_open -= 1
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    def begin(self, purchase: Purchase, max_cost: int) -> tuple[int, int]:
        """Write an attempt down before it is sent; return its id and its place."""
        self._last_attempt += 1
        arm = self._arms.get(purchase.arm, 0)
        call = OpenCall(self._last_attempt, purchase.position, arm, purchase.number, max_cost)
        return call.attempt, self._open_calls.begin(call)

    def settle(self, place: int, cost: int | None) -> None:
        """Write down what an attempt cost that has ended; None if it cost nothing."""
        if cost is None:
            self._open_calls.end(place)
        else:
            self._open_calls.set_cost(place, cost)

    async def store(self, payments: Sequence[Payment], places: Sequence[int]) -> None:
        """Store payments of attempts that have ended, then forget that these were open."""
        await self._store(payments)
        self._ended -= sum(one.cost for one in payments)
        for place in places:
            self._open_calls.end(place)

    async def _store(self, payments: Sequence[Payment]) -> None:
        if payments:
            if not self._n_open:
                self._writer.hurry()
            await self._writer.add(payments)
            self.totals.add(payments)


class ProbeCalls:
    """A tracker of the calls that find out what a server does, paid like all others.

    They may spend a tenth of what is left of the limit. ``is_limited`` says that one was refused.
    """

    def __init__(self, account: SpendingAccount, arm: str | None) -> None:
        self.is_limited = False
        self._account = account
        self._arm = arm
        self._calls: list[PaidCall] = []
        self._left: int | None = None
        if account.limit is not None:
            self._left = (account.limit - account.spent) // 10

    def reserve(self, amount: int) -> None:
        """Reserve an amount; LimitReached if it is more than is left for probes."""
        if self._left is not None:
            if amount > self._left:
                raise LimitReached("too little is left to find out what the server does")
            self._left -= amount

    def settle(self, reserved: int, spent: int) -> None:
        """Replace what was reserved by what was spent."""
        if self._left is not None:
            self._left += reserved - spent

    async def start(self, path: str, payload: bytes, attempt: int) -> PaidAttempt:
        """Pay for an attempt, by the bound that its body has."""
        purchase = Purchase(0, self._arm, 0, CallBound.read(path, payload), PROBE)
        self._calls.append(self._account.start_call(purchase, self))
        try:
            return await self._calls[-1].start(path, payload, attempt)
        except LimitReached:
            self.is_limited = True
            raise

    async def store(self) -> None:
        """Store what the calls cost."""
        for call in self._calls:
            await call.store()


class PaidAttempt(Attempt):
    """An attempt of a paid call."""

    __slots__ = ("_call", "cost", "id", "max_cost", "place")

    def __init__(self, call: PaidCall, max_cost: int) -> None:
        super().__init__(call.purchase.bound)
        self.cost: int | None = None
        self.max_cost = max_cost
        self._call = call
        self.id, self.place = call.account.begin(call.purchase, max_cost)

    def _settle(self, charged: CallUsage) -> None:
        cost = 0
        if charged is not NO_USAGE:
            cost = self.cost = self._call.account.costs.cost(self.bound, charged)
            if cost > self.max_cost:
                logger.warning("a call cost %d, more than its maximum of %d", cost, self.max_cost)
        self._call.account.settle(self.place, self.cost)
        self._call.settle(self.max_cost, cost)


class PaidCall:
    """The tracker of one call: each attempt is reserved, opened, and settled or lost.

    ``store`` must follow when the call is over. A call that is cancelled before stays open, and is
    lost when the process ends.
    """

    def __init__(
        self, account: SpendingAccount, purchase: Purchase, allowance: Allowance | None
    ) -> None:
        self.account = account
        self.purchase = purchase
        self._allowance = allowance
        self._max_cost = account.costs.max_cost(purchase.bound)
        self._attempts: list[PaidAttempt] = []

    async def start(self, path: str, payload: bytes, attempt: int) -> PaidAttempt:
        """Reserve the maximum cost of an attempt, and write it down; LimitReached if it is more."""
        del path, payload, attempt
        if self._allowance is not None:
            self._allowance.reserve(self._max_cost)
        try:
            await self.account.reserve(self._max_cost)
        except BaseException:
            if self._allowance is not None:
                self._allowance.settle(self._max_cost, 0)
            raise
        self._attempts.append(PaidAttempt(self, self._max_cost))
        return self._attempts[-1]

    def settle(self, reserved: int, spent: int) -> None:
        """Replace what an attempt had reserved by what it cost."""
        self.account.release(reserved, spent)
        if self._allowance is not None:
            self._allowance.settle(reserved, spent)

    async def store(
        self, samples: Sequence[Sample] = (), *, score: float | None = None
    ) -> list[Payment]:
        """Store what the call cost and brought; return the payments for what it brought.

        The last attempt brought it; the others failed.
        """
        attempts, self._attempts = [one for one in self._attempts if one.cost is not None], []
        is_bought = bool(samples) or score is not None
        bought = self._pay_bought(attempts[-1], samples, score) if is_bought and attempts else []
        failed = [self._pay_failed(one) for one in (attempts[:-1] if bought else attempts)]
        await self.account.store([*bought, *failed], [one.place for one in attempts])
        return bought

    def _pay_failed(self, attempt: PaidAttempt) -> Payment:
        """Return the payment for an attempt that brought nothing."""
        asked = self.purchase
        kind: Kind = PROBE if asked.kind == PROBE else FAILED
        where = (asked.position, asked.arm, asked.number)
        return Payment(*where, attempt.cost or 0, None, kind, attempt.id)

    def _pay_bought(
        self, attempt: PaidAttempt, samples: Sequence[Sample], score: float | None
    ) -> list[Payment]:
        """Return the payments for what an attempt brought."""
        position, arm, first = (self.purchase.position, self.purchase.arm, self.purchase.number)
        cost = attempt.cost or 0
        if score is not None:
            return [Payment(position, arm, first, cost, None, SCORE, attempt.id, score)]
        shares = zip(split_cost(cost, len(samples)), samples, strict=True)
        return [
            Payment(position, arm, first + i, share, sample, SAMPLE, attempt.id)
            for i, (share, sample) in enumerate(shares)
        ]
