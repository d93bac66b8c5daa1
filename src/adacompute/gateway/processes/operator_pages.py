"""Operator pages: pages such as health, readiness and metrics.

This is the only module that uses Starlette. It knows nothing of requests to models.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adacompute.core.errors import needs_extra
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.requests.openai_replies import write_error

READY = "ready"
"""State of a gateway that serves requests."""


@dataclass(frozen=True)
class Page:
    """A page: its status, and a JSON document or bytes of another type."""

    status: int
    content: Mapping[str, Any] | bytes
    media_type: str = "application/json"


def ready_page(state: str, models: Iterable[str], store: str) -> Page:
    """Say whether requests can be served, for which models, and what is wrong with the store."""
    content = {"status": state, "models": list(models), "store": store or "ok"}
    return Page(200 if state == READY else 503, content)


def metrics_page(metrics: Metrics, state: str) -> Page:
    """Show all numbers to Prometheus, and the state that /ready reports."""
    metrics.set_state(state)
    return Page(200, metrics.scrape(), "text/plain; version=0.0.4; charset=utf-8")


def make_pages(
    pages: Mapping[str, Callable[[str | None], Awaitable[Page]]],
    lifespan: Callable[[object], Any] | None = None,
) -> Any:  # noqa: ANN401 - an application of Starlette
    """Make an application of pages by method and path; each gets the header Authorization."""
    with needs_extra("serve"):
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route

    def route(target: str, make_page: Callable[[str | None], Awaitable[Page]]) -> Any:  # noqa: ANN401
        async def respond(request: Any) -> Any:  # noqa: ANN401 - Starlette's
            page = await make_page(request.headers.get("authorization"))
            content = page.content
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            return Response(data, page.status, media_type=page.media_type)

        method, _, path = target.partition(" ")
        return Route(path, respond, methods=[method])

    async def missing(request: Any, _: object) -> Any:  # noqa: ANN401 - Starlette's
        error = write_error(f"there is no {request.url.path}", "invalid_request_error")
        return Response(error, 404, media_type="application/json")

    return Starlette(
        routes=[route(target, make_page) for target, make_page in pages.items()],
        exception_handlers={404: missing},
        lifespan=lifespan,
    )
