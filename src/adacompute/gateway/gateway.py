"""Gateway: everything that requests share, and what happens to each request.

A request is authorised, parsed, and either voted on or forwarded unchanged. Every failure is
answered in OpenAI's error format with the correct status. It makes no decision and changes no body
itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from adacompute.core.errors import ModelError, ModelTimeout
from adacompute.gateway.accounting.account import Account
from adacompute.gateway.accounting.spending import Spending
from adacompute.gateway.accounting.tracing import Spans
from adacompute.gateway.connection.browser_checks import BrowserChecks
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
from adacompute.gateway.error_replies import EXPECTED, send_error, send_rejection
from adacompute.gateway.forwarding.passthrough import (
    MAX_BUFFERED,
    forward,
    redact_error,
    without_coding,
)
from adacompute.gateway.forwarding.probing import needs_probe, probe_upstreams
from adacompute.gateway.forwarding.upstream_health import UpstreamHealth
from adacompute.gateway.forwarding.upstreams import Upstreams
from adacompute.gateway.forwarding.usage_reader import decompress
from adacompute.gateway.processes.operator_pages import READY
from adacompute.gateway.requests.admission import Admission
from adacompute.gateway.requests.clients import Clients
from adacompute.gateway.requests.openai_replies import add_models
from adacompute.gateway.requests.openai_requests import (
    BUDGET_HEADER,
    PATHS,
    REFUSED_PATHS,
    VOTED_PATHS,
    VirtualRequest,
    has_dot_segments,
    parse_request,
    passthrough_reason,
)
from adacompute.gateway.requests.output_limits import limit_forwarded
from adacompute.gateway.requests.request_checks import (
    check_budget,
    check_choices,
    check_request,
    max_samples,
)
from adacompute.gateway.settings.config import Config
from adacompute.gateway.settings.log_settings import MB
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.grading_queues import GradingQueues
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.gateway.voting.voting import Voting
from adacompute.spending.registers import Register
from adacompute.spending.token_prices import parse_token_prices

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UPSTREAM_FAILURES = (500, 502, 503, 504)
UPSTREAM_STATUSES = (200, *UPSTREAM_FAILURES)
OK, BAD_REQUEST, NOT_FOUND, CLIENT_CLOSED_REQUEST = 200, 400, 404, 499


class Gateway:
    """Everything that requests share: connections, models, limits and the account."""

    def __init__(
        self,
        config: Config,
        models: Mapping[str, VirtualModel],
        admission: Admission | None = None,
        register: Register | None = None,
    ) -> None:
        self.config = config
        self.models = models
        self._admission = admission or Admission(config)
        price_lists = {name: virtual.price_list for name, virtual in models.items()}
        price_lists[NO_MODEL] = {}
        if config.token_prices is not None:
            price_lists[NO_MODEL] = parse_token_prices(Path(config.token_prices))
        spans = Spans() if config.traces else None
        self.account = Account(config.log, config.calls.open(config.port), price_lists, spans)
        self._spending = Spending(config, tuple(models.values()), self.account.metrics, register)
        self.stop_by: float | None = None
        self._probing: asyncio.Task[None] | None = None
        self._n_in_flight = 0
        self._names = tuple(models)
        self.clients = Clients(config.client_keys, config.client_limits, config.allowed_paths)
        self.browser_checks = BrowserChecks(
            bool(config.client_keys), tuple(config.allowed_hosts), tuple(config.allowed_origins)
        )
        self.connection_limits = ConnectionLimits(
            max_request_line_bytes=config.max_request_line_bytes,
            max_header_bytes=config.max_header_bytes,
            max_headers=config.max_headers,
            max_connections_per_address=config.max_connections_per_address,
            trusted_proxies=config.trusted_proxies,
            on_rejected=self.account.record_refused_connection,
        )
        self._stack = AsyncExitStack()
        self._upstreams = Upstreams(config, self.account, self._stack)
        self._voting: dict[str, Voting] = {}
        self._health = UpstreamHealth(self._upstream_answers, config.max_upstream_failures)
        self._grading = GradingQueues(config, self.account.metrics)

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
            await engine.warm_up()
            self._voting[name] = Voting(engine, relays, self.account, config)
            self.account.register(engine)
        await self._spending.start([one.engine.held_budgets for one in self._voting.values()])
        self._start_probe()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})
        await self._health.close()
        drain_s = self.config.drain_s
        if self.stop_by is not None:
            drain_s = max(0.0, self.stop_by - time.monotonic())
        drained = (voting.finish(drain_s) for voting in self._voting.values())
        await asyncio.gather(*drained)
        await self._spending.close()
        await self._grading.close()
        await self._stack.aclose()
        await asyncio.to_thread(self.account.close)

    @property
    def state(self) -> str:
        """The state that /ready reports: "ready", or why requests cannot be served."""
        if self._health.is_failing:
            return "upstream failing"
        if any(voting.engine.lacks_logprobs for voting in self._voting.values()):
            return "upstream returns no log-probabilities"
        if self._spending.refuses_all:
            return f"account store {self.store}"
        return READY if self._probing is None or self._probing.done() else "probing"

    @property
    def store(self) -> str:
        """What is wrong with the account store; empty if nothing is."""
        return str(self._spending.store)

    def _start_probe(self) -> None:
        """Probe, in the background, upstreams of which nothing is known."""
        engines = [voting.engine for voting in self._voting.values()]
        upstreams = [upstream for engine in engines for upstream in engine.upstreams.values()]
        unknown = [upstream for upstream in upstreams if needs_probe(upstream.capabilities)]
        if self.config.probe and unknown:
            probe = probe_upstreams(self.config, unknown, self.account.calls)
            self._probing = asyncio.create_task(probe)

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
                await exchange.fail(500, "internal error, see the gateway's log", "server_error")
            raise
        finally:
            self._n_in_flight -= 1
            self.account.metrics.add_in_flight(-1)
            self.account.record_request(exchange)
            status = exchange.final_status
            if status in UPSTREAM_STATUSES and exchange.error_code is None:
                self._health.record(is_failure=status != OK)

    async def _upstream_answers(self) -> bool:
        """Whether the upstream answers a request that costs nothing."""
        try:
            async with self.relay.send("GET", "models", [], b"") as relayed:
                return relayed.status < min(UPSTREAM_FAILURES)
        except ModelError:
            return False

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
        with self._admission.admit("client", exchange.client) as rejection:
            if rejection is not None:
                await self.reject(exchange, *rejection)
                return
            await self._serve_authorized(exchange)

    async def _serve_authorized(self, exchange: Exchange) -> None:
        is_voted = PATHS.get(exchange.path) in VOTED_PATHS
        body = await exchange.read(
            max_bytes=int(self.config.max_body_mb * MB),
            timeout_s=self.config.body_timeout_s,
            max_elements=self.config.max_json_elements if is_voted else math.inf,
        )
        check_request(self.config, exchange.client, exchange.method, exchange.path, body)
        request = None
        if exchange.method == "POST" and exchange.path in (*PATHS, *REFUSED_PATHS):
            request = parse_request(
                exchange.path,
                body,
                self._names,
                exchange.header(BUDGET_HEADER),
                max_elements=self.config.max_json_elements,
            )
            if request is not None:
                check_budget(self.config, exchange.client, request)
        async with exchange.cancel_on_disconnect():
            if exchange.method == "GET" and exchange.path == "/v1/models":
                await self._list_models(exchange)
                return
            if request is None:
                await self._forward(exchange, body, "model" if exchange.path in PATHS else "path")
                return
            exchange.model = request.model
            with self._admission.admit("model", request.model) as rejection:
                if rejection is not None:
                    await self.reject(exchange, *rejection)
                    return
                await self._serve_virtual(exchange, request)

    async def _serve_virtual(self, exchange: Exchange, request: VirtualRequest) -> None:
        voting = self._voting[request.model]
        if reason := passthrough_reason(request, voting.engine.virtual.answer_field):
            await self._forward(exchange, voting.body_for_upstream(request), reason)
        else:
            exchange.max_samples = max_samples(self.config, exchange.client, request.model)
            await voting.serve(exchange, request)

    async def _forward(self, exchange: Exchange, body: bytes, reason: str) -> None:
        """Forward a request that is not voted on."""
        check_choices(body, max_samples(self.config, exchange.client, exchange.model))
        if exchange.method == "POST" and exchange.model not in self.models:
            limit, max_elements = self.config.max_output_tokens, self.config.max_json_elements
            body = limit_forwarded(body, exchange.path, limit, max_elements=max_elements)
        recorder = self.account.recorder(exchange, "forward")
        virtual = self._voting.get(exchange.model)
        relay = self.relay if virtual is None else virtual.relay
        known = [voting.counts_all for voting in self._voting.values() if voting.relay is relay]
        counts_all = bool(known) and all(known)
        try:
            await forward(exchange, relay, body, recorder, reason=reason, counts_all=counts_all)
        finally:
            self.account.metrics.count("passthrough_requests_total", exchange.model, reason)

    def _rejection(self, exchange: Exchange) -> tuple[int, str, str] | None:
        """Return why a request is rejected before its body is read: a status, message and code."""
        client = self.clients.identify(exchange.header("authorization"))
        if client is None:
            return 401, "the API key is not valid", "invalid_api_key"
        exchange.client = client
        if self._n_in_flight > self.config.max_concurrency:
            return 503, "too many requests are in flight", "overloaded"
        if exchange.method not in METHODS:
            return 405, "the method is not supported", "invalid_method"
        if has_dot_segments(exchange.path):
            return 400, "the path must not contain '..'", "invalid_path"
        return self._client_rejection(exchange, client)

    def _client_rejection(self, exchange: Exchange, client: str) -> tuple[int, str, str] | None:
        """Return why a request is rejected by its path, or because the upstream fails."""
        if not self.clients.allows_path(client, exchange.method, exchange.path):
            message = "this method and path are not allowed: see allowed_paths"
            return 403, message, "path_not_allowed"
        if not self._health.admits():
            message = "the upstream fails repeatedly, so the request was not sent to it"
            return 503, message, "upstream_failing"
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
            data = await relayed.read(int(self.config.max_reply_mb * MB))
        status, headers = relayed.status, relayed.headers
        names = [one for one in self._names if self.clients.allows_model(exchange.client, one)]
        if status == NOT_FOUND:
            status, headers, data = OK, [JSON], add_models(b"{}", names)
        elif status >= BAD_REQUEST:
            headers, data = redact_error(relayed, headers, data)
        elif status == OK and (plain := decompress(headers, data, MAX_BUFFERED)) is not None:
            allowed = self.clients.limits_of(exchange.client).models
            headers, data = without_coding(headers), add_models(plain, names, allowed)
        await exchange.reply(status, headers, data)
