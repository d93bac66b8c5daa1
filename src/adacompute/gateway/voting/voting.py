"""Voting: one request that is decided on, answered as JSON or as a stream of events.

A stream is forwarded live if one sample is all there will be. Otherwise the client gets a first
event at once and keep-alive comments while samples are drawn, and then the events of the chosen
sample. It knows nothing of how decisions are made.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any

from adacompute.core.errors import ModelError
from adacompute.gateway.accounting.account import Account
from adacompute.gateway.connection.exchange import EVENT_STREAM, JSON, Exchange, Headers
from adacompute.gateway.forwarding.passthrough import Forwarded, ReplyHandling, forward
from adacompute.gateway.requests.fields import CHAT, COMPLETIONS, OPTIONS
from adacompute.gateway.requests.openai_replies import (
    DONE,
    KEEP_ALIVE,
    StreamHead,
    edit_event,
    edit_response_event,
    one_choice,
    one_response,
    role_event,
    usage_event,
)
from adacompute.gateway.requests.openai_requests import VirtualRequest
from adacompute.gateway.requests.refusals import NotSure
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.model_settings import FLAG
from adacompute.gateway.voting.decision import Decision, Outcome
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.request_model import RequestModel, at_pointer, write_length
from adacompute.models.connection.relay import Relay
from adacompute.models.formats.body import DROP
from adacompute.models.formats.failures import Failure
from adacompute.models.formats.openai_format import MalformedReply, parse_json, parse_samples
from adacompute.models.formats.responses_format import RESPONSES, to_completion
from adacompute.models.formats.streams import parse_stream
from adacompute.models.messages import Sample
from adacompute.models.model import sum_usage
from adacompute.spending.attempts import CallBound
from adacompute.spending.caps.meter import CapReached

IDEMPOTENCY_HEADERS = ("idempotency-key", "x-idempotency-key")
"""Headers by which a server recognises a request and repeats its answer."""

KEEP_ALIVE_S = 5.0
"""Time between the comments in a stream that waits for samples."""

SAMPLING_SHARE = 0.95
"""Share of the time of a request in which samples are drawn; the rest is for the answer."""

SURE = {True: "yes", False: "no", None: "not judged"}
"""Whether an answer is one of those whose precision is guaranteed, in a header."""

NEEDS_VOTES = ": train a policy with --config evidence=votes"
_PREFIXES = {CHAT: "chatcmpl-", COMPLETIONS: "cmpl-", RESPONSES: "resp_"}


class Voting:
    """Serves the requests of one virtual model that can be voted on.

    ``relays`` are those of the upstreams of arms, and of the model itself (None).
    """

    def __init__(
        self,
        engine: Engine,
        relays: Mapping[str | None, Relay],
        account: Account,
        config: Config,
    ) -> None:
        self.engine = engine
        self._relays = relays
        self.relay = relays[None]
        self._account = account
        self._timeout_s = config.timeout_s
        self._answers_when_spent = config.when_spent == "cheapest"

    def for_upstream(self, request: VirtualRequest) -> tuple[bytes, CallBound | None]:
        """Return the client's body as the upstream gets it, and its bound if it was judged."""
        virtual, body, judged = self.engine.virtual, request.body, request.judged
        changes: dict[str, Any] = {} if judged is None else dict(judged.changes)
        if body.fields.get("model") != virtual.model or OPTIONS in body.fields:
            changes |= {"model": virtual.model, OPTIONS: DROP}
        if judged is None:
            return body.edit(changes) if changes else body.data, None
        known, limit = self.engine.upstream.capabilities, virtual.max_output_tokens
        fields = {**body.fields, **changes}
        length, max_tokens = write_length(fields, request.path, limit, known)
        changes |= length
        sent = body.edit(changes) if changes else body.data
        judged = replace(judged, max_tokens=max_tokens)
        return sent, judged.bound(request.path, virtual.model, len(sent))

    async def serve(self, exchange: Exchange, request: VirtualRequest) -> None:
        """Decide, sample and answer."""
        if self.engine.lacks_logprobs:
            error = ModelError(
                f"the policy of {self.engine.virtual.name} needs log-probabilities, and the "
                f"upstream does not return them{NEEDS_VOTES}"
            )
            error.advice = NEEDS_VOTES
            raise error
        decision = await self.engine.begin(request)
        exchange.decision_id = decision.id
        try:
            await self._answer(exchange, request, decision)
        finally:
            decision.settle()

    async def _answer(
        self, exchange: Exchange, request: VirtualRequest, decision: Decision
    ) -> None:
        """Sample and answer, in the form that the request asks for."""
        if request.stream and self._sends_at_once and self.engine.ends_after_one_sample(decision):
            await self._forward(exchange, request, decision)
        elif request.stream:
            await self._stream(exchange, request, decision)
        else:
            outcome = await self._run(exchange, request, decision)
            reply = _write_reply(request, outcome)
            await exchange.reply(200, [JSON, *self._headers(request, outcome)], reply)

    def _request_model(
        self, exchange: Exchange, request: VirtualRequest, decision: Decision
    ) -> RequestModel:
        """Return the model with the client's headers, except those that make samples equal."""
        headers = {arm: _join_headers(relay, exchange) for arm, relay in self._relays.items()}
        recorder = self._account.recorder(exchange, "vote")
        question = decision.session.question
        model = self.engine.request_model(request, headers, exchange.query, recorder, question)
        model.max_samples = exchange.max_samples
        return model

    async def _stream(
        self, exchange: Exchange, request: VirtualRequest, decision: Decision
    ) -> None:
        if not self._answers_when_spent:  # an error cannot be sent once the stream has begun
            body, bound = self.for_upstream(request)
            recorder = replace(self._account.recorder(exchange, "vote"), bound=bound)
            await recorder.check(request.path, body)
        await exchange.start(200, [*EVENT_STREAM, *_decision_headers(decision)])
        head = StreamHead(_PREFIXES[request.path] + decision.id, int(decision.started_at))
        is_chat = request.path == CHAT
        begin = role_event(head, self.engine.virtual.model) if is_chat else KEEP_ALIVE
        await exchange.write(begin)
        outcome = await self._with_keepalive(exchange, self._run(exchange, request, decision))
        for event in _write_events(request, outcome, head):
            await exchange.write(event)
        await exchange.write(b"" if request.path == RESPONSES else DONE, more=False)

    async def _run(
        self, exchange: Exchange, request: VirtualRequest, decision: Decision
    ) -> Outcome:
        """Sample and decide; what was spent is recorded even if it comes to nothing."""
        model = self._request_model(exchange, request, decision)
        try:
            remaining_s = self._timeout_s * SAMPLING_SHARE - exchange.elapsed_s
            try:
                outcome = await self.engine.run(model, decision, remaining_s)
            except CapReached:
                if not self._answers_when_spent:
                    raise
                outcome = await self.engine.run_cheapest(model, decision)
        except BaseException:
            self._account.record_abandoned(self.engine, decision, model)
            raise
        self._record(exchange, outcome)
        if not self._sends_at_once and decision.is_unsure:
            refused = {"decision": decision.id, "p_correct": decision.p_correct}
            raise NotSure(_describe_unsure(decision), refused)
        return outcome

    async def _with_keepalive(
        self, exchange: Exchange, work: Coroutine[Any, Any, Outcome]
    ) -> Outcome:
        """Wait for an outcome, and send keep-alive comments meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=KEEP_ALIVE_S)
                if done:
                    return task.result()
                await exchange.write(KEEP_ALIVE)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    @property
    def _sends_at_once(self) -> bool:
        """Whether an answer can be sent before it is known how sure it is."""
        return self.engine.virtual.unsure == FLAG

    @property
    def counts_all(self) -> bool:
        """Whether the upstream is known to count the tokens of all choices of a reply."""
        return self.engine.upstream.capabilities.usage == "all"

    async def _forward(
        self, exchange: Exchange, request: VirtualRequest, decision: Decision
    ) -> None:
        """Forward one sample live as the answer, and record it."""
        start = time.perf_counter()
        model = self._request_model(exchange, request, decision)
        body, bound = self.for_upstream(request)
        recorder = self._account.recorder(exchange, "vote")
        tracker = replace(recorder, on_usage=model.calls.append, bound=bound)
        headers, counts_all = _decision_headers(decision), self.counts_all
        handling = ReplyHandling(headers, keep_body=True, counts_all=counts_all)
        try:
            forwarded = await forward(exchange, self.relay, body, tracker, handling)
        except BaseException:
            self._account.record_abandoned(self.engine, decision, model)
            raise
        decision.latency_s = time.perf_counter() - start
        sample = _parse_forwarded(forwarded, request.path)
        if sample is None:
            self._account.record_abandoned(self.engine, decision, model)
            return
        if (pointer := self.engine.answer_field(request)) is not None:
            sample = at_pointer(sample, pointer)
        await self.engine.record_single_sample(decision, sample)
        self._record(exchange, Outcome(sample, decision, model))

    def _record(self, exchange: Exchange, outcome: Outcome) -> None:
        """Record a decision."""
        exchange.n_samples = outcome.decision.samples_used
        exchange.cost = self.engine.cost(outcome.model.calls)
        self._account.record_decision(self.engine, outcome)

    def _headers(self, request: VirtualRequest, outcome: Outcome) -> Headers:
        decision = outcome.decision
        headers = [
            *outcome.choice.headers,
            *_decision_headers(decision),
            (b"x-adacompute-samples", b"%d" % decision.samples_used),
        ]
        if decision.p_correct is not None:
            headers.append((b"x-adacompute-p-correct", b"%.4f" % decision.p_correct))
            headers.append((b"x-adacompute-sure", SURE[decision.is_sure].encode()))
        if request.debug:
            debug = {
                "answers": decision.session.values,
                "rounds": decision.session.rounds,
                "calls": len(outcome.model.calls),
                "budget": decision.budget,
                "question_source": decision.question_source,
                "incomplete": decision.is_incomplete,
                "decision_ms": round(decision.decision_s * 1e3, 3),
                "cost": self.engine.cost(outcome.model.calls),
            }
            if decision.p_correct is not None:
                debug |= {"p_correct": decision.p_correct, "sure": decision.is_sure}
            headers.append((b"x-adacompute-debug", json.dumps(debug).encode()))
        return headers


def _join_headers(relay: Relay, exchange: Exchange) -> dict[str, str]:
    """Return the client's headers for an upstream, with its key, each name once."""
    headers: dict[str, str] = {}
    for name, value in relay.request_headers(exchange.headers_without_compression):
        if name not in IDEMPOTENCY_HEADERS:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _write_reply(request: VirtualRequest, outcome: Outcome) -> bytes:
    """Write the reply of the chosen sample, with the usage of all calls."""
    usage, choice = sum_usage(outcome.model.calls), outcome.choice
    if request.path == RESPONSES:
        return one_response(choice.document, usage, hide_logprobs=_hides_logprobs(request, outcome))
    return one_choice(choice.document, choice.choice, usage)


def _write_events(request: VirtualRequest, outcome: Outcome, head: StreamHead) -> Iterator[bytes]:
    """Yield the events of the chosen sample, with the usage of all calls."""
    usage, choice = sum_usage(outcome.model.calls), outcome.choice
    hide = _hides_logprobs(request, outcome)
    for event in choice.events:
        if request.path == RESPONSES:
            yield edit_response_event(event, usage, hide_logprobs=hide)
        else:
            yield edit_event(event, head, hide_logprobs=hide)
    if request.wants_usage and request.path != RESPONSES:
        yield usage_event(choice.document, head, usage)


def _hides_logprobs(request: VirtualRequest, outcome: Outcome) -> bool:
    """Whether the policy asked for log-probabilities that the client did not ask for."""
    return outcome.model.want_logprobs and not request.has_logprobs


def _describe_unsure(decision: Decision) -> str:
    """Say how sure an answer is that is not sent."""
    if decision.p_correct is None:
        return "no answer was found that could be sure"
    return f"the answer is not sure enough: it is right with {decision.p_correct:.0%}"


def _decision_headers(decision: Decision) -> Headers:
    """Headers that are known before the first sample."""
    return [
        (b"x-adacompute-decision", decision.id.encode()),
        (b"x-adacompute-price", b"%.6g" % decision.session.price),
        (b"x-adacompute-question", decision.question_source.encode()),
    ]


def _parse_forwarded(forwarded: Forwarded, path: str) -> Sample | None:
    """Parse the sample in a reply that was forwarded; None if there is none."""
    try:
        if forwarded.is_stream:
            headers = {"Content-Type": "text/event-stream"}
            stream = parse_stream(forwarded.status, headers, forwarded.body, path=path)
            return stream.to_sample(0.0)
        document = parse_json(forwarded.body)
        return parse_samples(to_completion(document) if path == RESPONSES else document)[0]
    except (MalformedReply, Failure):
        return None
