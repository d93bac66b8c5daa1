"""Gateways: one that runs in a thread of a test, and a client that shows every byte of a reply.

    with serve_gateway(make_config({"base_url": upstream.base_url, "probe": False})) as port:
        answer = send(port, "POST", "/v1/chat/completions", body=b"…")

The client is deliberately plain: it decodes no content, follows nothing, and adds no header but
what HTTP demands.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.core.types import make_levels
from adacompute.gateway.app import build
from adacompute.gateway.config import Config
from adacompute.gateway.server import load_models
from adacompute.policies.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule

__all__ = [
    "GatewayReply",
    "free_port",
    "process_usage",
    "save_example_bundle",
    "send",
    "send_raw",
    "serve_app",
    "serve_gateway",
]

STARTS_S = 30.0


@dataclass(frozen=True)
class GatewayReply:
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


def save_example_bundle(place: Path) -> None:
    """Save a bundle that stops by agreement after up to four draws, for any budget from 2 on."""
    rule = AdaptiveConsistencyRule(0.8, 4)
    policy = RulePolicy("agreement", make_levels((1, 2, 3, 4)), (rule,), PriceSchedule((0.1,)))
    frontier = (FrontierPoint(0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6),)
    save_bundle(Bundle(policy, frontier=frontier), place)


def process_usage(process: int) -> dict[str, int]:
    """Open files and megabytes of a process on this machine."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    memory = int(status.split("VmRSS:")[1].split()[0]) // 1024
    return {"files": len(list(Path(f"/proc/{process}/fd").iterdir())), "mb": memory}


@contextmanager
def serve_gateway(config: Config) -> Iterator[int]:
    """Run a gateway in a thread, on a free port, for as long as the context lasts."""
    with serve_app(build(config, load_models(config))) as port:
        yield port


@contextmanager
def serve_app(application: Callable[..., Awaitable[None]]) -> Iterator[int]:
    """Run an ASGI application in a thread, on a free port, for as long as the context lasts."""
    with needs_extra("serve"):
        import uvicorn

    port = free_port()
    settings = uvicorn.Config(
        application,
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
            raise ConfigError("the application did not start")
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
) -> GatewayReply:
    """Send one request on a connection of its own, and read the whole reply."""
    with open_connection(port, timeout_s) as connection:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value.encode("latin-1"))
        if body or method in {"POST", "PUT", "PATCH"}:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        seen = tuple((name.lower(), value) for name, value in response.getheaders())
        return GatewayReply(response.status, seen, response.read())


def send_raw(port: int, data: bytes, *, timeout_s: float = 10.0) -> bytes:
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
def open_connection(port: int, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()
