"""Client protocol: uvicorn's HTTP protocol with limits on what a client may send, and how slowly.

It rejects requests whose head, chunk framing or trailers are too large, limits the connections of
one address, and closes connections that do not begin a request, do not finish its headers, or do
not receive its reply. Trailers are not headers and are ignored, and so is a wish for another
protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
)

from adacompute.gateway.connection.connection_limits import ConnectionLimits
from adacompute.gateway.connection.exchange import WATCH_DISCONNECT, WRITE_REPLY, Headers, Send
from adacompute.gateway.requests.openai_replies import write_error

HEADERS_TIMEOUT_S = 30.0
"""Time from a connection, or from the first byte of a request, to the end of its headers."""

SEND_TIMEOUT_S = 300.0
"""Time in which a client must receive a part of its reply; the system may buffer megabytes."""

MAX_PIPELINED = 16
"""Requests that may wait on a connection for the reply to an earlier one."""

MAX_DISCARDED_BYTES = 10_000_000
"""Bytes of a body that are read after its request was answered, so that the reply arrives."""

FRAMING_SHARE = 4
"""Chunk sizes may take one byte for this many bytes of a body, beside ``max_header_bytes``."""

BAD_REQUEST, TOO_MANY_REQUESTS, HEADERS_TOO_LARGE = 400, 429, 431
_CODING_CHARS = len(b"transfer-encoding")
RETRIED = (TOO_MANY_REQUESTS, 503)


class LimitExceeded(Exception):  # noqa: N818 - it names what happened
    """Raised inside a callback of the parser, which stops at once."""


class ClientProtocol(HttpToolsProtocol):
    """Limits what clients send; the application may have ``connection_limits`` of its own."""

    headers_timeout_s = HEADERS_TIMEOUT_S
    send_timeout_s = SEND_TIMEOUT_S
    headers_timer: asyncio.TimerHandle | None = None
    send_timer: asyncio.TimerHandle | None = None
    rejection: tuple[int, str, str] | None = None
    is_in_head = False
    is_in_message = False
    n_framing = 0
    """Bytes of the current request that are not its body."""
    n_new = 0
    """Bytes received now that belong to a request which begins with them."""
    n_head = 0
    """Bytes of the headers that are complete."""
    n_body = 0
    n_discarded = 0
    is_last_request = False
    is_lost = False
    answered: Any = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Count the connection, and start the timer of the first request."""
        super().connection_made(transport)
        self.on_disconnect: Callable[[], None] = _ignore
        self.limits: ConnectionLimits = getattr(self.app, "connection_limits", _DEFAULT_LIMITS)
        self.address = self.client[0] if self.client else ""
        if self.limits.add(self.address):
            self._start_headers_timer()
        else:
            message = "the address has too many open connections"
            self.rejection = (TOO_MANY_REQUESTS, message, "too_many_connections")
            self.send_400_response("")

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and count what is not a body.

        The parser reports only complete headers, so the bytes of an incomplete one count here.
        """
        if self.rejection is not None:
            return
        if self.is_in_message:
            self.n_framing += len(data)
        else:
            self.n_new = len(data)
        self._parse(data)
        limit = self.limits.max_header_bytes
        if self.rejection is not None or self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if self.is_in_head or (is_idle and not self.is_in_message):
            self._start_headers_timer(restart=False)  # most heads arrive whole and need no timer
        if self.is_in_head and self.n_framing > limit + self.limits.max_request_line_bytes:
            self._reject(HEADERS_TOO_LARGE, "the headers are too large", "headers_too_large")
        elif self.is_in_message and self.n_framing > 2 * limit + self.n_body // FRAMING_SHARE:
            self._reject(BAD_REQUEST, "the chunks have too much framing", "framing_too_large")

    def on_message_begin(self) -> None:
        """Begin a request: the time for its headers starts with it."""
        self.is_in_head = self.is_in_message = True
        super().on_message_begin()
        self.scope[WATCH_DISCONNECT] = self.watch_disconnect  # type: ignore[literal-required]
        self.scope[WRITE_REPLY] = self.write_reply  # type: ignore[literal-required]
        self.n_framing, self.n_new = self.n_new, 0
        self.n_head = self.n_body = self.n_discarded = 0
        self._stop_headers_timer()

    def on_url(self, url: bytes) -> None:
        """Collect the request target within its limit."""
        super().on_url(url)
        if len(self.url) > self.limits.max_request_line_bytes:
            self._stop_parsing(HEADERS_TOO_LARGE, "the URL is too long", "url_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header within the limits; one that follows the body is a trailer: ignore it."""
        self.n_head += len(name) + len(value) + len(b": \r\n")
        is_full = len(self.headers) >= self.limits.max_headers
        if is_full or self.n_head > self.limits.max_header_bytes:
            message = "the headers are too large or too many"
            self._stop_parsing(HEADERS_TOO_LARGE, message, "headers_too_large")
        if self.is_in_head:
            super().on_header(name, value)
            is_coding = len(name) == _CODING_CHARS and name.lower() == b"transfer-encoding"
            if is_coding and value.strip().lower() != b"chunked":
                message = "the only transfer coding of a body that is accepted is chunked"
                self._stop_parsing(BAD_REQUEST, message, "invalid_transfer_coding")

    def on_headers_complete(self) -> None:
        """Stop the timer: the body has a limit of its own."""
        self._stop_headers_timer()
        self.is_in_head = False
        if self._is_upgrade():
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parsing(BAD_REQUEST, "too many requests are pipelined", "pipelining")
        super().on_headers_complete()
        if self.is_last_request or self.limits.is_closing:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on; discard it, up to a limit, if it is answered already."""
        self.n_framing = max(0, self.n_framing - len(body))
        self.n_body += len(body)
        if not self.cycle.response_complete:
            super().on_body(body)
            return
        self.cycle.body = bytearray()
        self.n_discarded += len(body)
        if self.n_discarded > MAX_DISCARDED_BYTES:
            self._stop_parsing(BAD_REQUEST, "the request was answered before", "unread_body")

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self.is_in_message = False
        if not self._is_upgrade():
            super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        """Parse what arrived; a request with an Upgrade header is parsed again without it.

        The parser takes what follows such a head for another protocol.
        """
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._is_upgrade():  # CONNECT: the request is complete
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.n_new = len(data)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError:
                self.send_400_response("the request is not valid HTTP")
                return
            else:
                return

    def _is_upgrade(self) -> bool:
        """Whether the head that was parsed last has an Upgrade header that is in effect."""
        wishes = self.parser.should_upgrade()
        return wishes and any(name == b"upgrade" for name, _ in self.headers)

    def _head_without_upgrade(self) -> bytes:
        """Write the head that was parsed last again."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % one for one in self.headers if one[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_response_complete(self) -> None:
        """Wait for the rest of a body that was not read, but not for ever."""
        super().on_response_complete()
        if self.is_in_message and not self.is_in_head and not self.transport.is_closing():
            self._start_headers_timer(restart=False)

    def watch_disconnect(self, on_disconnect: Callable[[], None]) -> Callable[[], None]:
        """Call a function when the client disconnects, until what is returned is called."""
        if self.is_lost:
            on_disconnect()
        self.on_disconnect = on_disconnect
        return self._stop_watching

    def write_reply(self, send: Send, status: int, headers: Headers, body: bytes) -> bool:
        """Write a whole reply at once; return False if it must be sent in uvicorn's two steps.

        Those take twice the time, and two system calls, of which each may wake the client. A
        ``send`` that is not uvicorn's own may change the reply, so it must get it.
        """
        cycle, names = self.answered, b"".join([name for name, _ in headers])
        is_plain = not (HEADER_RE.search(names) or b"connection" in names)
        if send != cycle.send:
            return False
        is_open = not (cycle.response_started or cycle.disconnected or self.flow.write_paused)
        if not (is_plain and is_open) or HEADER_VALUE_RE.search(b"".join([v for _, v in headers])):
            return False
        head = [STATUS_LINE[status]]
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        self.transport.write(b"".join([*head, body]))
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _stop_watching(self) -> None:
        self.on_disconnect = _ignore

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Answer a request, which others may follow on the connection."""
        self.answered = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(partial(self._end_request, cycle))

    def _end_request(self, cycle: Any, task: asyncio.Task[None]) -> None:  # noqa: ANN401 - uvicorn's
        self.tasks.discard(task)
        cycle.body = bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and end the request that is being answered."""
        self.is_lost = True
        if self.answered is not None and not self.answered.response_complete:
            self.answered.disconnected = True  # uvicorn marks only the last of pipelined requests
            self.answered.message_event.set()
        self.on_disconnect()
        self._stop_headers_timer()
        self._stop_send_timer()
        self.limits.remove(self.address)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection after its reply; without one, after a time for a last request."""
        linger_s = self.limits.idle_linger_s
        is_idle = self.cycle is None or self.cycle.response_complete
        if not is_idle or linger_s == 0:
            super().shutdown()
            return
        self.is_last_request = True
        self.loop.call_later(linger_s, super().shutdown)

    def close_after_reply(self) -> None:
        """Close the connection after the reply that is due, and say so in it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is invalid or exceeds a limit, and close the connection."""
        status, message, code = self.rejection or (BAD_REQUEST, msg, "invalid_http")
        self.rejection = (status, message, code)
        self.limits.on_rejected(code)
        if self._is_answering():
            self.transport.abort()  # an error would be taken for a part of another reply
            return
        body = write_error(message, "invalid_request_error", code=code)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
        retry = b"retry-after: 1\r\n" if status in RETRIED else b""
        self.transport.write(STATUS_LINE[status] + head % len(body) + retry + b"\r\n" + body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Start the timer of a client that receives slower than it is sent to."""
        super().pause_writing()
        self._check_progress()

    def resume_writing(self) -> None:
        """Stop the timer: the client has received what was buffered."""
        self._stop_send_timer()
        super().resume_writing()

    def _is_answering(self) -> bool:
        """Whether the reply to another request is due, or that to this one has begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or self.is_in_head or bool(self.pipeline)

    def _stop_parsing(self, status: int, message: str, code: str) -> None:
        """Reject a request from inside the parser; uvicorn then asks for the response."""
        self.rejection = (status, message, code)
        raise LimitExceeded

    def _reject(self, status: int, message: str, code: str) -> None:
        self.rejection = (status, message, code)
        self.send_400_response("")

    def _check_progress(self, before: int | None = None) -> None:
        size = self.transport.get_write_buffer_size()
        if before is not None and size >= before:
            self.transport.abort()  # closing would wait for the rest
        else:
            delay_s = self.send_timeout_s
            self.send_timer = self.loop.call_later(delay_s, self._check_progress, size)

    def _stop_send_timer(self) -> None:
        if self.send_timer is not None:
            self.send_timer.cancel()

    def _start_headers_timer(self, *, restart: bool = True) -> None:
        if self.headers_timer is not None:
            if not restart:
                return
            self._stop_headers_timer()
        delay_s = self.headers_timeout_s
        self.headers_timer = self.loop.call_later(delay_s, self.transport.close)

    def _stop_headers_timer(self) -> None:
        if self.headers_timer is not None:
            self.headers_timer.cancel()
            self.headers_timer = None


def _ignore() -> None:
    """Do nothing when a client disconnects that no request waits for."""


_DEFAULT_LIMITS = ConnectionLimits()
