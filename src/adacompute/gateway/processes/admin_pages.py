"""Admin pages: health, readiness, metrics and administration of a gateway, on a port of their own.

They are served by the supervisor for all workers. Administration needs the admin key. They know
nothing of requests to models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from adacompute.gateway.connection.exchange import Exchange, Receive, Scope, Send
from adacompute.gateway.error_replies import send_rejection
from adacompute.gateway.processes.operator_pages import Page, make_pages, metrics_page, ready_page
from adacompute.gateway.requests.access import BearerTokens, is_loopback, names_this_machine

if TYPE_CHECKING:
    from adacompute.gateway.processes.supervisor import Supervisor

FLUSH_TIMEOUT_S = 1.0
"""How long the page of metrics waits for a worker to show what it counted."""

OK, FORBIDDEN, UNAUTHORIZED, CONFLICT, UNAVAILABLE = 200, 403, 401, 409, 503


def make_admin_pages(supervisor: Supervisor) -> Any:  # noqa: ANN401 - Starlette's
    """Make the pages of the admin port."""

    async def health(_: object) -> Page:
        answers = await asyncio.gather(*(worker.ping() for worker in supervisor.workers))
        is_healthy = bool(answers) and all(answers)
        document = {"status": "ok" if is_healthy else "unhealthy"}
        return Page(OK if is_healthy else UNAVAILABLE, document)

    async def ready(_: object) -> Page:
        return ready_page(supervisor.state, supervisor.config.models, supervisor.store)

    async def metrics(_: object) -> Page:
        # A worker that answers has shown everything that it counted.
        await asyncio.gather(*(worker.ping(FLUSH_TIMEOUT_S) for worker in supervisor.workers))
        return metrics_page(supervisor.metrics, supervisor.state)

    async def workers(authorization: str | None) -> Page:
        if (rejection := _rejection(supervisor, authorization)) is not None:
            return rejection
        listed = [{"pid": one.pid, "state": one.state} for one in supervisor.workers]
        return Page(OK, {"workers": listed})

    async def reload(authorization: str | None) -> Page:
        if (rejection := _rejection(supervisor, authorization)) is not None:
            return rejection
        error = await supervisor.reload()
        if error is not None:
            return Page(CONFLICT, {"status": "rejected", "error": error})
        return Page(OK, {"status": "applied"})

    pages = make_pages(
        {
            "GET /health": health,
            "GET /ready": ready,
            "GET /metrics": metrics,
            "GET /admin/workers": workers,
            "POST /admin/reload": reload,
        }
    )
    return _refuse_web_pages(pages, supervisor.config.admin_host)


def _refuse_web_pages(pages: Callable[..., Awaitable[None]], host: str) -> Any:  # noqa: ANN401
    """Return pages that no web page can reach on its reader's own machine."""
    if not is_loopback(host):
        return pages

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not names_this_machine(scope["headers"]):
            message = "the gateway does not answer to this Host"
            await send_rejection(Exchange(scope, receive, send), 403, message, "invalid_host")
            return
        await pages(scope, receive, send)

    return check


def _rejection(supervisor: Supervisor, authorization: str | None) -> Page | None:
    """Return why a request may not administer the gateway; None if it may."""
    key = supervisor.config.admin_key
    if key is None:
        return Page(FORBIDDEN, {"error": "administration is off: set admin_key"})
    if not BearerTokens([key]).accept(authorization):
        return Page(UNAUTHORIZED, {"error": "the admin key is not valid"})
    return None
