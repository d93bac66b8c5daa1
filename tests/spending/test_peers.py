"""Peers: copies of accounts, replicas that come and go, and servers that lose data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from adacompute.core.errors import DataError
from adacompute.spending.caps.accounts import (
    CEILING_SHARE,
    COPY_S,
    CapAccount,
    Entry,
    LeaseReply,
    LeaseRequest,
    exchange,
)
from adacompute.spending.caps.peers import (
    ANNOUNCE_S,
    CAPS,
    KEEP_S,
    RECOVERY,
    RECOVERY_S,
    REPLICAS,
    RESTART_S,
    Peers,
)
from adacompute.spending.registers import Reading, RegisterError, update
from test_support.memory_register import EMPTY, MemoryRegister
from test_support.simulated_time import simulated

STARTED_AT = 1_795_000_000.0
LIMIT = 1000


class Clock:
    """The clock of the server, which may be set back."""

    offset = STARTED_AT

    def __call__(self) -> float:
        return self.offset + asyncio.get_running_loop().time()


class Replica:
    """A replica that asks for leases without a file; it knows what it was granted."""

    def __init__(
        self, register: MemoryRegister, name: str, copies: dict[str, str] | None = None
    ) -> None:
        self.register, self.name = register, name
        self.peers = Peers(register, name, recovery_s=RECOVERY_S)
        for key, text in (copies or {}).items():
            self.peers.keep(key, text)
        self.own: dict[str, Entry] = {}
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> Replica:
        self.task = asyncio.create_task(self._run())
        await self.granted()
        return self

    async def granted(self) -> float:
        """Wait until leases are granted; return how long that took."""
        begun = asyncio.get_running_loop().time()
        while not self.peers.is_granted:
            await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() - begun < 200
        return asyncio.get_running_loop().time() - begun

    async def regained(self) -> float:
        """Wait until a restart is noticed, and over; return how long that took."""
        await asyncio.sleep(0.55)
        return 0.55 + await self.granted()

    def stop(self) -> None:
        """Stop without a word."""
        assert self.task is not None
        self.task.cancel()

    def go_on(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        self.stop()
        await self.peers.announce(has_left=True)

    async def refresh(self) -> None:
        await self.peers.refresh(
            lambda: {key: CapAccount({self.name: one}, LIMIT) for key, one in self.own.items()}
        )

    async def take(self, counter: str, amount: int) -> int:
        """Ask for a lease of exactly an amount; return what was granted."""

        def change(reading: Reading) -> tuple[str | None, LeaseReply | None]:
            if not self.peers.may_ask(reading.server):
                return None, None
            request = LeaseRequest(
                self.name,
                self.own.get(counter, Entry()),
                LIMIT,
                minimum=amount,
                wanted=amount,
                n_replicas=1 + len(self.peers.others),
                silent=self.peers.find_silent(0.0),
            )
            reply = exchange(CapAccount.from_json(reading.value), request, now=reading.now)
            return reply.account.to_json(), reply

        reply = await update(self.register, CAPS + counter, change)
        if reply is None or reply.status != "granted":
            return 0
        entry = reply.account.entries[self.name]
        self.own[counter] = Entry(entry.granted, entry.returned, entry.spent)
        self.peers.keep(CAPS + counter, reply.account.to_json())
        return amount

    async def take_all(self, counter: str) -> int:
        """Take what can be had within some seconds."""
        found = 0
        for _ in range(60):
            for amount in (256, 64, 16, 4, 1):
                while await self.take(counter, amount):
                    found += amount
            await asyncio.sleep(0.5)
        return found

    async def _run(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(0.5)


class InterruptedRegister(MemoryRegister):
    """A register with which something happens just before one of its next calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(is_local=False, clock=clock)
        self.at_call = -1
        self.interrupt: Callable[[], None] = lambda: None

    def _call(self) -> None:
        super()._call()
        if self.n_calls == self.at_call:
            self.interrupt()


async def start(
    n_replicas: int, *, clock: Callable[[], float] | None = None
) -> tuple[InterruptedRegister, list[Replica]]:
    """Start replicas on a new register, and wait until all know all."""
    register = InterruptedRegister(clock or Clock())
    replicas = [Replica(register, f"r{i}") for i in range(n_replicas)]
    await asyncio.gather(*(one.start() for one in replicas))
    await asyncio.sleep(2)
    return register, replicas


def is_granted(replica: Replica) -> bool:
    """Whether a replica can ask for leases now."""
    return replica.peers.is_granted


def account(register: MemoryRegister, counter: str) -> CapAccount:
    return CapAccount.from_json(register.values[CAPS + counter][0])


def put(register: MemoryRegister, key: str, text: str) -> None:
    """Write a value as somebody else does."""
    register.number += 1
    register.values.pop(key, None)
    register.values[key] = text, register.number


@simulated
async def test_a_replica_copies_what_others_change_and_who_there_is() -> None:
    _, (one, two) = await start(2)
    assert await one.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    assert two.peers.accounts["a"].held == 10
    assert (one.peers.others, two.peers.others) == (["r1"], ["r0"])


@simulated
async def test_a_replica_that_leaves_is_neither_counted_nor_waited_for() -> None:
    register, (one, two) = await start(2)
    await two.leave()
    await asyncio.sleep(1)
    assert one.peers.others == []
    register.restart()
    await asyncio.sleep(0.6)
    assert is_granted(one)


@simulated
async def test_a_replica_does_not_leave_a_server_that_it_has_not_reported_to() -> None:
    register, (one, two) = await start(2)
    assert await two.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    two.stop()
    register.restart(EMPTY)
    await two.peers.announce(has_left=True)  # it was emptied just before
    await asyncio.sleep(RESTART_S + 1)
    assert not is_granted(one)
    assert list(one.peers.waits_for) == ["r1"]


@simulated
async def test_a_restart_with_data_is_over_when_all_have_reported() -> None:
    register, replicas = await start(3)
    register.restart()
    await asyncio.sleep(1.1)
    assert all(one.peers.is_granted for one in replicas)


@simulated
async def test_a_silent_replica_is_waited_for_for_a_moment_and_counted_at_its_ceiling() -> None:
    register, (one, two) = await start(2)
    assert await two.take("a", 20) == 20
    await asyncio.sleep(COPY_S)
    two.stop()
    register.restart()
    await asyncio.sleep(RESTART_S - 0.3)
    assert not is_granted(one)
    await asyncio.sleep(1)
    assert is_granted(one)
    ceiling = account(register, "a").entries["r1"].next_ceiling
    assert account(register, "a").held == ceiling > 20
    two.go_on()
    await two.granted()
    assert two.own["a"].granted == 20  # the rest is given back by leases


@pytest.mark.parametrize("lost", ["all", "some"])
@simulated
async def test_a_server_that_lost_data_gets_them_back_from_those_that_know(lost: str) -> None:
    register, (one, two, three) = await start(3)
    assert await one.take("a", 10) == 10
    copy = register.copy()
    assert await two.take("a", 20) == 20
    assert await two.take("b", 30) == 30
    await asyncio.sleep(COPY_S)
    register.restart(EMPTY if lost == "all" else copy)
    assert await three.regained() < RESTART_S + 1  # all have reported
    assert (account(register, "a").held, account(register, "b").held) == (30, 30)
    assert set(three.peers.accounts) == {"a", "b"}


@simulated
async def test_a_file_that_became_older_under_the_same_identity_is_noticed() -> None:
    register, (one, two) = await start(2)
    copy = register.copy()
    assert await one.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    before = register._server
    register.restart(copy)
    register._server = before
    await asyncio.sleep(0.6)
    assert not (one.peers.is_granted and two.peers.is_granted)
    await one.granted()
    assert account(register, "a").held == 10


@simulated
async def test_what_was_given_back_is_restored_too() -> None:
    register, (one, two) = await start(2)
    assert await one.take("a", 10) == 10
    copy = register.copy()
    one.own["a"] = Entry(granted=10, returned=8, spent=2)
    put(register, CAPS + "a", account(register, "a").merge({"r0": one.own["a"]}).to_json())
    await asyncio.sleep(COPY_S)
    register.restart(copy)
    await two.regained()
    assert (account(register, "a").held, account(register, "a").spent) == (2, 2)


@simulated
async def test_after_a_loss_silent_replicas_are_waited_for_and_then_counted() -> None:
    register, (one, two, three) = await start(3)
    assert await two.take("a", 20) == 20
    await asyncio.sleep(COPY_S)
    known = account(register, "a").entries["r1"].next_ceiling
    assert await two.take("a", known - 20) == known - 20  # nobody else has seen this
    assert await two.take("b", LIMIT // CEILING_SHARE) > 0  # nor that this cap is used
    two.stop()
    register.restart(EMPTY)
    await asyncio.sleep(RECOVERY_S - 1)
    assert not is_granted(one)
    assert 0 < one.peers.wait_s < 2
    await asyncio.sleep(2)
    assert is_granted(one)
    for counter in ("a", "b"):
        taken = [await other.take_all(counter) for other in (one, three)]
        assert sum(taken) + two.own[counter].held <= LIMIT
        assert sum(taken) > LIMIT // 4


@simulated
async def test_a_silent_replica_that_returns_gives_back_what_it_does_not_use() -> None:
    register, (one, two) = await start(2)
    assert await one.take("a", 20) == 20
    await asyncio.sleep(COPY_S)
    two.stop()
    register.restart(EMPTY)
    await asyncio.sleep(RECOVERY_S + 2)
    assert account(register, "a").entries["r1"].held == LIMIT // CEILING_SHARE
    two.go_on()
    await two.regained()
    assert account(register, "a").entries["r1"].held == 0


@simulated
async def test_a_second_restart_during_a_recovery_forgets_nobody() -> None:
    register, (one, two, _) = await start(3)
    assert await two.take("a", 20) == 20
    await asyncio.sleep(COPY_S)
    two.stop()
    register.is_away = True
    await _pass(100, replicas=[one, _])
    register.restart(EMPTY)
    await asyncio.sleep(20)
    assert list(one.peers.waits_for) == ["r1"]
    register.restart(EMPTY)
    await asyncio.sleep(20)
    late = await _join(register, "late")
    assert list(late.peers.waits_for) == list(one.peers.waits_for) == ["r1"]
    register.restart()
    await asyncio.sleep(RECOVERY_S + 2)
    assert account(register, "a").entries["r1"].held > 20


async def _pass(seconds: float, *, replicas: list[Replica]) -> None:
    """Let an outage pass: tasks end at its begin, and start again at its end."""
    for one in replicas:
        one.stop()
        with pytest.raises(RegisterError):
            await one.refresh()
    await asyncio.sleep(seconds)
    for one in replicas:
        one.go_on()


async def _join(register: MemoryRegister, name: str) -> Replica:
    """Start a replica, without waiting until leases are granted."""
    found = Replica(register, name)
    found.go_on()
    await asyncio.sleep(0.1)
    return found


@pytest.mark.parametrize("is_known", [False, True])
@simulated
async def test_a_late_replica_that_knows_more_makes_all_report_again(is_known: bool) -> None:  # noqa: FBT001 - a case
    register, (one, two) = await start(2)
    assert await one.take("a", 5) == 5
    await asyncio.sleep(COPY_S)
    if is_known:  # the other one finds a loss, but does not know the last change
        two.stop()
        for _ in range(3):
            await asyncio.sleep(COPY_S)
            assert await one.take("a", 12) == 12
    else:
        await two.leave()
        await asyncio.sleep(1)
    one.stop()
    register.restart(EMPTY)
    if is_known:
        two.go_on()
        await two.regained()
    else:
        two = await Replica(register, "new").start()
        assert await two.take("a", 100) == 100
    before = register._server
    one.go_on()
    await asyncio.sleep(3 * RESTART_S)
    assert register._server != before
    assert is_granted(one)
    assert is_granted(two)
    assert account(register, "a").entries["r0"].granted >= one.own["a"].granted
    before = register._server
    await asyncio.sleep(30)
    assert register._server == before  # this ends


@simulated
async def test_what_a_late_replica_knows_of_a_silent_one_is_counted() -> None:
    register, (one, two, three) = await start(3)
    assert await three.take("a", 10) == 10
    await asyncio.sleep(1)
    one.stop()  # it knows only this
    for _ in range(8):
        await three.take("a", 60)
        await asyncio.sleep(1)
    ceiling = account(register, "a").entries["r2"].next_ceiling
    two.stop()
    three.stop()
    assert two.peers.accounts["a"].entries["r2"].next_ceiling == ceiling
    register.restart(EMPTY)
    one.go_on()
    await asyncio.sleep(RECOVERY_S + 30)
    assert account(register, "a").entries["r2"].granted < ceiling
    two.go_on()
    await asyncio.sleep(RECOVERY_S + 2)
    assert is_granted(one)
    assert account(register, "a").entries["r2"].granted == ceiling


@simulated
async def test_a_new_replica_does_not_take_an_emptied_store_for_new_at_once() -> None:
    register, (one,) = await start(1)
    assert await one.take("a", 900) == 900
    await asyncio.sleep(0.1)
    register.restart(EMPTY)
    two = await _join(register, "new")
    assert not is_granted(two)
    await two.granted()
    assert await two.take_all("a") <= 100


@simulated
async def test_nor_does_one_whose_copies_are_old() -> None:
    register, (one, old) = await start(2)
    assert await one.take("a", 10) == 10
    await asyncio.sleep(1)
    await one.leave()
    await asyncio.sleep(1)
    await old.leave()
    two = await Replica(register, "r2").start()
    assert await two.take("a", 900) == 900
    await asyncio.sleep(0.1)
    register.restart(EMPTY)
    old.go_on()
    await asyncio.sleep(0.05)
    assert not is_granted(old)
    await old.granted()
    assert await old.take_all("a") <= 90


@pytest.mark.parametrize("before", [None, EMPTY], ids=["kept", "emptied"])
@pytest.mark.parametrize("n_calls", range(1, 24))
@simulated
async def test_a_server_may_lose_its_data_at_any_moment_of_a_report(
    n_calls: int, before: tuple[int, dict[str, tuple[str, int]]] | None
) -> None:
    register, (one, two, three) = await start(3)
    for replica in (one, two, three):
        assert await replica.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    three.stop()
    register.restart(before)
    register.at_call = register.n_calls + n_calls
    register.interrupt = lambda: register.restart(EMPTY)
    await asyncio.sleep(RECOVERY_S - 1)
    assert not is_granted(one)
    assert not is_granted(two)
    await asyncio.sleep(4)
    assert is_granted(one)
    assert is_granted(two)
    found = account(register, "a").entries
    assert found["r0"].held == found["r1"].held == 10
    assert found["r2"].held == found["r2"].next_ceiling > 10


@pytest.mark.parametrize("n_calls", range(1, 8))
@simulated
async def test_a_loss_that_is_found_while_a_recovery_ends_prolongs_it(n_calls: int) -> None:
    register, (one, two) = await start(2)
    assert await two.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    two.stop()
    is_found = False

    def find_loss() -> None:
        nonlocal is_found
        server, since, _, lost_at, is_complete, silent = json.loads(register.values[RECOVERY][0])
        is_found = not is_complete
        if is_found:
            found = server, since, True, lost_at, is_complete, silent
            put(register, RECOVERY, json.dumps(found))

    register.restart()
    register.interrupt = find_loss
    await asyncio.sleep(RESTART_S - 0.1)
    register.at_call = register.n_calls + n_calls
    await asyncio.sleep(20)
    assert is_granted(one) != is_found
    await asyncio.sleep(RECOVERY_S)
    assert is_granted(one)


@simulated
async def test_replicas_that_only_an_outdated_one_takes_for_alive_are_not_waited_for() -> None:
    clock = Clock()
    register, (one, old, dead) = await start(3, clock=clock)
    assert await one.take("a", 10) == 10
    await asyncio.sleep(1)
    dead.stop()
    await old.leave()
    clock.offset += 86_400
    await asyncio.sleep(20.1)
    register.restart(EMPTY)
    old.go_on()
    assert await one.regained() < RESTART_S + 1
    assert "r2" not in account(register, "a").entries


@simulated
async def test_a_new_replica_waits_until_others_know_it() -> None:
    register, (one,) = await start(1)
    two = Replica(register, "new")
    two.go_on()
    waited_s = await two.granted()
    assert COPY_S <= waited_s <= COPY_S + 1
    assert one.peers.others == ["new"]
    two.stop()
    await two.peers.refresh(dict)
    two = Replica(register, "new")  # it was killed, and starts again: it is known
    two.go_on()
    assert await two.granted() < 0.5


@simulated
async def test_a_replica_that_joined_is_not_blocked_by_a_clock_that_is_set_back() -> None:
    clock = Clock()
    _, (one, _) = await start(2, clock=clock)
    assert await one.take("a", 10) == 10
    clock.offset -= 3600
    await asyncio.sleep(1)
    assert is_granted(one)
    assert await one.take_all("a") > LIMIT // 2


@simulated
async def test_replicas_that_died_before_a_restart_cost_a_new_one_nothing() -> None:
    register, replicas = await start(4)
    for one in replicas:
        assert await one.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    for one in replicas[1:]:
        one.stop()
    await asyncio.sleep(120)
    await replicas[0].leave()
    register.restart()
    new = await Replica(register, "new").start()
    assert account(register, "a").held == 40
    assert await new.take_all("a") == LIMIT - 40


@simulated
async def test_copies_of_ended_periods_and_of_replicas_that_are_gone_are_dropped() -> None:
    clock = Clock()
    register, (one, two) = await start(2, clock=clock)
    for counter in ("a/2026-11-10", "b/all"):
        assert await one.take(counter, 1) == 1
    await asyncio.sleep(ANNOUNCE_S + 1)
    assert list(one.peers.accounts) == ["b/all"]
    assert one.peers.unsaved[CAPS + "a/2026-11-10"] is None
    del one.own["a/2026-11-10"]
    two.stop()
    clock.offset += KEEP_S
    await asyncio.sleep(ANNOUNCE_S + 1)
    assert one.peers.unsaved[REPLICAS + "r1"] is None
    register.restart(EMPTY)
    await one.regained()
    assert {CAPS + "b/all", REPLICAS + "r0", RECOVERY} == set(register.values)


@simulated
async def test_copies_that_were_saved_restore_an_emptied_store() -> None:
    register, (one,) = await start(1)
    assert await one.take("a", 10) == 10
    await asyncio.sleep(COPY_S)
    saved = {key: text for key, text in one.peers.unsaved.items() if text is not None}
    one.stop()
    register.restart(EMPTY)
    again = Replica(register, "r0", saved)
    again.go_on()
    await again.granted()
    assert account(register, "a").held == 10


@simulated
async def test_only_what_was_saved_is_forgotten() -> None:
    _, (one,) = await start(1)
    assert await one.take("a", 10) == 10
    saved = dict(one.peers.unsaved)
    assert await one.take("a", 10) == 10
    one.peers.forget_saved(saved)
    assert set(one.peers.unsaved) == {CAPS + "a"}


HOSTILE = [
    "",
    "no JSON",
    "null",
    "[]" * 2,
    "[" * 100_000,
    '["now", "s", false]',
    '[NaN, "s", false]',
    '[1e999, "s", false]',
    '[1.0, "s", 1]',
    "[1.0, null, false]",
    "[" + "1," * 100_000 + "1]",
    '{"seen_at": 1}',
    "[1.0]",
    '["s", 1.0, true, 1.0, true, []]',
    '["s", 1.0, true, 1.0, true, {"r": "now"}]',
    '["s", 1.0, true, NaN, true, {}]',
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", [REPLICAS + "x", RECOVERY])
@simulated
async def test_values_that_cannot_be_read_raise_an_error_until_they_are_repaired(
    key: str, text: str
) -> None:
    register, (one,) = await start(1)
    one.stop()
    before = register.values.get(key, (json.dumps((1.0, "s", False)), 0))[0]
    put(register, key, text)
    put(register, CAPS + "a", CapAccount({"x": Entry(5)}, LIMIT).to_json())
    for _ in range(2):
        with pytest.raises(DataError):
            await one.refresh()
    put(register, key, before)
    await one.refresh()
    assert one.peers.accounts["a"].held == 5
    assert is_granted(one)


@simulated
async def test_values_of_others_are_no_copies() -> None:
    register, (one,) = await start(1)
    put(register, "pace/x", "1")
    await asyncio.sleep(1)
    assert "pace/x" not in one.peers.unsaved


@simulated
async def test_many_accounts_are_read_in_pages() -> None:
    register, (one,) = await start(1)
    for i in range(2_500):
        put(register, f"{CAPS}{i}", CapAccount({"x": Entry(i + 1)}, LIMIT).to_json())
    await asyncio.sleep(1)
    assert len(one.peers.accounts) == 2_500
    register.restart(EMPTY)
    await one.regained()
    assert account(register, "2499").held == 2_500
