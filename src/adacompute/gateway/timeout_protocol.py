"""Timeout protocol: uvicorn's HTTP protocol with time limits on clients.

It closes a connection that does not begin a request, does not finish its headers, or does not
receive its reply; uvicorn alone would keep such a connection open for ever. It knows nothing of
what requests contain.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_TIMEOUT_S = 30.0
"""Time from a connection, or from the first byte of a request, to the end of its headers."""

SEND_TIMEOUT_S = 300.0
"""Time in which a client must receive a part of its reply; the system may buffer megabytes."""


class TimeoutProtocol(HttpToolsProtocol):
    """Closes connections whose headers do not arrive or whose replies are not received."""

    headers_timeout_s = HEADERS_TIMEOUT_S
    send_timeout_s = SEND_TIMEOUT_S
    headers_timer: asyncio.TimerHandle | None = None
    send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Start the timer of the first request."""
        super().connection_made(transport)
        self._start_headers_timer()

    def on_message_begin(self) -> None:
        """Start the timer of the request's headers."""
        super().on_message_begin()
        self._start_headers_timer()

    def on_headers_complete(self) -> None:
        """Stop the timer: the body has a limit of its own."""
        self._stop_headers_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop_headers_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer of a client that receives slower than it is sent to."""
        super().pause_writing()
        self._check_progress()

    def resume_writing(self) -> None:
        """Stop the timer: the client has received what was buffered."""
        self._stop_send_timer()
        super().resume_writing()

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

    def _start_headers_timer(self) -> None:
        self._stop_headers_timer()
        delay_s = self.headers_timeout_s
        self.headers_timer = self.loop.call_later(delay_s, self.transport.close)

    def _stop_headers_timer(self) -> None:
        if self.headers_timer is not None:
            self.headers_timer.cancel()
