"""Exchange: one HTTP request of a client and its reply, over ASGI.

It reads a body within limits, writes replies and events, and notices when the client disconnects.
Our own headers are removed from the request here, so that nothing behind is controlled by them. It
knows nothing of models except the name that requests are counted under.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import cached_property
from typing import Any

from adacompute.gateway.connection.time_limit import TimeLimit
from adacompute.gateway.requests.openai_replies import write_error
from adacompute.spending.attempts import MAX_TEXT_CHARS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
NO_MODEL = "-"
"""Model label of other requests: clients must not choose the labels of metrics."""

OWN_HEADERS = b"x-adacompute-"

KEPT_HEADERS = re.compile(
    rb"accept(-.*)?|authorization|content-(type|length)|user-agent|traceparent|tracestate|baggage"
    rb"|b3|x-b3-.*|x-datadog-.*|x-trace(-.*)?|sentry-trace|x-request-id|x-correlation-id"
    rb"|x-client-request-id|x-stainless-.*|openai-beta|anthropic-(version|beta)|host|connection"
    rb"|x-adacompute-.*"
)
"""Headers that choose neither a payer nor a target nor a stored reply."""

KEPT_PARAMETERS = re.compile(rb"(api-version|beta)=[\w.-]*")
"""Parameters of a query that choose neither."""

WATCH_DISCONNECT = "adacompute.watch_disconnect"
"""Member of the scope of a server that reports a disconnect without a task that waits for it."""

WRITE_REPLY = "adacompute.write_reply"
"""Member of the scope of a server that can write a whole reply at once."""

WriteReply = Callable[[Send, int, Headers, bytes], bool]
"""Takes where a reply would be sent, its status, headers and body; returns if it is written."""

WatchDisconnect = Callable[[Callable[[], None]], Callable[[], object]]
"""Takes a function to call when the client disconnects; returns one that ends that."""

BODILESS = (204, 304)
"""Statuses of replies without a body and without a length."""

EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class TooLarge(Exception):  # noqa: N818 - it names the state
    """A body that is larger than allowed."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body is larger than {max_bytes / 1e6:g} MB")


class ClientDisconnected(Exception):  # noqa: N818 - it names what happened
    """The client disconnected before its request was answered."""


class CancelOnDisconnect:
    """A context manager that cancels its block when ``watch`` reports that the client has left."""

    __slots__ = ("_has_left", "_is_complete", "_stop_watching", "_task", "_watch")

    def __init__(self, watch: WatchDisconnect, is_complete: Callable[[], bool]) -> None:
        self._watch = watch
        self._is_complete = is_complete
        self._has_left = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._stop_watching = self._watch(self._cancel)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop_watching()
        if self._has_left and kind is asyncio.CancelledError:
            if self._task is not None:
                self._task.uncancel()
            raise ClientDisconnected from None

    def _cancel(self) -> None:
        if self._task is not None and not self._is_complete():
            self._has_left = True
            self._task.cancel()


class Exchange:
    """One request in flight."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        self.path = raw.decode("latin-1").partition("?")[0]
        self._query: bytes = scope.get("query_string", b"")
        self._headers: Headers = list(scope["headers"])
        self._receive = receive
        self._watch_disconnect: WatchDisconnect | None = scope.get(WATCH_DISCONNECT)
        self._write_reply: WriteReply | None = scope.get(WRITE_REPLY)
        self._send = send
        self.model = NO_MODEL
        self.max_samples = 1
        self.error_code: str | None = None
        self.error: str | None = None
        self.error_fields: Mapping[str, Any] = {}
        self.failed_status = 0
        self.decision_id: str | None = None
        self.n_samples: int | None = None
        self.cost: float | None = None
        self.upstream_model: str | None = None
        self.started_at = time.perf_counter()
        self.redact: Callable[[str], str] = str
        self.status = 0
        self._is_stream = False
        self._is_complete = False

    @property
    def final_status(self) -> int:
        """The status of the reply, or of the failure that a reply which had begun ended with."""
        return self.failed_status or self.status

    @property
    def elapsed_s(self) -> float:
        """Time since the request began."""
        return time.perf_counter() - self.started_at

    @property
    def target(self) -> str:
        """The path below /v1/ as it was sent, with its query."""
        return self.path.removeprefix("/v1/") + self.query

    @property
    def query(self) -> str:
        """The query as it was sent, with its question mark."""
        return "?" + self._query.decode("latin-1") if self._query else ""

    @property
    def headers(self) -> Headers:
        """The request's headers without our own."""
        return [(name, value) for name, value in self._headers if not name.startswith(OWN_HEADERS)]

    def remove_choices(self, *, is_json: bool) -> int:
        """Remove headers and parts of the query that may choose a payer or target; return how many.

        With ``is_json``, the type of the body is written anew: servers read some as forms.
        """
        kept = [one for one in self._headers if KEPT_HEADERS.fullmatch(one[0])]
        parts = self._query.split(b"&") if self._query else []
        kept_parts = [part for part in parts if KEPT_PARAMETERS.fullmatch(part)]
        n_removed = len(self._headers) - len(kept) + len(parts) - len(kept_parts)
        if is_json:
            kept = [JSON, *(one for one in kept if one[0] != b"content-type")]
        self._headers, self._query = kept, b"&".join(kept_parts)
        return n_removed

    @cached_property
    def request_id(self) -> str:
        """The client's ``x-request-id`` as it is logged, or an id of our own."""
        return (self.header("x-request-id") or os.urandom(8).hex())[:MAX_TEXT_CHARS]

    @property
    def headers_without_compression(self) -> Headers:
        """The request's headers, asking for a reply without compression."""
        kept = [(name, value) for name, value in self.headers if name != b"accept-encoding"]
        return [*kept, (b"accept-encoding", b"identity")]

    def header(self, name: str) -> str | None:
        """Return the value of a header."""
        wanted = name.encode()
        for known, value in self._headers:
            if known == wanted:
                return value.decode("latin-1")
        return None

    async def read(self, *, max_bytes: int, timeout_s: float) -> bytes:
        """Read the whole body; raise TooLarge or TimeoutError if it exceeds its limits."""
        length = self.header("content-length")
        if length is not None and length.isdecimal() and int(length) > max_bytes:
            raise TooLarge(max_bytes)
        whole = io.BytesIO()  # its value is not copied
        size, more = 0, True
        with TimeLimit(timeout_s):
            while more:
                part, more = await self._receive_part()
                size += len(part)
                if size > max_bytes:
                    raise TooLarge(max_bytes)
                if not more and size == len(part):
                    return part
                whole.write(part)
                del part  # or it is held twice while the next is awaited
        return whole.getvalue()

    async def _receive_part(self) -> tuple[bytes, bool]:
        """Receive a part of the body, and whether more follow."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    def cancel_on_disconnect(self) -> CancelOnDisconnect:
        """Cancel a block when the client disconnects, and raise ClientDisconnected.

        A client that disconnects after the full reply cancels nothing.
        """
        return CancelOnDisconnect(self._watch, lambda: self._is_complete)

    def _watch(self, on_disconnect: Callable[[], None]) -> Callable[[], object]:
        """Have a function called when the client disconnects; return what ends that."""
        if self._watch_disconnect is not None:
            return self._watch_disconnect(on_disconnect)

        async def listen() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            on_disconnect()

        return asyncio.ensure_future(listen()).cancel

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin a reply."""
        self.status = status
        listed = list(headers)
        kinds = [value for name, value in listed if name == b"content-type"]
        self._is_stream = any(b"event-stream" in kind for kind in kinds)
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the reply, or with ``more=False`` its last."""
        self._is_complete = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], data: bytes) -> None:
        """Send a whole reply."""
        listed = list(headers)
        if status not in BODILESS:
            listed = [(name, value) for name, value in listed if name != b"content-length"]
            listed.append((b"content-length", b"%d" % len(data)))
            write = None if self.method == "HEAD" else self._write_reply
            if write is not None and write(self._send, status, listed, data):
                self.status, self._is_complete = status, True
                return
        await self.start(status, listed)
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
        """Send an error, as an event if a stream has begun; any other begun reply is cut off."""
        self.failed_status = status
        self.error = self.error or message
        data = write_error(self.redact(message), kind, code=code, param=param, **self.error_fields)
        if self.status == 0:
            await self.reply(status, [JSON, *headers], data)
        elif self._is_stream and not self._is_complete:
            await self.write(b"data: " + data + b"\n\n", more=False)
