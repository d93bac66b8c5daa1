"""Bare proxy: a minimal forwarding proxy with Starlette and aiohttp, as a baseline.

``python -m benchmarks.bare_proxy UPSTREAM PORT`` serves until it is stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002 - Starlette reads the annotation
from starlette.responses import StreamingResponse
from starlette.routing import Route


def create_app(upstream: str) -> Starlette:
    """Return an application that forwards every request to an upstream."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            sessions.append(session)
            yield

    async def forward(request: Request) -> StreamingResponse:
        body = await request.body()
        skip = {"host", "content-length"}
        headers = {name: value for name, value in request.headers.items() if name not in skip}
        reply = await sessions[0].request(
            request.method, upstream + request.url.path, headers=headers, data=body
        )
        kept = {n: v for n, v in reply.headers.items() if n.lower() != "transfer-encoding"}
        return StreamingResponse(reply.content.iter_any(), reply.status, kept)

    route = Route("/v1/{path:path}", forward, methods=["GET", "POST"])
    return Starlette(routes=[route], lifespan=lifespan)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("upstream", help="URL to forward to, without a path")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    uvicorn.run(
        create_app(options.upstream), port=options.port, log_level="error", access_log=False
    )
