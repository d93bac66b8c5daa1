"""Calls: the samples of questions, drawn from servers or found among those that are paid already.

A ``Caller`` makes the calls of all questions, for ``batch`` and ``collect``: a question always goes
to the same server, whose prefix cache knows its prompt, and to another one only while that one
fails. Failures that pass are waited for. What remains is an error of its question alone, unless no
call succeeds at all: then the work stops. Every attempt is paid through the account, and a sample
counts when it is stored. A ``PaidModel`` is the model of one question in a batch: it takes samples
from the store first, and reserves new ones inside the question's allowance.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from adacompute.batch.allowances import Demand
from adacompute.core.errors import AdaComputeError, ModelError, RequestRejected
from adacompute.core.types import hash_text
from adacompute.models.connection.endpoint import OnEvent
from adacompute.models.formats.openai_format import encode, request_body
from adacompute.models.messages import Reply, Sample, Settings
from adacompute.models.model import OnUsage
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.templates import Template
from adacompute.spending.account import LimitReached, PaidCall, Purchase, SpendingAccount
from adacompute.spending.attempts import CallBound
from adacompute.storage.paid_samples import Payment

SEED_BYTES, SEED_SHIFT = 40, 33
"""Bytes of a request that its seed and its number of samples may take; seeds have 31 bits."""

GC_THRESHOLDS = (100_000, 20, 100)
"""Thousands of questions under way are some hundred thousand objects, none of which is garbage.
With Python's own thresholds a fifth of the CPU time went into looking through them."""

MAX_PAUSE_S = 15.0
"""Longest pause between two calls for a sample while servers fail."""


class ServersUnavailable(AdaComputeError):  # noqa: N818 - a state of servers
    """No server answers any question: the batch stops, and can be resumed."""


@dataclass(frozen=True)
class BatchArm:
    """How the samples of an arm are drawn; a policy with one arm has the name None."""

    name: str | None
    model: str
    template: Template
    settings: Settings


@dataclass(frozen=True, eq=False, slots=True)
class _Request:
    """A request for one sample of a question, without its seed, and the maximum of its cost."""

    arm: BatchArm
    path: str
    body: Mapping[str, Any]
    encoded: bytes
    max_cost: int

    def bound(self, n: int) -> CallBound:
        """Return the upper bound of a call for ``n`` samples."""
        size, limit = len(self.encoded) + SEED_BYTES, self.arm.settings.max_tokens
        return CallBound.of(self.arm.model, n=n, max_tokens=limit, body_bytes=size)

    def encode(self, fields: Mapping[str, int]) -> bytes:
        """Return the body of one call, with fields of its own, as JSON."""
        if not self.body.keys().isdisjoint(fields):
            return encode({**self.body, **fields})
        added = "".join(f', "{name}": {value}' for name, value in fields.items())
        return b"%b%b}" % (self.encoded[:-1], added.encode())


UNLIMITED = 1 << 62
"""An allowance that leaves the limit to the account."""


@dataclass(eq=False, slots=True)
class QuestionAccount:
    """What a question may spend and has spent, in integer amounts.

    ``base`` was spent in an earlier pass and does not count against the allowance. ``paid`` are the
    stored samples of each arm, by their number, until they are used.
    """

    position: int
    text: str
    key: int
    allowance: int
    paid: dict[str | None, dict[int, Payment]] = field(default_factory=dict)
    base: int = 0
    spent: int = 0
    reserved: int = 0
    is_limited: bool = False
    used: dict[str | None, set[int]] = field(default_factory=dict)
    requests: dict[str | None, _Request] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """What may be reserved now."""
        return self.base + self.allowance - self.spent - self.reserved

    def reserve(self, amount: int) -> None:
        """Reserve an amount; LimitReached if it is more than is left."""
        if amount > self.left:
            self.is_limited = True
            raise LimitReached("the next attempt may cost more than is left")
        self.reserved += amount

    def settle(self, reserved: int, spent: int) -> None:
        """Replace what was reserved by what was spent."""
        self.reserved -= reserved
        self.spent += spent


class CallLimiter(Protocol):
    """A limit on the calls that run at a time."""

    async def acquire(self) -> None:
        """Wait until another call may start."""
        ...

    def release(self, latency_s: float | None = None) -> None:
        """End a call; ``latency_s`` is its duration if it succeeded."""
        ...


SeedOf = Callable[[QuestionAccount, str | None, int], int | None]
"""Returns the seed of the call whose first sample has a number, None for none."""


def hash_seed(account: QuestionAccount, arm: str | None, number: int) -> int:
    """Return a seed that depends on the text of the question, the arm and the number."""
    return hash_text(f"{account.key}/{arm or ''}/{number}") >> SEED_SHIFT


@dataclass(eq=False)
class Caller:
    """Makes calls through ``limiter``, and pays for them through ``account``.

    ``before_call`` is awaited before each call, with its bound; it may raise LimitReached.
    ``on_event`` is called for replies with fewer samples than requested (``short``).
    """

    upstream: Upstream
    arms: Sequence[BatchArm]
    account: SpendingAccount
    limiter: CallLimiter
    samples_per_call: int = 1
    patience_s: float = 600.0
    seed_of: SeedOf = hash_seed
    before_call: Callable[[CallBound], Awaitable[None]] | None = None
    on_event: OnEvent | None = None

    def __post_init__(self) -> None:
        self._by_name = {arm.name: arm for arm in self.arms}
        self._last_success = -math.inf

    def prepare(self, question: QuestionAccount, arm: str | None) -> _Request:
        """Return the request for a sample of an arm, made once per question."""
        if (found := question.requests.get(arm)) is not None:
            return found
        one = self._by_name[arm]
        prompt = one.template.render(question.text)
        body = request_body(one.model, prompt, one.settings, self.upstream.capabilities)
        request = _Request(one, prompt.path, body, encode(body), 0)
        cost = self.account.costs.max_cost(request.bound(1))
        found = question.requests[arm] = replace(request, max_cost=cost)
        return found

    def demand(self, question: QuestionAccount, *, max_samples: int, mean: int) -> Demand:
        """Return what a question may cost, by its most expensive arm."""
        first = max(self.prepare(question, arm.name).max_cost for arm in self.arms)
        maximum = max_samples * first
        return Demand(first, min(maximum, first + 2 * mean), maximum)

    async def draw(
        self, question: QuestionAccount, arm: str | None, number: int, n: int
    ) -> list[Payment]:
        """Make one call for ``n`` samples, the first of which is ``number``, and store them."""
        started, pause_s = time.monotonic(), 0.5
        while True:
            try:
                return await self._draw_once(question, arm, number, n)
            except (LimitReached, RequestRejected):
                raise
            except ModelError as error:
                if time.monotonic() > started + self.patience_s:
                    if self._last_success < started:
                        raise ServersUnavailable(
                            f"no call succeeded for {self.patience_s:g} s: {error}: run the same "
                            "command again when the server works"
                        ) from None
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _draw_once(
        self, question: QuestionAccount, arm: str | None, number: int, n: int
    ) -> list[Payment]:
        request = self.prepare(question, arm)
        fields: dict[str, int] = {}
        seed = self.seed_of(question, arm, number)
        if seed is not None and self.upstream.capabilities.seed != "rejected":
            fields["seed"] = seed
        if n > 1:
            fields["n"] = n
        purchase = Purchase(question.position, arm, number, request.bound(n))
        call = self.account.start_call(purchase, question)
        samples: list[Sample] = []
        try:
            reply = await self._send(request, fields, call)
            if not isinstance(reply, ParsedReply):
                raise RequestRejected(reply.message)
            # More than were asked for are paid for and not kept: their numbers are not theirs.
            samples = [one if one.raw is None else replace(one, raw=None) for one in reply.samples]
        except ModelError:
            await call.store()
            raise
        if self.on_event is not None and len(samples) < n:
            self.on_event("short", {"asked": n, "got": len(samples)})
        drawn = await call.store(samples[:n])  # a call that is cancelled stays open until the end
        self._last_success = time.monotonic()
        return drawn

    async def _send(self, request: _Request, fields: Mapping[str, int], call: PaidCall) -> Reply:
        await self.limiter.acquire()
        latency_s = None
        try:
            if self.before_call is not None:
                await self.before_call(call.purchase.bound)
            body = request.encode(fields)
            reply = await self.upstream.post_bytes(request.path, body, tracker=call)
            latency_s = reply.latency_s
            return reply
        finally:
            self.limiter.release(latency_s)


class PaidModel:
    """The model of one question: samples that are paid already, then new ones."""

    def __init__(self, caller: Caller, account: QuestionAccount) -> None:
        self._caller = caller
        self._account = account

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield up to ``n`` samples together; fewer, and an error, where the allowance ends."""
        del prompt, on_usage
        account = self._account
        each = self._caller.prepare(account, arm).max_cost
        stored, used = account.paid.get(arm, {}), account.used.setdefault(arm, set())
        known = {number: stored.pop(number) for number in sorted(stored)[:n]}
        # Samples that are paid are used, whatever is left; without them the same number is drawn.
        n_affordable = n if not each else min(n, max(len(known), account.left // each))
        account.spent += sum(one.cost for one in known.values())
        taken = used | known.keys()
        unused = (number for number in itertools.count() if number not in taken)
        missing = list(itertools.islice(unused, n_affordable - len(known)))
        failure = await draw_missing(self._caller, account, arm, missing, known)
        account.is_limited |= n_affordable < n or isinstance(failure, LimitReached)
        used.update(known)
        samples = [known[number].sample for number in sorted(known)]
        n_samples = len(samples)
        for sample in samples:
            if sample is not None:
                is_alone = sample.samples_per_call == n_samples
                yield sample if is_alone else replace(sample, samples_per_call=n_samples)
        if failure is not None:
            raise failure
        if n_affordable < n:
            raise LimitReached("the allowance of the question is used up")

    def take_rest(self) -> list[Sample]:
        """Return the stored samples that were not asked for; they are spent, so they count.

        There are some if the question was to get more samples before the process was stopped.
        """
        rest = [one for stored in self._account.paid.values() for one in stored.values()]
        self._account.paid = {}
        self._account.spent += sum(one.cost for one in rest)
        return [one.sample for one in rest if one.sample is not None]


async def draw_missing(
    caller: Caller,
    question: QuestionAccount,
    arm: str | None,
    missing: list[int],
    known: dict[int, Payment],
) -> ModelError | None:
    """Draw samples that are not paid yet, in concurrent calls, into ``known``.

    Returns the first failure; the samples of the other calls are there, whatever is raised.
    """
    if len(missing) == 1:
        try:
            known |= {one.number: one for one in await caller.draw(question, arm, missing[0], 1)}
        except ModelError as error:
            return error
        return None
    groups = _group(missing, caller.samples_per_call)
    calls = (caller.draw(question, arm, part[0], len(part)) for part in groups)
    failure: ModelError | None = None
    end: BaseException | None = None
    for drawn in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(drawn, ModelError):
            failure = failure or drawn
        elif isinstance(drawn, BaseException):
            end = end or drawn
        else:
            known |= {one.number: one for one in drawn}
    if end is not None:
        raise end
    return failure


def _group(numbers: list[int], size: int) -> list[list[int]]:
    """Split numbers into runs of consecutive ones, each at most ``size`` long."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and len(groups[-1]) < size and groups[-1][-1] == number - 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Collect garbage rarely; almost everything here is freed when its last reference ends."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
