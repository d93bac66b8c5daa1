"""The account of a directory: what is reserved, settled, lost and stored, and what kills leave."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.models.calls import NO_USAGE
from adacompute.models.messages import Sample
from adacompute.models.model import CallUsage
from adacompute.spending.account import (
    OPEN_CALLS,
    LimitReached,
    PaidAttempt,
    PaidCall,
    Purchase,
    SpendingAccount,
)
from adacompute.spending.attempts import CallBound
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.open_calls import OpenCalls
from adacompute.storage.paid_samples import (
    FAILED,
    LOST,
    PROBE,
    SAMPLE,
    SCORE,
    Kind,
    PaidTotals,
    Payment,
    SegmentWriter,
    read_payments,
    sum_payments,
)

COSTS = CallCosts("tokens")
ARMS = ("small", "big")


def buy(maximum: int = 10, position: int = 0, arm: str = "small", kind: Kind = SAMPLE) -> Purchase:
    """A purchase of one sample that costs at most so many tokens."""
    return Purchase(position, arm, 0, CallBound("m", 0, maximum, 1), kind)


def used(tokens: int) -> CallUsage:
    return CallUsage({"prompt_tokens": 0, "completion_tokens": tokens})


def samples(n: int) -> list[Sample]:
    return [Sample(f"text {i}", completion_tokens=1) for i in range(n)]


def open_account(directory: Path, limit: int | None = None) -> SpendingAccount:
    return SpendingAccount(directory, COSTS, limit=limit, arms=ARMS, flush_s=0.0)


def run(
    directory: Path, main: Callable[[SpendingAccount], Awaitable[object]], **options: Any
) -> None:
    """Open the account of a directory, use it and close it."""

    async def use() -> None:
        async with open_account(directory, **options) as account:
            await main(account)

    asyncio.run(use())


async def send(call: PaidCall) -> PaidAttempt:
    return await call.start("path", b"{}", 1)


def paid(directory: Path) -> list[Payment]:
    """What the store holds, without samples and numbers of attempts."""
    stored = read_payments(directory / "segments", with_samples=False)
    return [Payment(p.position, p.arm, p.number, p.cost, None, p.kind, 0, p.score) for p in stored]


async def start_soon(call: PaidCall) -> asyncio.Task[PaidAttempt]:
    """Start an attempt that may have to wait."""
    task = asyncio.create_task(send(call))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_each_attempt_is_paid_and_the_last_one_brought_the_samples(tmp_path: Path) -> None:
    async def main(account: SpendingAccount) -> None:
        call = account.start_call(buy(position=3))
        for usage in (None, NO_USAGE, used(0), used(7)):
            (await send(call)).end(usage)
        assert (account.spent, account.totals.spent) == (17, 0)
        drawn = await call.store(samples(2))
        assert [(one.number, one.cost, one.sample) for one in drawn] == [
            (0, 4, samples(2)[0]),
            (1, 3, samples(2)[1]),
        ]
        assert len({one.attempt for one in drawn}) == 1
        assert account.spent == account.totals.spent == 17
        assert account.totals == sum_payments(account.segments)

    run(tmp_path, main)
    assert paid(tmp_path) == [
        Payment(3, "small", 0, 4),
        Payment(3, "small", 1, 3),
        Payment(3, "small", 0, 10, None, FAILED),
        Payment(3, "small", 0, 0, None, FAILED),
    ]
    run(tmp_path, lambda account: account.reserve(0))
    assert sum_payments(tmp_path / "segments").lost == 0


def test_a_refused_attempt_costs_nothing(tmp_path: Path) -> None:
    async def main(account: SpendingAccount) -> None:
        call = account.start_call(buy())
        (await send(call)).end(NO_USAGE)
        assert await call.store() == []
        await account.reserve(10)

    run(tmp_path, main, limit=10)
    run(tmp_path, main, limit=10)
    assert paid(tmp_path) == []


@pytest.mark.parametrize("kind", [SAMPLE, SCORE, PROBE])
def test_scores_and_probes_are_paid_as_such(tmp_path: Path, kind: Kind) -> None:
    async def main(account: SpendingAccount) -> None:
        call = account.start_call(buy(kind=kind))
        (await send(call)).end(None)
        if kind == SCORE:
            (await send(call)).end(used(2))
            await call.store(score=0.5)
        else:
            await call.store()

    run(tmp_path, main)
    failed = Payment(0, "small", 0, 10, None, PROBE if kind == PROBE else FAILED)
    score = [Payment(0, "small", 0, 2, None, SCORE, 0, 0.5)] if kind == SCORE else []
    assert paid(tmp_path) == [*score, failed]


def test_reserving_waits_for_open_attempts_and_ends_at_the_limit(tmp_path: Path) -> None:
    async def main(account: SpendingAccount) -> None:
        first = account.start_call(buy(10))
        sent = await send(first)
        second = await start_soon(account.start_call(buy(6)))
        third = await start_soon(account.start_call(buy(6)))
        assert not second.done()
        sent.end(used(3))  # leaves 9 of 12: enough for one of two
        await asyncio.sleep(0.01)
        assert second.done()
        assert not third.done()
        second.result().end(None)
        with pytest.raises(LimitReached):
            await third
        await account.reserve(3)
        with pytest.raises(LimitReached):
            await account.reserve(4)

    run(tmp_path, main, limit=12)


def test_what_is_stored_counts_whatever_the_limit_is_now(tmp_path: Path) -> None:
    async def spend(account: SpendingAccount) -> None:
        call = account.start_call(buy(10))
        (await send(call)).end(used(8))
        await call.store(samples(1))

    run(tmp_path, spend, limit=12)
    with pytest.raises(LimitReached):
        run(tmp_path, spend, limit=6)
    with pytest.raises(LimitReached):
        run(tmp_path, spend, limit=17)
    run(tmp_path, spend, limit=18)
    assert sum_payments(tmp_path / "segments").spent == 16


@dataclass
class Share:
    """An allowance that records what is held and spent."""

    left: int
    spent: int = 0

    def reserve(self, amount: int) -> None:
        if amount > self.left:
            raise LimitReached("no")
        self.left -= amount

    def settle(self, reserved: int, spent: int) -> None:
        self.left += reserved - spent
        self.spent += spent


def test_an_allowance_holds_what_its_attempts_hold(tmp_path: Path) -> None:
    async def main(account: SpendingAccount) -> None:
        share, other = Share(15), Share(15)
        sent = await send(account.start_call(buy(), share))
        assert share.left == 5
        with pytest.raises(LimitReached):
            await send(account.start_call(buy(), share))
        waiting = await start_soon(account.start_call(buy(), other))
        assert other.left == 5
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert other == Share(15)
        sent.end(used(4))
        assert (share.left, share.spent, account.spent) == (11, 4, 4)

    run(tmp_path, main, limit=15)


def test_a_cancelled_call_stays_open_and_is_lost_at_the_next_start(tmp_path: Path) -> None:
    async def main(account: SpendingAccount) -> None:
        sent = await send(account.start_call(buy(position=4, arm="big")))
        sent.end(None)  # as the client does when it is cancelled
        assert account.spent == 10

    run(tmp_path, main)
    assert paid(tmp_path) == []

    async def again(account: SpendingAccount) -> None:
        assert (account.spent, account.totals.lost) == (10, 10)
        with pytest.raises(LimitReached):
            await account.reserve(1)

    for _ in range(2):
        run(tmp_path, again, limit=10)
    assert paid(tmp_path) == [Payment(4, "big", 0, 10, None, LOST)]


def test_a_full_disk_keeps_what_is_spent_and_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        async with SpendingAccount(tmp_path, COSTS, arms=ARMS, patience_s=0.0) as account:
            call = account.start_call(buy())
            (await send(call)).end(used(3))
            with pytest.raises(DataError, match=f"{account.segments} cannot be written: No space"):
                await call.store(samples(1))
            assert account.spent == 3

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "_write", write)
        asyncio.run(main())
    run(tmp_path, lambda account: account.reserve(0))
    assert paid(tmp_path) == [Payment(0, "small", 0, 3, None, LOST)]


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _pay_and_die(directory: Path, moment: str) -> None:
    """Buy for each of two questions, and be killed at a moment."""

    async def main(account: SpendingAccount) -> None:
        for position in (0, 1):
            call = account.start_call(buy(position=position))
            sent = await send(call)
            if position == 1 and moment == "open":
                _die()
            sent.end(used(3))
            if position == 1 and moment == "settled":
                _die()
            if position == 1 and moment == "stored":
                setattr(OpenCalls, "end", _die)  # noqa: B010 - in a process of its own
            await call.store(samples(1))

    if moment == "before losses are stored":
        setattr(SegmentWriter, "_write", _die)  # noqa: B010
    if moment == "after losses are stored":
        setattr(OpenCalls, "clear_lost", _die)  # noqa: B010
    run(directory, main)


def kill(directory: Path, moment: str) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_pay_and_die, args=(directory, moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_an_attempt_is_lost_once_however_often_the_process_is_killed(tmp_path: Path) -> None:
    kill(tmp_path, "open")
    kill(tmp_path, "before losses are stored")
    kill(tmp_path, "before losses are stored")
    kill(tmp_path, "after losses are stored")
    kill(tmp_path, "open")
    run(tmp_path, lambda account: account.reserve(0))
    sample, lost = Payment(0, "small", 0, 3), Payment(1, "small", 0, 10, None, LOST)
    assert paid(tmp_path) == [sample, lost, sample, lost]


def test_what_was_settled_is_lost_unless_it_was_stored(tmp_path: Path) -> None:
    kill(tmp_path, "settled")
    kill(tmp_path, "stored")
    run(tmp_path, lambda account: account.reserve(0))
    first, second = Payment(0, "small", 0, 3), Payment(1, "small", 0, 3)
    lost = Payment(1, "small", 0, 3, None, LOST)  # it had ended, so its cost is known
    assert paid(tmp_path) == [first, lost, first, second]


@dataclass
class Billing:
    """A server that bills every attempt that it was sent, and did not refuse, at its true cost."""

    directory: Path
    limit: int
    billed: int = 0
    calls: list[tuple[PaidCall, PaidAttempt, int]] = field(default_factory=list)

    async def start(self) -> None:
        self.account = open_account(self.directory, self.limit)
        await self.account.__aenter__()
        self.calls = []

    async def send(self, maximum: int, true_cost: int, call: PaidCall | None = None) -> None:
        """Send an attempt if it may be sent now."""
        call = call or self.account.start_call(buy(maximum, position=len(self.calls)))
        task = await start_soon(call)
        if not task.done():
            task.cancel()
        try:
            self.calls.append((call, await task, true_cost))
            self.billed += true_cost
        except (asyncio.CancelledError, LimitReached):
            self.calls = [one for one in self.calls if one[0] is not call]

    async def step(self, name: str, maximum: int, true_cost: int) -> None:
        """Make one step, with the oldest attempt or a new one."""
        file = self.directory / OPEN_CALLS
        before = file.read_bytes()
        if name == "send":
            await self.send(maximum, min(true_cost, maximum))
        elif name in {"kill", "kill before clearing losses"}:
            await self.start()
        elif self.calls:
            call, sent, true_cost = self.calls.pop(0)
            await self.finish(name, call, sent, true_cost)
            if name == "kill after storing":
                await self.restore(before)
        if name == "kill before clearing losses":
            await self.restore(before)

    async def finish(self, name: str, call: PaidCall, sent: PaidAttempt, true_cost: int) -> None:
        """End an attempt; store its call, or try it again."""
        if name == "refuse":
            self.billed -= true_cost
            sent.end(NO_USAGE)
        else:
            sent.end(None if name in {"fail", "retry"} else used(true_cost))
        if name == "retry":
            await self.send(0, 0, call)
        elif name != "cancel":
            await call.store(samples(1) if name in {"settle", "kill after storing"} else ())

    async def restore(self, before: bytes) -> None:
        """Start again with open attempts as they were: nothing that was stored is cleared."""
        with (self.directory / OPEN_CALLS).open("r+b") as file:
            file.write(before)
        await self.start()

    def check(self) -> None:
        """The limit holds, and the account is the store and no less than what was billed."""
        stored = sum_payments(self.directory / "segments")
        assert self.billed <= self.limit
        assert self.account.totals == stored
        assert self.account.spent + self.account._reserved <= self.limit
        assert self.account.spent + self.account._reserved >= self.billed


STEPS: Sequence[str] = (
    "send",
    "send",
    "settle",
    "fail",
    "refuse",
    "retry",
    "cancel",
    "kill",
    "kill after storing",
    "kill before clearing losses",
)


@given(
    limit=st.integers(0, 60),
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 20), st.integers(0, 20)), max_size=25
    ),
)
@settings(deadline=None, max_examples=60)
def test_billed_is_within_the_limit_and_the_account_is_no_less(
    limit: int, steps: list[tuple[str, int, int]]
) -> None:
    async def main(directory: Path) -> PaidTotals:
        billing = Billing(directory, limit)
        await billing.start()
        for step in steps:
            await billing.step(*step)
            billing.check()
        await billing.start()
        billing.check()
        assert billing.account.totals.spent >= billing.billed
        return billing.account.totals

    with tempfile.TemporaryDirectory() as name:
        totals = asyncio.run(main(Path(name)))
        stored = list(read_payments(Path(name) / "segments"))
        assert totals.spent == sum(one.cost for one in stored)
        assert len({one.attempt for one in stored}) == len(stored)
