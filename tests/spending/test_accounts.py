"""Accounts: caps hold whatever replicas, messages and the server do, within what is promised.

``Caps`` runs replicas against one server as ``registers.update`` does: a replica reads the
account, computes the new one and replaces it only if neither the account nor the server has changed
since. Replies get lost, replicas die and come back, and the server restarts with all its data, none
or an old copy. Replicas that are alive send their copy once per second, and one that was alive when
the account was lost stays so until it is complete again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.spending.accounts import (
    ALIVE_S,
    MAX_OUTAGE_S,
    OPERATOR,
    RECOVERY_S,
    CapAccount,
    Entry,
    LeaseReply,
    LeaseRequest,
    Recovery,
    exchange,
    set_spent,
)

Action = tuple[str, tuple[object, ...]]

LIMIT = 100
NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)
amounts = st.integers(1, 60)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    granted = draw(st.integers(0, 1000))
    returned = draw(st.integers(0, granted))
    spent = draw(st.integers(0, granted - returned))
    return Entry(granted, returned, spent, draw(st.integers(0, 10**9)) / 1000)


tables = st.dictionaries(st.sampled_from([*NAMES, OPERATOR, "é/1"]), entries(), max_size=5)


@st.composite
def accounts(draw: st.DrawFn) -> CapAccount:
    recovery = None
    if draw(st.booleans()):
        started_at, lost_at = (draw(st.integers(0, 10**6)) / 8 for _ in range(2))
        recovery = Recovery(started_at, "s", draw(st.frozensets(names)), lost_at)
    return CapAccount(draw(tables), draw(st.integers(0, 99)), draw(st.text(max_size=3)), recovery)


@given(tables, tables, tables)
def test_merge_is_commutative_associative_and_idempotent(
    one: dict[str, Entry], two: dict[str, Entry], three: dict[str, Entry]
) -> None:
    empty = CapAccount()
    assert empty.merge(one).merge(two) == empty.merge(two).merge(one)
    grouped = empty.merge(one).merge(empty.merge(two).merge(three).entries)
    assert empty.merge(one).merge(two).merge(three) == grouped
    assert empty.merge(one).merge(one).entries == one


@given(accounts())
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
        '{"entries":{"a":[1,2,3,4,5]},"number":1,"server":""}',
        '{"entries":{"a":["1",0,0,0]},"number":1,"server":""}',
        '{"entries":{"a":[1.5,0,0,0]},"number":1,"server":""}',
        '{"entries":[],"number":1,"server":""}',
        '{"entries":{},"number":Infinity,"server":""}',
        '{"entries":{},"number":1,"server":"","recovery":[1]}',
        '{"entries":{},"number":1,"server":"","recovery":"abcd"}',
    ],
)
def test_other_texts_are_no_accounts(text: str) -> None:
    with pytest.raises(DataError):
        CapAccount.from_json(text)


@dataclass
class Replica:
    """What a replica has on its disk, and whether it runs."""

    name: str
    entry: Entry = field(default_factory=Entry)
    known: CapAccount | None = None
    server: str = ""
    alive: bool = True

    def request(self, minimum: int = 0, wanted: int = 0) -> LeaseRequest:
        return LeaseRequest(
            self.name, self.entry, LIMIT, minimum, wanted, self.known, server=self.server
        )

    def adopt(self, reply: LeaseReply, server: str) -> None:
        self.entry = self.entry.merge(reply.account.entries[self.name])
        self.known = reply.account
        if reply.account.recovery is None:
            self.server = server


@dataclass
class Message:
    """A replacement on its way to the server."""

    sender: str
    old: str | None
    server: str
    reply: LeaseReply


class Caps:
    """Replicas, the server, and messages between them; actions that make no sense do nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.n_restarts = 0
        self.stored: str | None = None
        self.snapshot: str | None = None
        self.replicas = {name: Replica(name) for name in NAMES[:2]}
        self.messages: list[Message] = []
        self.operator_acted = False
        self.witnesses = set(self.replicas)
        self.wait(RECOVERY_S + 1)

    @property
    def server(self) -> str:
        return f"server {self.n_restarts}"

    @property
    def account(self) -> CapAccount:
        return CapAccount.from_json(self.stored) if self.stored else CapAccount()

    @property
    def held(self) -> int:
        """What replicas really may have spent."""
        return sum(one.entry.held for one in self.replicas.values())

    def is_alive(self, name: str) -> bool:
        return name in self.replicas and self.replicas[name].alive

    def has_others(self, name: str) -> bool:
        """Whether another replica is alive that was so when the account was lost."""
        return any(self.is_alive(one) for one in self.witnesses - {name})

    @property
    def is_complete(self) -> bool:
        account = self.account
        return account.recovery is None and account.server == self.server

    def compute(self, replica: Replica, minimum: int = 0, wanted: int = 0) -> Message:
        stored = None if self.stored is None else self.account
        request = replica.request(minimum, wanted)
        reply = exchange(stored, request, server=self.server, now=self.now)
        return Message(replica.name, self.stored, self.server, reply)

    def deliver(self, message: Message) -> bool:
        if (message.old, message.server) != (self.stored, self.server):
            return False
        self.stored = message.reply.account.to_json()
        return True

    def exchange(self, replica: Replica, minimum: int = 0, wanted: int = 0) -> None:
        message = self.compute(replica, minimum, wanted)
        assert self.deliver(message)
        replica.adopt(message.reply, self.server)

    def wait(self, seconds: float) -> None:
        """Let time pass; replicas that are alive send their copy once per second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self.refresh()

    def refresh(self) -> None:
        for replica in self.replicas.values():
            if replica.alive:
                self.exchange(replica)

    def ask(self, name: str, minimum: int, wanted: int) -> None:
        """Take a lease; another replica sees the first one before anything else happens."""
        if self.is_alive(name) and self.has_others(name):
            replica = self.replicas[name]
            is_first = replica.entry.held == replica.entry.spent
            self.exchange(replica, minimum, wanted)
            if is_first:
                self.refresh()

    def send(self, name: str, minimum: int, wanted: int) -> None:
        """Send a message whose sender does not wait for the reply any more."""
        if self.is_alive(name):
            self.messages.append(self.compute(self.replicas[name], minimum, wanted))

    def arrive(self, number: int, is_repeated: bool) -> None:  # noqa: FBT001
        if self.messages:
            message = self.messages[number % len(self.messages)]
            if not is_repeated:
                self.messages.remove(message)
            self.deliver(message)

    def spend(self, name: str, percent: int) -> None:
        if self.is_alive(name):
            entry = self.replicas[name].entry
            more = percent * (entry.held - entry.spent) // 100
            self.replicas[name].entry = replace(entry, spent=entry.spent + more)

    def give_back(self, name: str, percent: int) -> None:
        if self.is_alive(name):
            entry = self.replicas[name].entry
            more = percent * (entry.held - entry.spent) // 100
            self.replicas[name].entry = replace(entry, returned=entry.returned + more)

    def kill(self, name: str) -> None:
        if self.is_alive(name) and self.has_others(name):
            self.replicas[name].alive = False

    def start(self, name: str) -> None:
        """Start a new replica, or an old one with what is on its disk; the others see it."""
        replica = self.replicas.setdefault(name, Replica(name))
        replica.alive = True
        self.exchange(replica)
        self.refresh()

    def save(self) -> None:
        self.snapshot = self.stored

    def restart(self, data: str, seconds: float) -> None:
        if self.is_complete:
            self.witnesses = {name for name in self.replicas if self.is_alive(name)}
        self.n_restarts += 1
        self.now += seconds
        if data != "kept":
            self.stored = self.snapshot if data == "snapshot" else None

    def crash(self, name: str, minimum: int, data: str, seconds: float) -> None:
        """Kill a replica that has just been granted a lease, and the server."""
        self.ask(name, minimum, minimum)
        self.kill(name)
        self.restart(data, seconds)

    def operate(self) -> None:
        """End a recovery; the operator counts leases as spent."""
        if self.account.recovery is not None:
            self.operator_acted = True
            account = set_spent(self.account, self.held, server=self.server, now=self.now)
            self.stored = account.to_json()

    def check(self) -> None:
        assert self.held <= LIMIT
        account = self.account
        if self.is_complete:
            self.witnesses |= {name for name in self.replicas if self.is_alive(name)}
            assert account.held >= self.held
            assert account.held <= LIMIT or self.operator_acted
        for entry in (one.entry for one in self.replicas.values()):
            assert 0 <= entry.spent <= entry.held


WEIGHTS = {
    "ask": 6,
    "wait": 4,
    "start": 4,
    "kill": 2,
    "give_back": 2,
    "crash": 2,
    "send": 2,
    "arrive": 2,
    "restart": 1,
    "spend": 1,
    "save": 1,
}


def choose(rng: random.Random, weights: dict[str, int]) -> Action:
    """Choose an action; hypothesis itself would try many that hardly differ."""
    (action,) = rng.choices(list(weights), list(weights.values()))
    name, amount, wanted = rng.choice(NAMES), rng.randint(1, 60), rng.randint(1, 60)
    failure = rng.choice(["kept", "empty", "snapshot"]), rng.choice([0.0, 0.5, 5.0, 60.0])
    arguments: dict[str, tuple[object, ...]] = {
        "ask": (name, amount, wanted),
        "send": (name, amount, wanted),
        "wait": (rng.choice([0.2, 1.0, 4.0, 15.0]),),
        "spend": (name, rng.randint(0, 100)),
        "give_back": (name, rng.choice([1, 50, 100])),
        "arrive": (rng.randrange(10), rng.random() < 0.5),
        "crash": (name, amount, *failure),
        "restart": failure,
        "kill": (name,),
        "start": (name,),
    }
    return action, arguments.get(action, ())


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1))
def test_replicas_never_hold_more_than_the_limit(seed: int) -> None:
    run(seed, WEIGHTS)


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_caps_hold_when_an_operator_ends_recoveries(seed: int) -> None:
    run(seed, {**WEIGHTS, "operate": 1})


def run(seed: int, weights: dict[str, int]) -> None:
    rng, caps = random.Random(seed), Caps()
    for _ in range(40):
        action, arguments = choose(rng, weights)
        note(f"{caps.now:.1f} {action}{arguments}")
        getattr(caps, action)(*arguments)
        caps.check()


def complete(*replicas: str, server: str = "s", now: float = 0.0) -> CapAccount:
    """Return an account in which each replica has leased 20 and spent 5."""
    entries = {name: Entry(20, 0, 5, now) for name in replicas}
    return CapAccount(entries, number=len(replicas), server=server)


def ask(
    stored: CapAccount | None,
    replica: str,
    *,
    server: str = "s",
    now: float = 0.0,
    minimum: int = 0,
) -> LeaseReply:
    """Send what a replica knows that has copied ``complete("a", "b", "c")``."""
    known = complete("a", "b", "c", now=0.0)
    request = LeaseRequest(replica, known.entries[replica], LIMIT, minimum, minimum, known, "s")
    return exchange(stored, request, server=server, now=now)


@given(st.data())
def test_repeated_and_reordered_requests_never_exceed_the_limit(data: st.DataObject) -> None:
    account = CapAccount(server="s")
    sent = [LeaseRequest(name, Entry(), LIMIT, 10, 10, server="s") for name in NAMES]
    for now in range(data.draw(st.integers(1, 40))):
        request = data.draw(st.sampled_from(sent))
        before = account
        reply = exchange(account, request, server="s", now=float(now))
        account = reply.account
        assert account.held <= LIMIT
        assert account.held - before.held <= reply.amount
        entry = account.entries[request.replica]
        returned = data.draw(st.integers(entry.returned, entry.granted))
        own = Entry(entry.granted, returned, 0)
        minimum, wanted = data.draw(st.integers(0, 60)), data.draw(amounts)
        sent.append(LeaseRequest(request.replica, own, LIMIT, minimum, wanted, account, "s"))


def test_the_size_of_a_lease_depends_on_what_is_left_and_on_the_replicas_alive() -> None:
    account = CapAccount({"a": Entry(20, 0, 5, 100.0), "b": Entry(0, 0, 0, 1.0)}, 1, "s")
    sizes = [
        exchange(account, LeaseRequest("c", Entry(), LIMIT, *amount), server="s", now=100.0).amount
        for amount in ((1, 60), (1, 7), (30, 60), (80, 80), (0, 60))
    ]
    assert sizes == [20, 7, 30, 80, 0]
    refused = exchange(account, LeaseRequest("c", Entry(), LIMIT, 81, 81), server="s", now=100.0)
    assert (refused.status, refused.amount, refused.account.held) == ("refused", 0, 20)
    assert refused.account.number == account.number
    granted = exchange(account, LeaseRequest("c", Entry(), LIMIT, 1, 1), server="s", now=100.0)
    assert granted.account.number == account.number + 1
    assert refused.account.entries["c"].seen_at == 100.0


def test_a_new_server_waits_for_other_replicas_before_the_first_grant() -> None:
    request = LeaseRequest("a", Entry(), LIMIT, 1, 1)
    first = exchange(None, request, server="s", now=0.0)
    assert first.status == "recovering"
    early = exchange(first.account, request, server="s", now=RECOVERY_S - 0.1)
    assert early.status == "recovering"
    assert exchange(early.account, request, server="s", now=RECOVERY_S).status == "granted"
    assert exchange(None, request, server="s", now=0.0, recovery_s=0.0).status == "granted"


def test_a_new_period_on_a_known_server_needs_no_recovery() -> None:
    request = LeaseRequest("a", Entry(), LIMIT, 1, 1, server="s")
    assert exchange(None, request, server="s", now=0.0).status == "granted"
    assert exchange(None, request, server="t", now=0.0).status == "recovering"
    leased = replace(request, entry=Entry(5))
    assert exchange(None, leased, server="s", now=0.0).status == "recovering"
    copied = replace(request, known=CapAccount(number=1, server="s"))
    assert exchange(None, copied, server="s", now=0.0).status == "recovering"


def test_a_server_that_lost_the_account_grants_again_when_all_replicas_have_confirmed() -> None:
    reply = ask(None, "a", server="t", now=1.0, minimum=1)
    assert reply.status == "recovering"
    assert reply.account.missing == {"b", "c"}
    reply = ask(reply.account, "b", server="t", now=2.0, minimum=1)
    reply = ask(reply.account, "a", server="t", now=9.0, minimum=1)
    assert reply.status == "recovering"
    assert reply.account.missing == {"c"}
    reply = ask(reply.account, "c", server="t", now=9.5, minimum=1)
    assert (reply.status, reply.account.held) == ("granted", 61)
    assert reply.account.server == "t"
    assert {one.seen_at for one in reply.account.entries.values()} == {9.5}
    assert ask(reply.account, "a", server="t", now=9.5).status == "granted"


@pytest.mark.parametrize(
    "old",
    [
        complete("a", "b"),  # the copies know of three grants
        replace(complete("a", "b"), number=9),  # others were granted since
        replace(complete("a", "b", "c"), number=2),  # an operator acted since
    ],
)
def test_an_old_copy_on_the_same_server_starts_a_recovery(old: CapAccount) -> None:
    reply = ask(old, "b", minimum=1)
    assert reply.status == "recovering"
    assert reply.account.held == 60


def test_what_a_replica_says_of_itself_is_newer_than_any_copy() -> None:
    known = complete("a", "b", "c")
    request = LeaseRequest("a", Entry(30, 4, 20), LIMIT, known=known)
    account = exchange(None, request, server="t", now=1.0).account
    assert account.entries["a"] == Entry(30, 4, 20, 0.0)


def test_a_replica_that_was_silent_is_not_waited_for() -> None:
    stored = complete("a", "b", "c", now=100.0)
    stored = stored.merge({"d": Entry(20, 0, 5, 100.0 - ALIVE_S - 0.1)})
    reply = ask(stored, "a", server="t", now=100.0)
    assert reply.account.missing == {"b", "c"}
    assert reply.account.held == 80


def test_the_time_without_a_server_is_not_silence_of_replicas_with_open_leases() -> None:
    for outage_s, missing in ((MAX_OUTAGE_S - 1, {"b", "c"}), (MAX_OUTAGE_S + 1, set[str]())):
        reply = ask(complete("a", "b", "c"), "a", server="t", now=outage_s)
        assert reply.account.missing == missing
    closed = complete("a", "c").merge({"b": Entry(20, 15, 5, 0.0)})
    request = LeaseRequest("a", closed.entries["a"], LIMIT)
    reply = exchange(closed, request, server="t", now=60.0)
    assert reply.account.missing == {"c"}


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_restart_during_a_recovery_forgets_nobody(is_kept: bool) -> None:  # noqa: FBT001
    closed = complete("a").merge({"b": Entry(20, 15, 5, 0.0)})
    request = LeaseRequest("a", closed.entries["a"], LIMIT, known=closed)
    first = exchange(closed, request, server="t", now=1.0)
    stored = first.account if is_kept else None
    again = replace(request, known=first.account)
    second = exchange(stored, again, server="u", now=60.0)
    assert second.account.missing == {"b"}
    assert second.account.recovery == Recovery(60.0, "u", frozenset({"a"}), lost_at=1.0)


def test_an_operator_ends_a_recovery() -> None:
    recovering = ask(None, "a", server="t", now=1.0).account
    account = set_spent(recovering, 50, server="t", now=50.0)
    assert (account.spent, account.held, account.recovery) == (50, 95, None)
    assert account.entries["a"].seen_at == 50.0
    assert ask(account, "a", server="t", now=51.0, minimum=6).status == "refused"
    assert ask(account, "a", server="t", now=51.0, minimum=5).status == "granted"
    higher = set_spent(account, 60, server="t", now=52.0)
    assert (higher.spent, higher.held) == (60, 105)
    assert set_spent(higher, 10, server="t", now=52.0).held == 105
    assert set_spent(None, 7, server="t", now=0.0).held == 7
    forgotten = replace(recovering, entries={})
    assert set_spent(forgotten, 0, server="t", now=9.0).entries["a"].seen_at == 9.0
