"""Exchange: one HTTP request of a client and its reply, in ASGI's terms.

It reads a body within limits, writes whole replies and events, and notices when the client is gone.
Headers of ours in a request are taken off here, so that nothing behind can be told what to do by
them. It knows nothing of models but the name that it is counted under.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from adacompute.gateway.openai_api import OWN_HEADERS, write_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
UNNAMED = "-"
"""Model of requests that name no virtual one: clients must not choose the names of metrics."""

BODILESS = (204, 304)
"""Statuses of replies that have no body, whose length is not told."""

EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class TooLarge(Exception):  # noqa: N818 - it names the state
    """A body of more bytes than are allowed."""


class ClientDisconnected(Exception):  # noqa: N818 - it names what happened
    """The client left before its request was complete."""


class Exchange:
    """One request under way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        self.path = raw.decode("latin-1").partition("?")[0]
        self._query: bytes = scope.get("query_string", b"")
        self._headers: Headers = list(scope["headers"])
        self._receive = receive
        self._send = send
        self.model = UNNAMED
        self.status = 0
        self._events = False
        self._complete = False

    @property
    def target(self) -> str:
        """The path as it was sent, below /v1/, with its query."""
        return self.path.removeprefix("/v1/") + self.query

    @property
    def query(self) -> str:
        """The query as it was sent, with its mark."""
        return "?" + self._query.decode("latin-1") if self._query else ""

    @property
    def headers(self) -> Headers:
        """The request's headers, without those that are for the gateway."""
        own = OWN_HEADERS.encode()
        return [(name, value) for name, value in self._headers if not name.startswith(own)]

    @property
    def unpacked(self) -> Headers:
        """The request's headers, asking for a reply that can be read here."""
        kept = [(name, value) for name, value in self.headers if name != b"accept-encoding"]
        return [*kept, (b"accept-encoding", b"identity")]

    def header(self, name: str) -> str | None:
        """One header's value."""
        wanted = name.encode()
        for known, value in self._headers:
            if known == wanted:
                return value.decode("latin-1")
        return None

    async def read(self, *, most: int, within_s: float) -> bytes:
        """Read the whole body; a slow one raises TimeoutError."""
        told = self.header("content-length")
        if told is not None and told.isdecimal() and int(told) > most:
            raise TooLarge
        parts: list[bytes] = []
        size, more = 0, True
        async with asyncio.timeout(within_s):
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                parts.append(message.get("body", b""))
                size, more = size + len(parts[-1]), message.get("more_body", False)
                if size > most:
                    raise TooLarge
        return b"".join(parts)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel what is done inside when the client leaves; that ends in Gone.

        Who has the whole reply may leave: what is still done inside, such as accounts, goes on.
        """
        task = asyncio.current_task()
        left = False

        async def listen() -> None:
            nonlocal left
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if task is not None and not self._complete:
                left = True
                task.cancel()

        listener = asyncio.ensure_future(listen())
        try:
            yield
        except asyncio.CancelledError:
            if not left:
                raise
            if task is not None:
                task.uncancel()
            raise ClientDisconnected from None
        finally:
            listener.cancel()

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin a reply."""
        self.status = status
        told = list(headers)
        self._events = any(n == b"content-type" and b"event-stream" in v for n, v in told)
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the reply, or with ``more=False`` its last."""
        self._complete = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], data: bytes) -> None:
        """Send a whole reply."""
        told = list(headers)
        if status not in BODILESS:
            told = [(name, value) for name, value in told if name != b"content-length"]
            told.append((b"content-length", b"%d" % len(data)))
        await self.start(status, told)
        await self.write(data, more=False)

    async def fail(
        self,
        status: int,
        message: str,
        kind: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Send an error, as an event where events have begun; any other reply is cut off."""
        data = write_error(message, kind, code=code, param=param)
        if self.status == 0:
            await self.reply(status, [JSON, *headers], data)
        elif self._events and not self._complete:
            await self.write(b"data: " + data + b"\n\n", more=False)
