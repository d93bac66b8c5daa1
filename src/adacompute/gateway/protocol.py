"""Protocol: HTTP as uvicorn speaks it, with an end to its patience.

A connection that does not begin a request, or does not finish its headers, is closed after a while:
uvicorn alone would hold it for ever. It knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 30.0
"""Time from a connection, or from a request's first byte, to the end of its headers."""


class Patient(HttpToolsProtocol):
    """Closes connections whose headers do not come."""

    seconds = HEADERS_S
    waiting: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop()
        self.waiting = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
