"""Protocol: HTTP as uvicorn speaks it, with an end to its patience.

A connection that does not begin a request, does not finish its headers, or takes nothing of its
reply is closed after a while: uvicorn alone would hold it for ever. It knows nothing of what is
asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 30.0
"""Time from a connection, or from a request's first byte, to the end of its headers."""

UNREAD_S = 300.0
"""Time in which a client must take some of its reply; the system may hold megabytes of it."""


class TimeoutProtocol(HttpToolsProtocol):
    """Closes connections whose headers do not come, or whose replies are not read."""

    seconds = HEADERS_S
    unread_s = UNREAD_S
    waiting: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """Begin to wait for the headers of a request."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """Stop waiting: a body has its own limit."""
        self._stop()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for who has left."""
        self._stop()
        self._look_away()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to watch a client that takes less than it is sent."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Stop watching: it was taken."""
        self._look_away()
        super().resume_writing()

    def _watch(self, before: int | None = None) -> None:
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()  # closing would wait for the rest
        else:
            self.unread = self.loop.call_later(self.unread_s, self._watch, left)

    def _look_away(self) -> None:
        if self.unread is not None:
            self.unread.cancel()

    def _wait(self) -> None:
        self._stop()
        self.waiting = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
