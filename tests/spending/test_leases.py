"""Leases: how large they are, what is given back, and what a reply changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adacompute.spending.caps.accounts import CapAccount, Entry, LeaseReply, LeaseRequest, exchange
from adacompute.spending.caps.counters import Counter
from adacompute.spending.caps.leases import FIRST_CALLS, LEASE_S, Lease
from adacompute.spending.caps.replica_file import ReplicaFile

LIMIT = 100_000
COUNTER = Counter("a", "tokens", LIMIT)


class Client:
    """One lease and the account that it is of; there are no other replicas unless said."""

    def __init__(self, file: ReplicaFile, lease_s: float = LEASE_S) -> None:
        self.file = file
        self.lease = Lease(file.add(COUNTER), lease_s=lease_s)
        self.account = CapAccount()

    def ask(self, minimum: int, wanted: int | None = None) -> int:
        """Ask for a lease, and adopt the reply; return what was granted."""
        lease = self.lease
        wanted = lease.wanted(minimum) if wanted is None else wanted
        request = LeaseRequest("me", lease.row.entry, lease.counter.limit, minimum, wanted)
        reply = exchange(self.account, request, now=0.0)
        self.account = reply.account
        self.adopt(reply)
        return reply.amount

    def adopt(self, reply: LeaseReply) -> None:
        self.lease.adopt(reply, "me", limit=self.lease.counter.limit)
        self.lease.confirm(self.lease.row.granted)

    def spend(self, rate: int, seconds: int) -> None:
        """Make calls of 10 at a rate, with a refresh twice per second."""
        for _ in range(2 * seconds):
            for _ in range(rate // 20):
                if not self.lease.take(10):
                    self.ask(10 - self.lease.left)
                    assert self.lease.take(10)
                self.lease.settle(10, 10)
            self.refresh()

    def refresh(self) -> None:
        self.lease.measure(0.5, 1)
        shortage = self.lease.shortage()
        self.ask(min(1, shortage), shortage)

    @property
    def held(self) -> int:
        return self.account.held


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ReplicaFile]:
    file = ReplicaFile.open(tmp_path)
    yield file
    file.close()


@pytest.mark.parametrize("lease_s", [10.0, 30.0])
@pytest.mark.parametrize("rate", [40, 200])
def test_a_lease_lasts_for_its_time_at_the_recent_rate(
    file: ReplicaFile, lease_s: float, rate: int
) -> None:
    client = Client(file, lease_s)
    client.spend(rate, 60)
    assert 0.7 * lease_s * rate <= client.lease.left <= 1.6 * lease_s * rate
    client.spend(rate // 2, 120)
    assert client.lease.left <= 1.6 * lease_s * rate // 2


def test_a_first_lease_is_for_a_few_calls(file: ReplicaFile) -> None:
    assert Client(file).ask(10) == FIRST_CALLS * 10


def test_requests_between_two_refreshes_double(file: ReplicaFile) -> None:
    client = Client(file)
    assert [client.ask(10) for _ in range(3)] == [80, 160, 320]
    client.lease.measure(0.5, 1)
    assert client.lease.wanted(10) == 80


def test_leases_shrink_as_the_cap_fills(file: ReplicaFile) -> None:
    client = Client(file)
    client.spend(1000, 30)
    sizes = []
    while client.account.spent < 0.97 * LIMIT:
        client.spend(1000, 1)
        sizes.append(client.lease.left / (LIMIT - client.account.spent))
    assert max(sizes) < 0.5
    assert client.held <= LIMIT


def test_an_idle_lease_is_kept_for_its_time_and_then_given_back(file: ReplicaFile) -> None:
    client = Client(file)
    client.spend(40, 30)
    client.ask(0)
    for _ in range(50):
        client.refresh()
    assert client.lease.left > 0
    for _ in range(20):
        client.refresh()
    assert client.held == client.lease.row.spent == 30 * 40
    assert client.lease.left == 0


def test_grants_that_this_replica_does_not_know_are_given_back(file: ReplicaFile) -> None:
    client = Client(file)
    client.ask(10)
    client.lease.take(10)
    client.lease.settle(10, 7)
    before = client.lease.left
    own = client.account.entries["me"]
    # Another grant, whose reply was lost, or a ceiling that was counted while it was silent.
    client.account = CapAccount({"me": replace(own, granted=own.granted + 500)}, LIMIT)
    assert client.ask(100, 100) == 100
    assert client.lease.left == before + 100
    client.ask(0)
    assert client.held == 7 + before + 100


def test_what_a_freed_row_spent_is_taken_over_and_not_given_back_again(file: ReplicaFile) -> None:
    client = Client(file)
    client.account = CapAccount({"me": Entry(granted=100, returned=90, spent=10)}, LIMIT)
    assert client.ask(20, 20) == 20
    assert (client.lease.left, client.lease.row.spent) == (20, 10)
    client.ask(0)
    assert client.held == 30


@pytest.mark.parametrize(
    ("granted", "returned", "spent"),
    [
        (100, 0, 100),
        (100, 30, 70),  # the file lacks that this was given back
        (150, 50, 100),  # and a grant that was given back before it could be used
        (150, 0, 100),  # and one that was not, or a ceiling
    ],
)
def test_after_a_crash_of_the_machine_everything_held_counts_as_spent(
    file: ReplicaFile, granted: int, returned: int, spent: int
) -> None:
    client = Client(file)
    row = client.lease.row
    row.set_granted(100)
    row.is_stale = True
    client.account = CapAccount({"me": Entry(granted, returned)}, LIMIT)
    client.ask(0)
    assert (row.used, row.spent, client.lease.left) == (spent, spent, 0)
    client.ask(0)
    assert client.held == spent


@pytest.mark.parametrize("amount", [50, 10**9])
def test_no_more_is_given_back_than_is_left(file: ReplicaFile, amount: int) -> None:
    client = Client(file)
    client.ask(10, 30)
    assert client.lease.take(20)
    client.lease.give_back(amount)
    assert (client.lease.left, client.lease.row.entry.held) == (0, 20)


def test_a_cap_of_which_more_is_held_than_it_has_gives_nothing_back_twice(
    file: ReplicaFile,
) -> None:
    client = Client(file)
    client.ask(10, 30)
    assert client.lease.take(20)
    client.account = client.account.merge({"other": Entry(granted=2 * LIMIT)})
    for _ in range(3):
        client.refresh()
    assert client.lease.row.entry.held == 20


def test_an_overrun_that_the_lease_does_not_cover_counts_as_granted(file: ReplicaFile) -> None:
    client = Client(file)
    client.ask(10, 10)
    assert client.lease.take(10)
    assert client.lease.settle(10, 25) == 15
    client.ask(0)
    assert (client.held, client.account.spent, client.lease.left) == (25, 25, 0)


def test_a_limit_that_is_lowered_during_a_request_applies_to_its_grant(file: ReplicaFile) -> None:
    client = Client(file)
    client.ask(10, 10)
    request = LeaseRequest("me", client.lease.row.entry, LIMIT, 100, 100)
    reply = exchange(client.account, request, now=0.0)
    client.lease.set_limit(replace(COUNTER, limit=50))
    client.lease.adopt(reply, "me", limit=LIMIT)
    client.lease.confirm(client.lease.row.granted)
    assert client.lease.left == 0


def test_only_leases_of_replicas_that_run_may_be_returned(file: ReplicaFile) -> None:
    lease = Client(file).lease
    lease.account = CapAccount({"a": Entry(100, 20, 50), "b": Entry(LIMIT - 90)}, LIMIT)
    assert lease.may_be_returned(40, ["a", "unknown"])  # 10 are left
    assert not lease.may_be_returned(41, ["a"])


def test_what_was_spent_is_sent_seldom_unless_the_cap_is_nearly_full(file: ReplicaFile) -> None:
    client = Client(file)
    client.spend(20, 60)

    def sends() -> bool:
        assert client.lease.take(10)
        client.lease.settle(10, 10)
        client.lease.measure(0.5, 1)
        must_send = client.lease.must_send(now=False)
        if must_send:
            client.lease.is_changed = False
            client.ask(0)
        return must_send

    assert 1 <= sum(sends() for _ in range(21)) <= 3
    client.account = client.account.merge({"other": Entry(granted=92 * LIMIT // 100)})
    client.ask(0)
    assert all(sends() for _ in range(3))
