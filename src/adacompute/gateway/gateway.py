"""Gateway: everything that requests share, and what happens to each request.

A request is authorised, parsed, and either voted on or forwarded unchanged. Every failure is
answered in OpenAI's error format with the correct status. It makes no decision and changes no body
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

from adacompute.core.errors import ModelTimeout
from adacompute.gateway.accounting.account import Account
from adacompute.gateway.accounting.spending import Spending
from adacompute.gateway.connection.connection_limits import ConnectionLimits
from adacompute.gateway.connection.exchange import (
    JSON,
    NO_MODEL,
    ClientDisconnected,
    Exchange,
    Receive,
    Scope,
    Send,
)
from adacompute.gateway.connection.time_limit import TimeLimit
from adacompute.gateway.error_replies import (
    BODY_TIMEOUT_S,
    EXPECTED,
    send_error,
    send_internal_error,
    send_rejection,
)
from adacompute.gateway.forwarding.passthrough import (
    MAX_BUFFERED,
    REASON_HEADER,
    ReplyHandling,
    forward,
    redact_error,
    without_coding,
)
from adacompute.gateway.forwarding.probing import needs_probe, probe_upstreams
from adacompute.gateway.forwarding.upstreams import Upstreams
from adacompute.gateway.forwarding.usage_reader import decompress
from adacompute.gateway.processes.operator_pages import READY
from adacompute.gateway.requests.access import BearerTokens, allows_path
from adacompute.gateway.requests.openai_replies import add_models
from adacompute.gateway.requests.openai_requests import (
    BUDGET_HEADER,
    VirtualRequest,
    has_dot_segments,
)
from adacompute.gateway.requests.reading import Arrival, ReadRequest, read_request
from adacompute.gateway.requests.rules import make_rules
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.settings import MB
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.model_loading import GradingQueues
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.gateway.voting.voting import Voting
from adacompute.models.messages import UpstreamKind
from adacompute.spending.attempts import CallBound
from adacompute.spending.registers import Register
from adacompute.spending.token_prices import parse_token_prices

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OK, BAD_REQUEST, NOT_FOUND, CLIENT_CLOSED_REQUEST = 200, 400, 404, 499


class Gateway:
    """Everything that requests share: connections, models, limits and the account."""

    def __init__(
        self,
        config: Config,
        models: Mapping[str, VirtualModel],
        register: Register | None = None,
    ) -> None:
        self.config = config
        self.models = models
        price_lists = {name: virtual.price_list for name, virtual in models.items()}
        price_lists[NO_MODEL] = {}
        if config.token_prices is not None:
            price_lists[NO_MODEL] = parse_token_prices(Path(config.token_prices))
        self.account = Account(config, price_lists)
        self._engines: dict[str, Engine] = {}
        self._spending = Spending(config, self.account.metrics, register)
        self._probing: asyncio.Task[None] | None = None
        self._n_in_flight = 0
        self._names = tuple(models)
        self._rules = make_rules(config, models, price_lists[NO_MODEL])
        self._tokens = BearerTokens(config.bearer_tokens)
        self.connection_limits = ConnectionLimits(
            trusted_proxies=config.trusted_proxies,
            on_rejected=self.account.record_refused_connection,
        )
        self._stack = AsyncExitStack()
        self._upstreams = Upstreams(config, self.account, self._stack)
        self._voting: dict[str, Voting] = {}
        self._grading = GradingQueues(self.account.metrics)

    async def __aenter__(self) -> Self:
        config = self.config
        await self._spending.open()
        self.account.calls.caps = self._spending.caps
        await self._upstreams.open()
        self.relay = self._upstreams.relay()
        for name, virtual in self.models.items():
            sampled = virtual.upstream_models
            clients = {
                arm: await self._upstreams.open_client(name, one) for arm, one in sampled.items()
            }
            relays = {arm: self._upstreams.relay(one.upstream) for arm, one in sampled.items()}
            if virtual.scorer is not None:
                await self._stack.enter_async_context(virtual.scorer)
            grading = self._grading.queue_for(virtual.grader)
            engine = Engine(virtual, clients, grading, self._spending.replica)
            self._engines[name] = engine
            await engine.warm_up()
            self._voting[name] = Voting(engine, relays, self.account, config)
            self.account.register(engine)
        await self._spending.start([*self._engines.values()])
        self._set_terms()
        self._start_probe()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})
        await self._spending.close()
        await self._grading.close()
        await self._stack.aclose()
        await asyncio.to_thread(self.account.close)

    @property
    def state(self) -> str:
        """The state that /ready reports: "ready", or "store" if that refuses all requests."""
        return "store" if self._spending.refuses_all else READY

    @property
    def store(self) -> str:
        """What is wrong with the account store; empty if nothing is."""
        return str(self._spending.store)

    def _start_probe(self) -> None:
        """Probe, in the background, upstreams of which nothing is known."""
        upstreams = [one for engine in self._engines.values() for one in engine.upstreams.values()]
        unknown = [upstream for upstream in upstreams if needs_probe(upstream.capabilities)]
        if self.config.probe and unknown:
            probe = probe_upstreams(unknown, self.account.calls)
            self._probing = asyncio.create_task(probe)
            self._probing.add_done_callback(lambda _: self._set_terms())

    def _set_terms(self) -> None:
        """Note what is known of upstreams, and of the models at the gateway's own."""
        upstreams = [one for engine in self._engines.values() for one in engine.upstreams.values()]
        by_address = "openai" if self.config.upstream().is_openai else None
        given = cast("UpstreamKind | None", self.config.upstream_kind or by_address)
        for upstream in upstreams if given is not None else ():
            upstream.capabilities = replace(upstream.capabilities, kind=given or "generic")
        own = [one for one in upstreams if one.base_url == self.relay.base_url]
        known = {one.model: one.capabilities for one in own}
        kinds = {one.capabilities.kind for one in upstreams}
        self._rules = self._rules.with_upstream(known, given, kinds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request below /v1."""
        exchange = Exchange(scope, receive, send)
        exchange.redact = self._upstreams.hide
        self._n_in_flight += 1
        self.account.metrics.add_in_flight(1)
        try:
            await self._serve_in_time(exchange)
        except ClientDisconnected:
            exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
        except EXPECTED as error:
            if (code := await send_error(exchange, error, self._upstreams.redact)) is not None:
                self.account.record_rejection(code)
        except BaseException as error:
            if isinstance(error, Exception):  # clients get no traceback
                self.account.record_rejection("internal_error")
                await send_internal_error(exchange)
            raise
        finally:
            self._n_in_flight -= 1
            self.account.metrics.add_in_flight(-1)
            self.account.record_request(exchange)

    async def _serve_in_time(self, exchange: Exchange) -> None:
        """Serve a request; raise ModelTimeout if it takes longer than any request may."""
        timeout_s = self.config.timeout_s
        try:
            with TimeLimit(timeout_s) as limit:
                await self._serve(exchange)
        except TimeoutError:
            if not limit.has_expired:
                raise
            raise ModelTimeout(f"the request was not answered within {timeout_s:g} s") from None

    async def _serve(self, exchange: Exchange) -> None:
        """Authorise a request, and vote on it or forward it."""
        if (rejection := self._rejection(exchange)) is not None:
            await self.reject(exchange, *rejection)
            return
        max_bytes = int(self.config.max_body_mb * MB)
        body = await exchange.read(max_bytes=max_bytes, timeout_s=BODY_TIMEOUT_S)
        with exchange.cancel_on_disconnect():
            budget = exchange.header(BUDGET_HEADER)
            coding = exchange.header("content-encoding") or "identity"
            arrival = Arrival(exchange.method, exchange.path, budget, coding.lower())
            found = read_request(self._rules, arrival, body)
            request = found.virtual
            if found.is_restricted:
                n_removed = exchange.remove_choices(is_json=found.judged is not None)
                self.account.metrics.count("removed_headers_total", by=n_removed)
            if exchange.method == "GET" and exchange.path == "/v1/models":
                await self._list_models(exchange)
                return
            if request is None:
                await self._forward(exchange, *found.for_upstream(body), found.reason or "model")
            else:
                exchange.model = request.model
                await self._serve_virtual(exchange, request, found)

    async def _serve_virtual(
        self, exchange: Exchange, request: VirtualRequest, found: ReadRequest
    ) -> None:
        voting = self._voting[request.model]
        if found.reason is None:
            exchange.max_samples = found.max_samples
            await voting.serve(exchange, request)
        else:
            await self._forward(exchange, *voting.for_upstream(request), found.reason)

    async def _forward(
        self, exchange: Exchange, body: bytes, bound: CallBound | None, reason: str
    ) -> None:
        """Forward a request that is not voted on; its bound is known if it was judged."""
        recorder = self.account.recorder(exchange, "forward", bound)
        virtual = self._voting.get(exchange.model)
        relay = self.relay if virtual is None else virtual.relay
        known = [voting.counts_all for voting in self._voting.values() if voting.relay is relay]
        headers = [(REASON_HEADER, reason.encode())]
        handling = ReplyHandling(headers, counts_all=bool(known) and all(known))
        try:
            await forward(exchange, relay, body, recorder, handling)
        finally:
            self.account.metrics.count("passthrough_requests_total", exchange.model, reason)

    def _rejection(self, exchange: Exchange) -> tuple[int, str, str] | None:
        """Return why a request is rejected before its body is read: a status, message and code."""
        if not self._tokens.accept(exchange.header("authorization")):
            return 401, "the bearer token is not valid", "invalid_api_key"
        if self._n_in_flight > self.config.max_concurrency:
            return 503, "too many requests are in flight", "overloaded"
        if exchange.method not in METHODS:
            return 405, "the method is not supported", "invalid_method"
        if has_dot_segments(exchange.path):
            return 400, "the path must not contain '..'", "invalid_path"
        if not allows_path(self.config.allowed_paths, exchange.method, exchange.path):
            return 403, "this method and path are not allowed", "path_not_allowed"
        return None

    async def reject(self, exchange: Exchange, status: int, message: str, code: str) -> None:
        """Send an error for a request that is not served, and count it."""
        self.account.record_rejection(code)
        await send_rejection(exchange, status, message, code)

    async def _list_models(self, exchange: Exchange) -> None:
        """Answer with the upstream's models and the virtual ones.

        An upstream without a list of models adds none; any other failure is forwarded.
        """
        async with self.relay.send(
            "GET", exchange.target, exchange.headers_without_compression, b""
        ) as relayed:
            data = await relayed.read()
        status, headers = relayed.status, relayed.headers
        if status == NOT_FOUND:
            status, headers, data = OK, [JSON], add_models(b"{}", self._names)
        elif status >= BAD_REQUEST:
            headers, data = redact_error(relayed, headers, data)
        elif status == OK and (plain := decompress(headers, data, MAX_BUFFERED)) is not None:
            headers, data = without_coding(headers), add_models(plain, self._names)
        await exchange.reply(status, headers, data)
