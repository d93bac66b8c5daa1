"""Redis server: a real one for tests, which can be killed and restarted.

    with serve_redis() as server:
        register = RedisRegister(server.url)
        server.kill()
        server.restart("empty")

It listens on the loopback interface only, and its data is in a temporary folder. It writes every
change to disk before it replies, as the documentation recommends for caps.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from adacompute.core.errors import ConfigError
from test_support.gateways import free_port

__all__ = ["RedisServer", "find_redis", "serve_redis"]

Data = Literal["kept", "empty", "snapshot"]
"""What a restarted server finds: all its data, nothing, or what it had at the last snapshot."""

COMMANDS = ("redis-server", "valkey-server")
START_TIMEOUT_S = 10.0
OPTIONS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "auto-aof-rewrite-percentage": "0",
}


def find_redis() -> str | None:
    """Return the path of redis-server or valkey-server, None if neither is installed."""
    return next(filter(None, map(shutil.which, COMMANDS)), None)


class RedisServer:
    """A server on a port that it keeps; ``options`` are added to its configuration."""

    def __init__(self, folder: Path, options: dict[str, str] | None = None) -> None:
        command = find_redis()
        if command is None:
            raise ConfigError(
                f"this needs one of {', '.join(COMMANDS)}, and none is installed: run "
                "apt-get install redis-server"
            )
        self.port = free_port()
        self._data, self._snapshot = folder / "data", folder / "snapshot"
        settings = {**OPTIONS, "port": str(self.port), "dir": str(self._data), **(options or {})}
        self._command = [command, *(word for pair in settings.items() for word in _option(*pair))]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for ``RedisRegister``."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._data.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ConfigError(f"{self._command[0]} does not start on port {self.port}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ask the server to end, and wait for it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once; does nothing if it does not run."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the server from answering; connections stay open until ``resume``."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def save_snapshot(self) -> None:
        """Copy the data that the server has now, for ``restart("snapshot")``."""
        shutil.rmtree(self._snapshot, ignore_errors=True)
        shutil.copytree(self._data, self._snapshot)

    def restart(self, data: Data = "kept") -> None:
        """Kill the server and start it again with the data named."""
        self.kill()
        if data != "kept":
            shutil.rmtree(self._data)
        if data == "snapshot":
            shutil.copytree(self._snapshot, self._data)
        self.start()

    def send(self, command: str) -> str:
        """Send a command and return the start of the reply as the server wrote it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(65536).decode()

    def _answers(self) -> bool:
        try:
            return self.send("PING").startswith(("+PONG", "-NOAUTH"))
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        if self._process is not None:
            self._process.wait(START_TIMEOUT_S)
            self._process = None


@contextmanager
def serve_redis(options: dict[str, str] | None = None) -> Iterator[RedisServer]:
    """Run a server until the end of the block; ConfigError if none is installed."""
    with tempfile.TemporaryDirectory(prefix="adacompute-redis-") as folder:
        server = RedisServer(Path(folder), options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _option(name: str, value: str) -> tuple[str, str]:
    return f"--{name}", value
