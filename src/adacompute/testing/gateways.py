"""Gateways: one that runs in a thread of a test, and a client that shows every byte of a reply.

    with run(make_config({"base_url": upstream.base_url, "probe": False})) as port:
        answer = send(port, "POST", "/v1/chat/completions", body=b"…")

The client is deliberately plain: it decodes no content, follows nothing, and adds no header but
what HTTP demands.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from adacompute.core.errors import ConfigError, require
from adacompute.gateway.app import build
from adacompute.gateway.config import Config
from adacompute.gateway.server import load_models

__all__ = ["Answer", "free_port", "run", "send", "speak"]

STARTS_S = 30.0


@dataclass(frozen=True)
class Answer:
    """A reply as it came; names of headers are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for known, value in self.headers if known == name]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        port: int = plug.getsockname()[1]
        return port


@contextmanager
def run(config: Config) -> Iterator[int]:
    """Run a gateway in a thread, on a free port, for as long as the context lasts."""
    uvicorn = require("uvicorn", extra="serve")
    port = free_port()
    settings = uvicorn.Config(
        build(config, load_models(config)),
        port=port,
        http="httptools",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, name="gateway", daemon=True)
    thread.start()
    end = time.monotonic() + STARTS_S
    while not server.started:
        if time.monotonic() > end or not thread.is_alive():
            raise ConfigError("the gateway did not start")
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(timeout=STARTS_S)


def send(
    port: int,
    method: str,
    target: str,
    *,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    timeout_s: float = 30.0,
) -> Answer:
    """Send one request on a connection of its own, and read the whole reply."""
    with connected(port, timeout_s) as connection:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value.encode("latin-1"))
        if body or method in {"POST", "PUT", "PATCH"}:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        seen = tuple((name.lower(), value) for name, value in response.getheaders())
        return Answer(response.status, seen, response.read())


def speak(port: int, data: bytes, *, timeout_s: float = 10.0) -> bytes:
    """Send raw bytes, and read until the other side closes or says no more within a time."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as plug:
        plug.sendall(data)
        try:
            while part := plug.recv(65_536):
                said += part
        except (TimeoutError, ConnectionResetError):
            pass
    return said


@contextmanager
def connected(port: int, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()
