"""Reply writer: sends the head of a reply together with what follows it at once.

A server writes the head and the body one after the other, and each write is a system call that may
wake the client: for a short reply, that is a tenth of all the work. A head that nothing follows is
sent as soon as the event loop gets to it. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio


class ReplyWriter:
    """Stands for the transport of one request: what is written first waits for the second."""

    __slots__ = ("_first", "_has_begun", "_loop", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._first = b""
        self._has_begun = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Write what follows the first part, with that part if it still waits."""
        if not self._has_begun:
            self._has_begun, self._first = True, data
            self._loop.call_soon(self.flush)
        elif self._first:
            first, self._first = self._first, b""
            self._transport.writelines([first, data] if data else [first])
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the first part if it still waits."""
        if self._first and not self._transport.is_closing():
            self._transport.write(self._first)
        self._first = b""

    def close(self) -> None:
        """Close the connection when everything is written."""
        self.flush()
        self._transport.close()
