"""Operator pages: health, readiness and metrics of a gateway, and the headers for web pages.

This is the only module that uses Starlette. It knows nothing of requests to models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import needs_extra
from adacompute.gateway.openai_replies import write_error

if TYPE_CHECKING:
    from adacompute.gateway.app import Gateway

EXPOSED_HEADERS = [
    f"x-adacompute-{name}"
    for name in ("samples", "price", "decision", "debug", "passthrough", "question")
]
"""Headers of replies that web pages may read, besides those that they always may."""


def allow_origins(application: Callable[..., Any], origins: Sequence[str]) -> Callable[..., Any]:
    """Return an application that lets pages of these origins send requests and read replies."""
    if not origins:
        return application
    with needs_extra("serve"):
        from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        application,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=EXPOSED_HEADERS,
    )


def make_operator_pages(gateway: Gateway, lifespan: Callable[[object], Any]) -> Any:  # noqa: ANN401
    """Make the pages for operators, an application of Starlette."""
    with needs_extra("serve"):
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

    async def health(_: object) -> Any:  # noqa: ANN401 - Starlette's
        return JSONResponse({"status": "ok"})

    async def ready(_: object) -> Any:  # noqa: ANN401 - Starlette's
        state = gateway.state
        document = {"status": state, "models": list(gateway.models)}
        return JSONResponse(document, 200 if state == "ready" else 503)

    async def metrics(_: object) -> Any:  # noqa: ANN401 - Starlette's
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(gateway.account.metrics.scrape(), media_type=kind)

    async def missing(request: Any, _: object) -> Any:  # noqa: ANN401 - Starlette's
        error = write_error(f"there is no {request.url.path}", "invalid_request_error")
        return Response(error, 404, media_type="application/json")

    return Starlette(
        routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)],
        exception_handlers={404: missing},
        lifespan=lifespan,
    )
