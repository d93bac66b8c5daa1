"""Calls: the samples of a batch, drawn from servers or found among those that are paid already.

A ``PaidModel`` is the model of one question. It takes samples from the ledger first, reserves the
maximum cost of every new attempt inside the question's allowance, and gives a sample to the vote
only when its segment is on the disk. A ``Caller`` makes the calls of all questions: a question
always goes to the same server, whose prefix cache knows its prompt, and to another one only while
that one fails. Failures that pass are waited for. What remains is an error of its question alone,
unless no call succeeds at all: then the batch stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adacompute.batch.allowances import Demand
from adacompute.batch.costs import CallCosts
from adacompute.batch.open_calls import OpenCall, OpenCalls
from adacompute.batch.segments import FAILED, SAMPLE, PaidCall, SegmentWriter
from adacompute.core.errors import AdaComputeError, ModelError, RequestRejected
from adacompute.core.types import hash_text
from adacompute.models.calls import NO_USAGE, StartedCall
from adacompute.models.messages import Sample, Settings
from adacompute.models.model import CallUsage, OnUsage
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.openai_format import encode, request_body
from adacompute.models.templates import Template
from adacompute.spending.token_prices import split_cost

logger = logging.getLogger(__name__)

SEED_BYTES, SEED_SHIFT = 40, 33
"""Bytes of a request that its seed and its number of samples may take; seeds have 31 bits."""

MAX_PAUSE_S = 15.0
"""Longest pause between two calls for a sample while servers fail."""


class AllowanceReached(ModelError):  # noqa: N818 - an end, not an error
    """The next sample of a question may cost more than its allowance."""


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

    @property
    def max_bytes(self) -> int:
        """Size of the request with its seed, at most."""
        return len(self.encoded) + SEED_BYTES

    def encode(self, fields: Mapping[str, int]) -> bytes:
        """Return the body of one call, with fields of its own, as JSON."""
        if not self.body.keys().isdisjoint(fields):
            return encode({**self.body, **fields})
        added = "".join(f', "{name}": {value}' for name, value in fields.items())
        return b"%b%b}" % (self.encoded[:-1], added.encode())


@dataclass(eq=False, slots=True)
class QuestionAccount:
    """What a question may spend and has spent, in integer amounts.

    ``base`` was spent in an earlier pass and does not count against the allowance.
    """

    position: int
    text: str
    key: int
    allowance: int
    paid: dict[str | None, list[PaidCall]] = field(default_factory=dict)
    base: int = 0
    spent: int = 0
    reserved: int = 0
    is_limited: bool = False
    n_used: dict[str | None, int] = field(default_factory=dict)
    requests: dict[str | None, _Request] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """What may be reserved now."""
        return self.base + self.allowance - self.spent - self.reserved


class Caller:
    """Makes calls, at most ``concurrency`` at a time, and stores what they cost."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        arms: Sequence[BatchArm],
        *,
        costs: CallCosts,
        open_calls: OpenCalls,
        segments: SegmentWriter,
        concurrency: int,
        samples_per_call: int = 1,
        patience_s: float = 600.0,
    ) -> None:
        self.costs = costs
        self.samples_per_call = samples_per_call
        self.n_samples = self.spent = 0
        self._upstreams = upstreams
        self._arms = {arm.name: arm for arm in arms}
        self._arm_numbers = {arm.name: i for i, arm in enumerate(arms)}
        self._open_calls = open_calls
        self._segments = segments
        self._slots = asyncio.Semaphore(concurrency)
        self._patience_s = patience_s
        self._last_success = -math.inf

    def prepare(self, account: QuestionAccount, arm: str | None) -> _Request:
        """Return the request for a sample of an arm, made once per question."""
        if (found := account.requests.get(arm)) is not None:
            return found
        one = self._arms[arm]
        prompt = one.template.render(account.text)
        body = request_body(one.model, prompt, one.settings, self._upstreams[0].capabilities)
        encoded = encode(body)
        size, limit = len(encoded) + SEED_BYTES, one.settings.max_tokens
        cost = self.costs.max_cost(one.model, n=1, max_tokens=limit, prompt_bytes=size)
        found = account.requests[arm] = _Request(one, prompt.path, body, encoded, cost)
        return found

    def demand(self, account: QuestionAccount, *, max_samples: int, mean: int) -> Demand:
        """Return what a question may cost, by its most expensive arm."""
        first = max(self.prepare(account, arm).max_cost for arm in self._arms)
        maximum = max_samples * first
        return Demand(first, min(maximum, first + 2 * mean), maximum)

    async def draw(
        self, account: QuestionAccount, arm: str | None, number: int, n: int
    ) -> list[PaidCall]:
        """Make one call for ``n`` samples, the first of which is ``number``, and store them."""
        started, pause_s, turn = time.monotonic(), 0.5, 0
        while True:
            try:
                return await self._draw_once(account, arm, number, n, turn)
            except (AllowanceReached, RequestRejected):
                raise
            except ModelError as error:
                if time.monotonic() > started + self._patience_s:
                    if self._last_success < started:
                        raise ServersUnavailable(
                            f"no call succeeded for {self._patience_s:g} s: {error}: run the same "
                            "command again when the server works"
                        ) from None
                    raise
            await asyncio.sleep(pause_s)
            pause_s, turn = min(2 * pause_s, MAX_PAUSE_S), turn + 1

    async def _draw_once(
        self, account: QuestionAccount, arm: str | None, number: int, n: int, turn: int
    ) -> list[PaidCall]:
        request = self.prepare(account, arm)
        upstream = self._upstreams[(account.key + turn) % len(self._upstreams)]
        fields: dict[str, int] = {}
        if upstream.capabilities.seed != "rejected":
            fields["seed"] = hash_text(f"{account.key}/{arm or ''}/{number}") >> SEED_SHIFT
        if n > 1:
            fields["n"] = n
        tracker = _Attempts(self, account, request, number, n)
        try:
            async with self._slots:
                reply = await upstream.post_bytes(
                    request.path, request.encode(fields), tracker=tracker
                )
            if not isinstance(reply, ParsedReply):
                raise RequestRejected(reply.message)
            drawn = tracker.to_paid(reply.samples)
        except ModelError:
            await self._store(tracker)
            raise
        await self._store(tracker)  # a call that is cancelled stays open, and counts as lost
        self.n_samples += len(drawn)
        self._last_success = time.monotonic()
        return drawn

    async def _store(self, tracker: _Attempts) -> None:
        """Write what a call cost to the ledger, then forget that it was open."""
        rows = tracker.rows()
        if rows:
            self.spent += sum(row.cost for row in rows)
            await self._segments.add(rows)
        for place in tracker.places:
            self._open_calls.end(place)

    def begin(self, position: int, arm: BatchArm, number: int, max_cost: int) -> int:
        """Record an attempt as open; return its place."""
        arm_number = self._arm_numbers[arm.name]
        return self._open_calls.begin(OpenCall(position, arm_number, number, max_cost))


class _Attempts:
    """The attempts of one call: each reserves its maximum cost, and is paid when it has ended."""

    def __init__(
        self,
        caller: Caller,
        account: QuestionAccount,
        request: _Request,
        number: int,
        n: int,
    ) -> None:
        self.places: list[int] = []
        self._caller = caller
        self._account = account
        self._arm = request.arm
        self._number = number
        self._n = n
        limit = request.arm.settings.max_tokens
        self._bound = request.max_cost
        if n > 1:
            self._bound = caller.costs.max_cost(
                self._arm.model, n=n, max_tokens=limit, prompt_bytes=request.max_bytes
            )
        self._failed: list[int] = []
        self._cost: int | None = None
        self._paid: list[PaidCall] = []

    async def start(self, path: str, payload: bytes, attempt: int) -> StartedCall:
        """Reserve the maximum cost of an attempt; AllowanceReached if it does not fit."""
        del path, payload, attempt
        account = self._account
        if self._bound > account.left:
            account.is_limited = True
            raise AllowanceReached("the next attempt may cost more than is left")
        place = self._caller.begin(account.position, self._arm, self._number, self._bound)
        self.places.append(place)
        account.reserved += self._bound
        return self

    def end(self, usage: CallUsage | None) -> None:
        """Pay an attempt: its usage, or its maximum if that is not known."""
        account = self._account
        account.reserved -= self._bound
        if usage is NO_USAGE:
            return
        if usage is None:
            self._failed.append(self._bound)
            account.spent += self._bound
            return
        self._cost = self._caller.costs.cost(self._arm.model, usage, n=self._n)
        account.spent += self._cost
        if self._cost > self._bound:
            logger.warning("a call cost %d, more than its maximum of %d", self._cost, self._bound)

    def to_paid(self, samples: Sequence[Sample]) -> list[PaidCall]:
        """Return the samples of the reply with their costs."""
        kept = [one if one.raw is None else replace(one, raw=None) for one in samples[: self._n]]
        each = split_cost(self._bound if self._cost is None else self._cost, len(kept))
        self._paid = [
            PaidCall(self._account.position, self._arm.name, self._number + i, cost, sample, SAMPLE)
            for i, (cost, sample) in enumerate(zip(each, kept, strict=True))
        ]
        return self._paid

    def rows(self) -> list[PaidCall]:
        """Return everything that was paid, samples and failed attempts."""
        failed = [
            PaidCall(self._account.position, self._arm.name, self._number, cost, None, FAILED)
            for cost in self._failed
        ]
        unused = self._cost if self._cost and not self._paid else 0
        if unused:
            failed.append(
                PaidCall(self._account.position, self._arm.name, self._number, unused, None, FAILED)
            )
        return [*self._paid, *failed]


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
        first = account.n_used.get(arm, 0)
        each = self._caller.prepare(account, arm).max_cost
        known = {
            one.number: one for one in account.paid.get(arm, ()) if first <= one.number < first + n
        }
        # Samples that are paid are used, whatever is left; without them the same number is drawn.
        n_affordable = min(n, max(len(known), account.left // each))
        account.is_limited = account.is_limited or n_affordable < n
        numbers = range(first, first + n_affordable)
        account.spent += sum(one.cost for one in known.values())
        missing = [number for number in numbers if number not in known]
        failure = await self._draw_missing(arm, missing, known)
        found = [known[number] for number in numbers if number in known]
        account.n_used[arm] = first + len(found)
        samples = [one.sample for one in found if one.sample is not None]
        n_samples = len(samples)
        for sample in samples:
            is_alone = sample.samples_per_call == n_samples
            yield sample if is_alone else replace(sample, samples_per_call=n_samples)
        if failure is not None:
            raise failure
        if n_affordable < n:
            raise AllowanceReached("the allowance of the question is used up")

    async def _draw_missing(
        self, arm: str | None, missing: list[int], known: dict[int, PaidCall]
    ) -> BaseException | None:
        """Draw the samples that are not paid yet, in concurrent calls; return the first failure."""
        if len(missing) == 1:
            try:
                (paid,) = await self._caller.draw(self._account, arm, missing[0], 1)
            except ModelError as error:
                return error
            known[paid.number] = paid
            return None
        groups = _group(missing, self._caller.samples_per_call)
        calls = (self._caller.draw(self._account, arm, part[0], len(part)) for part in groups)
        failure: BaseException | None = None
        for drawn in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(drawn, BaseException):
                if not isinstance(drawn, ModelError):
                    raise drawn
                failure = failure or drawn
            else:
                known |= {one.number: one for one in drawn}
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
