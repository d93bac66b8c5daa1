"""App: the gateway as an ASGI application.

Requests below /v1 go to the gateway; the other pages are for operators. Without a bearer token,
only requests to a name of this machine are answered. An ASGI server starts and stops it. It knows
nothing of what a request asks for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote

from adacompute.core.errors import ConfigError
from adacompute.gateway.connection.exchange import Exchange, Receive, Scope, Send
from adacompute.gateway.gateway import Gateway
from adacompute.gateway.processes.operator_pages import (
    Page,
    make_pages,
    metrics_page,
    ready_page,
)
from adacompute.gateway.requests.access import names_this_machine
from adacompute.gateway.settings.config import Config
from adacompute.gateway.voting.virtual_model import VirtualModel
from adacompute.spending.registers import Register


class Application:
    """The gateway as an ASGI application: /v1 is the gateway's, and the rest is the operator's.

    Of the operator's pages, /health is always there, and /ready and /metrics unless they are
    served on another port. An ASGI server starts and stops it. Mounted inside another
    application, it is started by that application's lifespan: pass ``lifespan`` to it.
    """

    def __init__(self, gateway: Gateway, *, has_operator_pages: bool = True) -> None:
        self.gateway = gateway
        self.connection_limits = gateway.connection_limits
        pages = _operator_pages(gateway)
        if not has_operator_pages:
            pages = {"GET /health": pages["GET /health"]}
        self._operator = make_pages(pages, self.lifespan)
        self._is_started = False

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Open the connections, and close them at the end; the argument is not used."""
        async with self.gateway:
            self._is_started = True
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of an ASGI server."""
        path = scope.get("raw_path") or scope.get("path", "").encode()
        mount = scope.get("root_path", "").encode()
        if mount and path.startswith(mount + b"/"):
            path = path.removeprefix(mount)
            scope = {**scope, "root_path": "", "raw_path": path, "path": unquote(path.decode())}
        if scope["type"] != "http":
            await self._operator(scope, receive, send)
            return
        if not self.gateway.config.bearer_tokens and not names_this_machine(scope["headers"]):
            exchange = Exchange(scope, receive, send)
            message = "the gateway does not answer to this Host"
            await self.gateway.reject(exchange, 403, message, "invalid_host")
            self.gateway.account.record_request(exchange)
            return
        await self._dispatch(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path") or scope["path"].encode()
        if not path.startswith(b"/v1/"):
            await self._operator(scope, receive, send)
            return
        if not self._is_started:
            raise ConfigError(
                "the gateway was not started: pass lifespan=app.lifespan to the application that "
                "it is mounted in"
            )
        await self.gateway(scope, receive, send)


def _operator_pages(gateway: Gateway) -> dict[str, Callable[[str | None], Awaitable[Page]]]:
    async def health(_: object) -> Page:
        return Page(200, {"status": "ok"})

    async def ready(_: object) -> Page:
        return ready_page(gateway.state, gateway.models, gateway.store)

    async def metrics(_: object) -> Page:
        return metrics_page(gateway.account.metrics, gateway.state)

    return {"GET /health": health, "GET /ready": ready, "GET /metrics": metrics}


def build(
    config: Config,
    models: Mapping[str, VirtualModel],
    *,
    register: Register | None = None,
    has_operator_pages: bool = True,
) -> Application:
    """Make the application from its configuration; ``register`` counts what workers spent."""
    gateway = Gateway(config, models, register)
    return Application(gateway, has_operator_pages=has_operator_pages)
