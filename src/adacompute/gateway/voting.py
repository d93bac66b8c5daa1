"""Voting: one request that is decided on, answered as JSON or as events.

A stream is passed on live when one draw is all there will be; else the client is told at once that
its answer is on the way, kept awake while draws are made, and then given the chosen draw's own
events. In shadow mode every answer is a single draw, passed on as it comes, and what the policy
would have done is written down. It knows nothing of how decisions are made.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

from adacompute.core.errors import ModelError
from adacompute.gateway.account import Account
from adacompute.gateway.body import DROP
from adacompute.gateway.engine import Decision, Engine, Outcome
from adacompute.gateway.exchange import EVENTS, JSON, Exchange, Headers
from adacompute.gateway.openai_api import (
    DONE,
    FIELD,
    KEEP_ALIVE,
    VirtualRequest,
    one_choice,
    role_event,
    strip_usage,
    sum_usage,
    usage_event,
)
from adacompute.gateway.passthrough import Forwarded, forward
from adacompute.gateway.request_model import CallUsage, RequestModel, SampledChoice
from adacompute.models.failures import Failure
from adacompute.models.messages import Sample
from adacompute.models.openai_format import MalformedReply, parse_json, parse_samples
from adacompute.models.relay import Relay
from adacompute.models.streams import parse_stream
from adacompute.policies.episode import Episode

IDEMPOTENT = ("idempotency-key", "x-idempotency-key")
"""Headers by which a server knows a request again, and answers as it did before."""

_AUDIT_SCALE = 2**32


class Voting:
    """Serves the requests of one virtual model that may be voted on."""

    def __init__(
        self, engine: Engine, relay: Relay, account: Account, sse_keepalive_s: float
    ) -> None:
        self.engine = engine
        self._relay = relay
        self._account = account
        self._keep_alive_s = sse_keepalive_s
        self._later: set[asyncio.Task[None]] = set()

    def plain(self, asked: VirtualRequest) -> bytes:
        """The client's body for the upstream: its own model's name, and nothing of ours."""
        model = self.engine.virtual.model
        if asked.body.content["model"] == model and FIELD not in asked.body.content:
            return asked.body.text.encode()
        return asked.body.edit({"model": model, FIELD: DROP})

    async def serve(self, exchange: Exchange, asked: VirtualRequest) -> None:
        """Decide, draw, and answer."""
        decision, episode = await self.engine.begin(asked)
        decision.parent = exchange.header("traceparent")
        if self.engine.virtual.shadow:
            await self._pass(exchange, asked, decision, episode, shadow=True)
        elif asked.stream and self.engine.settled(episode):
            await self._pass(exchange, asked, decision, episode, shadow=False)
        elif asked.stream:
            await self._stream(exchange, asked, decision, episode)
        else:
            outcome = await self._run(exchange, asked, decision, episode)
            usage = sum_usage([bill.usage for bill in outcome.purse.bills])
            reply = one_choice(outcome.drawn.document, outcome.drawn.choice, usage)
            await exchange.reply(200, [JSON, *self._headers(asked, outcome)], reply)

    def _purse(self, exchange: Exchange, asked: VirtualRequest) -> RequestModel:
        """Open a purse with what came beside the body, but for what makes draws alike."""
        headers: dict[str, str] = {}
        for name, value in self._relay.request_headers(exchange.unpacked):
            if name not in IDEMPOTENT:
                headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return self.engine.purse(asked, headers, exchange.query)

    async def finish(self, within_s: float) -> None:
        """Wait for what goes on after answers were given."""
        if self._later:
            await asyncio.wait(self._later, timeout=within_s)
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    async def _stream(
        self, exchange: Exchange, asked: VirtualRequest, decision: Decision, episode: Episode
    ) -> None:
        await exchange.start(200, [*EVENTS, *_known(decision)])
        if asked.path == "completions":
            await exchange.write(KEEP_ALIVE)
        else:
            name = self.engine.virtual.model
            await exchange.write(role_event(decision.id, name, int(decision.begun)))
        outcome = await self._awake(exchange, self._run(exchange, asked, decision, episode))
        usage = sum_usage([bill.usage for bill in outcome.purse.bills])
        for event in outcome.drawn.events:
            await exchange.write(strip_usage(event))
        if asked.wants_usage:
            await exchange.write(usage_event(outcome.drawn.document, usage))
        await exchange.write(DONE, more=False)

    async def _run(
        self, exchange: Exchange, asked: VirtualRequest, decision: Decision, episode: Episode
    ) -> Outcome:
        """Draw and decide; what was spent is accounted at once, even if it comes to nothing."""
        purse = self._purse(exchange, asked)
        try:
            outcome = await self.engine.run(purse, decision, episode)
        except BaseException:
            self._account.lost(self.engine, purse)
            raise
        self._close(outcome)
        return outcome

    async def _awake(self, exchange: Exchange, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Wait for an outcome, telling the client now and then that it is under way."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=self._keep_alive_s)
                if done:
                    return task.result()
                await exchange.write(KEEP_ALIVE)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _pass(
        self,
        exchange: Exchange,
        asked: VirtualRequest,
        decision: Decision,
        episode: Episode,
        *,
        shadow: bool,
    ) -> None:
        """Answer with one draw as it comes, and write down what it was."""
        begun = time.perf_counter()
        decision.shadow = shadow
        purse, body = self._purse(exchange, asked), self.plain(asked)

        def tell(passed: Forwarded) -> None:
            prompt = passed.prompt_tokens or (len(body) if passed.estimated else 0)
            usage = {"prompt_tokens": prompt, "completion_tokens": passed.completion_tokens}
            purse.bills.append(CallUsage(usage, passed.estimated))

        try:
            passed = await forward(
                exchange, self._relay, body, tell, headers=_known(decision), keep=True
            )
        except BaseException:
            self._account.lost(self.engine, purse)
            raise
        decision.latency_s = time.perf_counter() - begun
        drawn = _read_passed(passed)
        if drawn is None:
            self._account.lost(self.engine, purse)
            return
        purse.drawn.append(drawn)
        await self.engine.look(decision, episode, drawn)
        self._close(Outcome(drawn, decision, purse))

    def _close(self, outcome: Outcome) -> None:
        """Account a decision, and draw on where it is to be audited."""
        decision, virtual = outcome.decision, self.engine.virtual
        chosen = int(decision.id[:8], 16) < virtual.audit_share * _AUDIT_SCALE
        held = chosen and not decision.shadow and self._account.may_hold(virtual)
        self._account.decided(self.engine, outcome)
        if held:
            task = asyncio.ensure_future(self._hold(outcome))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _hold(self, outcome: Outcome) -> None:
        """Draw to the largest level, and account that apart from what was served."""
        before = len(outcome.purse.bills)
        try:
            await self.engine.complete(outcome)
        except ModelError:
            return  # half an audit says nothing; its bill is in the purse
        finally:
            self._account.held(self.engine, outcome, before)

    def _headers(self, asked: VirtualRequest, outcome: Outcome) -> Headers:
        decision = outcome.decision
        own = outcome.drawn.headers
        headers = [
            *own,
            *_known(decision),
            (b"x-adacompute-samples", b"%d" % decision.samples_used),
        ]
        if asked.debug:
            told = {
                "answers": decision.canonical_answers,
                "rounds": decision.rounds,
                "calls": len(outcome.purse.bills),
                "budget": decision.budget,
                "question_source": decision.question_source,
                "incomplete": decision.incomplete,
                "decision_ms": round(decision.decision_s * 1e3, 3),
                "cost": self.engine.money(outcome.purse.bills),
            }
            headers.append((b"x-adacompute-debug", json.dumps(told).encode()))
        return headers


def _known(decision: Decision) -> Headers:
    """What is known of a decision before the first draw."""
    return [
        (b"x-adacompute-decision", decision.id.encode()),
        (b"x-adacompute-price", b"%.6g" % decision.price),
    ]


def _read_passed(passed: Forwarded) -> SampledChoice | None:
    """Read the draw out of a reply that was passed on; None when it was none."""
    try:
        if passed.events:
            kind = {"Content-Type": "text/event-stream"}
            streamed = parse_stream(passed.status, kind, passed.body)
            return SampledChoice(streamed.to_sample(0.0), streamed.last_event, {}, streamed.events)
        document = parse_json(passed.body)
        draw: Sample = parse_samples(document)[0]
    except (MalformedReply, Failure):
        return None
    return SampledChoice(draw, document, document["choices"][0])
