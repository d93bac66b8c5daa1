"""HTTP server: uvicorn, with the limits of the client protocol, on a socket that is open already.

It knows nothing of what the application does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from adacompute.gateway.connection.client_protocol import ClientProtocol

KEEP_ALIVE_TIMEOUT_S = 75
MAX_QUEUE = 4096
"""Connections that are accepted from the queue of the port while it is closed."""


class HttpServer(uvicorn.Server):
    """Serves one application on one socket until ``stop`` is called or a signal arrives.

    With ``handles_signals=False``, signals are left to the caller. ``on_started`` is called when
    the application is ready for requests.
    """

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        listener: socket.socket,
        *,
        handles_signals: bool = True,
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
                http=ClientProtocol,
                proxy_headers=False,
                lifespan="on",
                ws="none",  # a WebSocket would have none of the limits
            )
        )
        self._listener = listener
        self._handles_signals = handles_signals
        self._on_started = on_started

    async def run_until_stopped(self) -> None:
        """Serve; return when all connections are closed."""
        await self.serve(sockets=[self._listener])

    def stop(self, timeout_s: float | None) -> None:
        """Accept no more connections, and cancel requests that take longer than ``timeout_s``."""
        self.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]  # a float too
        self.should_exit = True

    def close_after_replies(self) -> None:
        """Close connections after the replies that are due."""
        for connection in self.server_state.connections:
            connection.close_after_reply()  # type: ignore[union-attr]  # a ClientProtocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, accept what still waits in its queue, and finish all requests."""
        with self._listener.dup() as queue:
            queue.setblocking(False)
            for server in self.servers:
                server.close()
            await asyncio.sleep(0)  # the loop accepts nothing more
            with suppress(OSError):  # the queue is empty
                for _ in range(MAX_QUEUE):
                    await self._serve_connection(queue.accept()[0])
        await super().shutdown(sockets)

    async def _serve_connection(self, connection: socket.socket) -> None:
        """Serve a connection as uvicorn does those that the loop accepts."""
        loop, config = asyncio.get_running_loop(), self.config
        known: Any = {"server_state": self.server_state, "app_state": self.lifespan.state}
        await loop.connect_accepted_socket(lambda: ClientProtocol(config, **known), connection)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and say so."""
        await super().startup(sockets)
        self._on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, or leave them alone."""
        if not self._handles_signals:
            yield
            return
        with super().capture_signals():
            yield


def run_in_fast_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the event loop that uvicorn would choose: uvloop where there is one."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)
