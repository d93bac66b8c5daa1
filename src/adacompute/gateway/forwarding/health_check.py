"""Health check: a completion of one token, by which a gateway sees whether its upstream answers.

It goes to the upstream model of the first virtual model; without one, to the model of the last
request that succeeded; and before there was any, the list of models is requested instead. It is
recorded like a call of a probe, and a cap can forbid it. It does not decide when to check.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from adacompute.core.errors import ModelError
from adacompute.gateway.accounting.call_log import CallLog, CallOrigin, CallRecorder
from adacompute.gateway.accounting.caps import CapReached, NotPriced
from adacompute.gateway.connection.exchange import JSON, NO_MODEL, Exchange
from adacompute.gateway.forwarding.passthrough import SUCCESS, forward
from adacompute.gateway.forwarding.probing import NO_CLIENT
from adacompute.gateway.forwarding.upstream_health import UpstreamHealth
from adacompute.gateway.processes.logs import log
from adacompute.gateway.requests.fields import CHAT, COMPLETIONS
from adacompute.models.connection.relay import Relay
from adacompute.models.openai import Upstream

FIRST_FAILURE = 500
_PATHS = {f"/v1/{path}": path for path in (CHAT, COMPLETIONS)}


@dataclass
class HealthCheck:
    """Checks of one upstream; ``upstreams`` has those of the virtual models, by their names."""

    relay: Relay
    calls: CallLog
    upstreams: Mapping[str, Upstream] = field(default_factory=dict)
    _last: tuple[str, str] | None = None
    """Path and model of the last request that succeeded."""

    def note_success(self, exchange: Exchange) -> None:
        """Remember the model of a request that succeeded."""
        path = _PATHS.get(exchange.path)
        if path is not None and exchange.upstream_model is not None:
            self._last = path, exchange.upstream_model

    async def run(self) -> bool | None:
        """Whether the upstream answers, also if with status 4xx; None if it may not be asked."""
        try:
            status = await self._ask()
        except (CapReached, NotPriced) as error:
            log(logging.WARNING, "a cap forbids a check of the upstream", error=str(error))
            return None
        except ModelError as error:
            log(logging.WARNING, "a check of the upstream failed", error=str(error))
            return False
        if status >= FIRST_FAILURE:
            log(logging.WARNING, "a check of the upstream failed", status=status)
        return status < FIRST_FAILURE

    async def _ask(self) -> int:
        """Return the status of a completion of one token, or of the list of models."""
        first = next(iter(self.upstreams.items()), None)
        if first is not None:
            name, known = first[0], first[1].capabilities
            path = COMPLETIONS if known.chat == "unavailable" else CHAT
            body = _write_body(path, first[1].model, known.max_tokens_field)
        elif self._last is not None:
            name, (path, model) = NO_MODEL, self._last
            body = _write_body(path, model, "max_tokens")
        else:
            async with self.relay.send("GET", "models", [], b"") as relayed:
                return relayed.status
        scope = {"method": "POST", "path": f"/v1/{path}", "headers": [JSON]}
        origin = CallOrigin("health", client=NO_CLIENT, model=name, purpose="probe")
        exchange = Exchange(scope, _receive, _discard)
        return (await forward(exchange, self.relay, body, CallRecorder(self.calls, origin))).status


class HealthChecks:
    """The health of all upstreams, by their names; the gateway's own has the name None."""

    def __init__(self, calls: CallLog) -> None:
        self._calls = calls
        self._checks: dict[str | None, HealthCheck] = {}
        self._healths: dict[str | None, UpstreamHealth] = {}

    def add(self, name: str | None, relay: Relay, upstreams: Mapping[str, Upstream]) -> None:
        """Add an upstream, with the clients of the virtual models that it serves."""
        self._checks[name] = HealthCheck(relay, self._calls, upstreams)
        self._healths[name] = UpstreamHealth(self._checks[name].run)

    @property
    def is_failing(self) -> bool:
        """Whether every upstream that was asked lately fails."""
        asked = [one for one in self._healths.values() if one.was_asked]
        return bool(asked) and all(one.is_failing for one in asked)

    def admits(self, name: str | None) -> bool:
        """Whether a request may be sent to an upstream now."""
        return self._healths[name].admits()

    def record(self, name: str | None, exchange: Exchange) -> None:
        """Note whether an upstream served a request, unless it rejected it or was not asked."""
        status = exchange.final_status
        if status in SUCCESS:
            self._checks[name].note_success(exchange)
        if exchange.error_code is None and (status in SUCCESS or status >= FIRST_FAILURE):
            self._healths[name].record(is_failure=status >= FIRST_FAILURE)

    async def close(self) -> None:
        """Stop checking."""
        for health in self._healths.values():
            await health.close()


def _write_body(path: str, model: str, limit: str) -> bytes:
    """Write a request for one token."""
    question = "Say yes."
    messages = [{"role": "user", "content": question}]
    prompt = {"messages": messages} if path == CHAT else {"prompt": question}
    return json.dumps({"model": model, **prompt, limit: 1}).encode()


async def _receive() -> MutableMapping[str, Any]:
    return {"type": "http.request"}


async def _discard(_: MutableMapping[str, Any]) -> None:
    """Drop a part of the reply."""
