"""Worker process: a worker as the supervisor sees it, with its state and the commands to it.

It knows nothing of other workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from adacompute.core.errors import ConfigError
from adacompute.gateway.processes.worker import Channel

PING_TIMEOUT_S = 5.0


class WorkerProcess:
    """One running worker.

    ``state`` is what it reported last: "starting", or a state of the gateway. ``store`` is what is
    wrong with the account store. ``messages`` are for the
    operator, and known once it has started.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self.state = "starting"
        self.store = ""
        self.messages: list[str] = []
        self.seen_at = time.monotonic()
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._pongs: list[asyncio.Future[None]] = []
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        listener: socket.socket,
        settings: Mapping[str, object],
        log_settings: tuple[str, str],
        environment: Mapping[str, str],
    ) -> WorkerProcess:
        """Start a worker that serves on a socket, with the settings that it is sent.

        ``log_settings`` are the format and the level of its log, which it needs before.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = (theirs.fileno(), listener.fileno())
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "adacompute.gateway.processes.worker",
                *map(str, inherited),
                *log_settings,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                env=dict(environment),
            )
        channel = await Channel.open(ours)
        channel.send(**settings)
        return cls(process, channel)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def wait_started(self) -> None:
        """Wait until it serves; raise ConfigError if it cannot."""
        await asyncio.shield(self._started)

    async def wait_ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        code = await self._process.wait()
        self._listening.cancel()
        self._channel.close()
        self.kill()  # its children
        return code

    async def ping(self, timeout_s: float = PING_TIMEOUT_S) -> bool:
        """Whether the serving loop answers in time."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self._channel.send(command="ping")
        try:
            await asyncio.wait_for(pong, timeout_s)
        except (TimeoutError, asyncio.CancelledError):
            return False
        return True

    def close_connections(self) -> None:
        """Let it close each connection after its next reply."""
        self._channel.send(command="close")

    def retire(self) -> None:
        """Let it finish what it has begun, however long it takes."""
        self._channel.send(command="retire")

    def stop(self, timeout_s: float) -> None:
        """Let it finish what it has begun within a time."""
        self._channel.send(command="stop", timeout_s=timeout_s)

    def kill(self) -> None:
        """End the process and its children at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    async def _listen(self) -> None:
        """Follow what the worker reports, until it ends."""
        handlers: dict[str, Callable[[Mapping[str, object]], None]] = {
            "loaded": self._on_loaded,
            "started": self._on_started,
            "failed": self._on_failed,
            "state": lambda _: None,
            "pong": self._on_pong,
        }
        try:
            while (message := await self._channel.receive()) is not None:
                self.seen_at = time.monotonic()
                self.state = message.get("state", self.state)
                self.store = message.get("store", self.store)
                handlers[message["event"]](message)
        finally:
            self.state = "ended"
            self._on_failed({"message": "a worker ended before it served: see the lines above"})
            for pong in self._pongs:
                pong.cancel()

    def _on_loaded(self, message: Mapping[str, object]) -> None:
        self.messages = list(message["messages"])  # type: ignore[call-overload]  # a list of texts

    def _on_started(self, _: Mapping[str, object]) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _on_failed(self, message: Mapping[str, object]) -> None:
        if not self._started.done():
            self._started.set_exception(ConfigError(str(message["message"])))

    def _on_pong(self, _: Mapping[str, object]) -> None:
        for pong in self._pongs:
            if not pong.done():
                pong.set_result(None)
        self._pongs.clear()
