"""Accounts: what is granted never exceeds a cap, and others know a bound on it in advance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.spending.caps.accounts import (
    CEILING_CALLS,
    CEILING_SHARE,
    COPY_S,
    LEASE_SHARE,
    OPERATOR,
    CapAccount,
    Entry,
    LeaseReply,
    LeaseRequest,
    exchange,
)

LIMIT = 1_600
NAMES = ("a", "b", "c")


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    granted = draw(st.integers(0, 1000))
    returned = draw(st.integers(0, granted))
    spent = draw(st.integers(0, granted - returned))
    ceiling = draw(st.integers(0, 1000))
    next_ceiling = draw(st.integers(ceiling, 2000))
    return Entry(granted, returned, spent, ceiling, next_ceiling, draw(st.integers(0, 99)) / 8)


tables = st.dictionaries(st.sampled_from([*NAMES, OPERATOR, "é/1"]), entries(), max_size=5)
accounts = st.builds(CapAccount, tables, st.integers(0, 2**62))


@given(tables, tables, tables)
def test_merge_is_commutative_associative_and_idempotent(
    one: dict[str, Entry], two: dict[str, Entry], three: dict[str, Entry]
) -> None:
    empty = CapAccount()
    assert empty.merge(one).merge(two) == empty.merge(two).merge(one)
    grouped = empty.merge(one).merge(empty.merge(two).merge(three).entries)
    assert empty.merge(one).merge(two).merge(three) == grouped
    assert empty.merge(one).merge(one).entries == one


@given(accounts, accounts)
def test_an_account_contains_those_that_were_merged_into_it(
    one: CapAccount, two: CapAccount
) -> None:
    assert one.merge(two.entries).contains(two)


def test_a_lost_grant_and_a_lost_ceiling_are_found() -> None:
    stored = CapAccount({"a": Entry(10, 0, 0, 20, 30)}, LIMIT)
    assert stored.contains(CapAccount({"a": Entry(10, 5, 5, 20, 30)}))
    assert not stored.contains(CapAccount({"a": Entry(11, 0, 0, 20, 30)}))
    assert not stored.contains(CapAccount({"a": Entry(10, 0, 0, 20, 31)}))
    assert not stored.contains(CapAccount({"b": Entry(1)}))


@given(accounts)
def test_json_keeps_an_account(account: CapAccount) -> None:
    text = account.to_json()
    assert CapAccount.from_json(text) == account
    assert "\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "{}",
        '{"entries":{"a":[1,2,3,4,5]},"limit":1}',
        '{"entries":{"a":[1,2,3,4,5,6,7]},"limit":1}',
        '{"entries":{"a":["1",0,0,0,0,0]},"limit":1}',
        '{"entries":{"a":[1.5,0,0,0,0,0]},"limit":1}',
        '{"entries":{"a":[true,0,0,0,0,0]},"limit":1}',
        '{"entries":[],"limit":1}',
        '{"entries":{},"limit":Infinity}',
    ],
)
def test_other_texts_are_no_accounts(text: str) -> None:
    with pytest.raises(DataError):
        CapAccount.from_json(text)


def ask(account: CapAccount, name: str = "a", *, now: float = 0.0, **needs: int) -> LeaseReply:
    """Ask for a lease, with the entry that the account has."""
    entry = account.entries.get(name, Entry())
    request = replace(LeaseRequest(name, entry, LIMIT), **needs)  # type: ignore[arg-type]
    return exchange(account, request, now=now)


@given(st.data())
def test_repeated_and_reordered_requests_never_exceed_the_limit(data: st.DataObject) -> None:
    account, now = CapAccount(), 0.0
    sent = [LeaseRequest(name, Entry(), LIMIT, 10, 10) for name in NAMES]
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.5, COPY_S]))
        request = data.draw(st.sampled_from(sent))
        before = account
        reply = exchange(account, request, now=now)
        account = reply.account
        assert account.held <= LIMIT
        assert account.held - before.held <= reply.amount
        entry = account.entries[request.replica]
        returned = data.draw(st.integers(entry.returned, entry.granted))
        minimum, wanted = (data.draw(st.integers(0, 900)) for _ in range(2))
        own = Entry(entry.granted, returned, 0)
        n_replicas = data.draw(st.integers(1, 3))
        sent.append(
            LeaseRequest(request.replica, own, LIMIT, minimum, wanted, n_replicas=n_replicas)
        )


@given(st.data())
def test_copies_of_others_bound_what_a_replica_is_granted(data: st.DataObject) -> None:
    """Another replica copies the account at most COPY_S before any grant."""
    account, now = CapAccount(), 0.0
    history: list[tuple[float, CapAccount]] = [(0.0, account)]
    for _ in range(data.draw(st.integers(1, 60))):
        now += data.draw(st.sampled_from([0.0, 0.1, 0.7, COPY_S, 5.0]))
        minimum, wanted = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 900))
        account = ask(account, now=now, minimum=minimum, wanted=wanted, n_replicas=3).account
        history.append((now, account))
        copied = data.draw(st.sampled_from([one for one in history if one[0] >= now - COPY_S]))[1]
        if copied is account:
            continue
        counted = replace(copied, limit=LIMIT).count_silent(["a"])
        assert account.entries["a"].granted <= counted.entries["a"].granted


def test_a_lease_is_a_share_of_what_is_left_or_one_call() -> None:
    account = CapAccount({"b": Entry(800)}, LIMIT)
    for n_replicas in (1, 2, 5):
        share = 800 // (LEASE_SHARE * n_replicas)
        entry = Entry(ceiling=LIMIT, next_ceiling=LIMIT)
        known = account.merge({"a": entry})
        for minimum, wanted, granted in ((1, 900, share), (1, 7, 7), (300, 900, 300), (0, 9, 0)):
            reply = ask(known, minimum=minimum, wanted=wanted, n_replicas=n_replicas)
            assert (reply.status, reply.amount) == ("granted", granted)
        refused = ask(known, minimum=801, wanted=801, n_replicas=n_replicas)
        assert (refused.status, refused.amount, refused.account.held) == ("refused", 0, 800)


def test_a_large_first_call_waits_until_others_know_its_ceiling() -> None:
    first = LIMIT // CEILING_SHARE
    assert ask(CapAccount(), minimum=first, n_replicas=2).status == "granted"
    assert ask(CapAccount(), minimum=first + 1, n_replicas=1).status == "granted"
    waits = ask(CapAccount(), now=100.0, minimum=first + 1, n_replicas=2)
    assert waits.status == "waiting"
    assert waits.account.entries["a"].next_ceiling == LIMIT < CEILING_CALLS * first
    early = ask(waits.account, now=99.9 + COPY_S, minimum=first + 1, n_replicas=2)
    assert early.status == "waiting"
    late = ask(early.account, now=100.0 + COPY_S, minimum=first + 1, n_replicas=2)
    assert late.status == "granted"


def test_what_silent_replicas_may_hold_counts() -> None:
    account = CapAccount({"a": Entry(100, 50, 50, 120, 170), "b": Entry(10)}, LIMIT)
    counted = account.count_silent(["a", "c"])
    assert counted.entries["a"].held == 170 - 50
    assert counted.entries["c"].held == LIMIT // CEILING_SHARE
    assert counted.entries["b"] == account.entries["b"]
    new = exchange(CapAccount(), LeaseRequest("a", Entry(), LIMIT, 1, 1, silent=["c"]), now=0.0)
    assert new.account.entries["c"].held == LIMIT // CEILING_SHARE
    known = exchange(account, LeaseRequest("b", Entry(10), LIMIT, 1, 1, silent=["c"]), now=0.0)
    assert "c" not in known.account.entries


def test_what_a_replica_says_of_itself_is_newer_than_any_copy() -> None:
    stored = CapAccount({"a": Entry(20, 0, 5)}, LIMIT)
    request = LeaseRequest("a", Entry(40, 10, 25), LIMIT)
    own = exchange(stored, request, now=0.0).account.entries["a"]
    assert (own.granted, own.returned, own.spent) == (40, 10, 25)


def test_an_operator_can_only_raise_what_was_spent() -> None:
    account = CapAccount({"a": Entry(30, 0, 20)}, LIMIT)
    raised = account.set_spent(50)
    assert (raised.spent, raised.held) == (50, 60)
    assert raised.set_spent(10) == raised
    assert raised.set_spent(51).held == 61
