"""Bare proxy: the least that Starlette and aiohttp do to pass a request on, to compare with.

``python benchmarks/bare_proxy.py UPSTREAM PORT`` serves until it is stopped.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002 - Starlette reads it
from starlette.responses import StreamingResponse
from starlette.routing import Route

UPSTREAM, PORT = sys.argv[1], int(sys.argv[2])
SESSIONS: list[aiohttp.ClientSession] = []


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Hold one session."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        SESSIONS.append(session)
        yield


async def relay(request: Request) -> StreamingResponse:
    """Pass a request on, and its reply back."""
    body = await request.body()
    skip = {"host", "content-length"}
    headers = {name: value for name, value in request.headers.items() if name not in skip}
    reply = await SESSIONS[0].request(
        request.method, UPSTREAM + request.url.path, headers=headers, data=body
    )
    kept = {n: v for n, v in reply.headers.items() if n.lower() != "transfer-encoding"}
    return StreamingResponse(reply.content.iter_any(), reply.status, kept)


app = Starlette(
    routes=[Route("/v1/{path:path}", relay, methods=["GET", "POST"])], lifespan=lifespan
)

if __name__ == "__main__":
    uvicorn.run(app, port=PORT, log_level="error", access_log=False)
