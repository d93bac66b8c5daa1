"""Gateways: run a gateway in a thread of a test, and send requests to it.

    with serve_gateway(make_config({"base_url": upstream.base_url, "probe": False})) as port:
        reply = send(port, "POST", "/v1/chat/completions", body=b"…")

The client returns replies byte for byte: it decompresses nothing, follows no redirects and adds
only the headers that HTTP requires.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from adacompute.core.errors import ConfigError, needs_extra
from adacompute.core.types import make_levels
from adacompute.gateway.app import build
from adacompute.gateway.settings.config import Config, make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from test_support.scripted import ScriptedServer, serve_scripted

__all__ = [
    "GatewayReply",
    "fetch",
    "free_port",
    "open_connection",
    "process_tree",
    "process_usage",
    "save_example_bundle",
    "send",
    "send_raw",
    "serve_app",
    "serve_gateway",
    "wait_for",
]

START_TIMEOUT_S = 30.0
PORTS = (10_000, 32_000)


@dataclass(frozen=True)
class GatewayReply:
    """A reply as received, except that header names are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for header, value in self.headers if header == name]


def free_port() -> int:
    """A free port of the loopback interface, followed by another free one for the admin pages.

    It is below the ports that the system gives to clients: a client that waits for a server on one
    of those may connect to itself.
    """
    while True:
        port = random.randrange(*PORTS)  # noqa: S311 - no secret
        with socket.socket() as server, socket.socket() as admin:
            try:
                server.bind(("127.0.0.1", port))
                admin.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def save_example_bundle(path: Path) -> None:
    """Save a bundle that stops by agreement after at most 4 samples, for budgets from 2."""
    rule = AdaptiveConsistencyRule(0.8, 4)
    policy = RulePolicy("agreement", make_levels((1, 2, 3, 4)), (rule,), PriceSchedule((0.1,)))
    frontier = (FrontierPoint(2.0, 0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 2.0),)
    save_bundle(Bundle(policy, frontier=frontier), path)


def process_usage(pid: int) -> dict[str, int]:
    """Open files, and memory in MB (each shared page counted once), of a process and its children.

    Children that end meanwhile are left out.
    """
    used = {"files": 0, "mb": 0}
    for one in process_tree(pid):
        try:
            memory = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8")
            used["files"] += len(list(Path(f"/proc/{one}/fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError):
            continue
        used["mb"] += int(memory.split("\nPss:")[1].split()[0]) // 1024
    return used


def process_tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    children: list[str] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):  # by the thread that started them
        with suppress(FileNotFoundError, ProcessLookupError):
            children += listed.read_text(encoding="utf-8").split()
    return [pid, *(one for child in children for one in process_tree(int(child)))]


def fetch(url: str) -> str:
    """The text of a page; raises URLError if its status is an error or nothing answers."""
    with urllib.request.urlopen(url, timeout=START_TIMEOUT_S) as page:  # noqa: S310 - of this machine
        text: str = page.read().decode()
        return text


def wait_for(url: str, timeout_s: float = 180.0) -> None:
    """Wait until a page answers without an error, such as /ready of a gateway."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            fetch(url)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def serve_gateway(config: Config) -> Iterator[int]:
    """Run a gateway in a background thread, on a free port, while the context is open."""
    with serve_app(build(config, load_models(config))) as port:
        yield port


@contextmanager
def serve_app(application: Callable[..., Awaitable[None]]) -> Iterator[int]:
    """Run an ASGI application in a background thread, on a free port, while the context is open."""
    with needs_extra("serve"):
        import uvicorn

        from adacompute.gateway.connection.client_protocol import ClientProtocol

    port = free_port()
    settings = uvicorn.Config(
        application,
        port=port,
        http=ClientProtocol,
        proxy_headers=False,
        ws="none",
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
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        if time.monotonic() > deadline or not thread.is_alive():
            raise ConfigError("the application did not start")
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(timeout=START_TIMEOUT_S)


@contextmanager
def serve_scripted_gateway(
    model: Mapping[str, object], **settings: object
) -> Iterator[tuple[ScriptedServer, int]]:
    """Run a scripted upstream and a gateway in front of it; yield the upstream and the port.

    ``model`` are settings of the one model, which clients call "virtual" and the upstream "real".
    Nothing is probed or tried again, unless ``settings`` say so.
    """
    with serve_scripted() as upstream:
        content = {
            "base_url": upstream.base_url,
            "models": {"virtual": {"model": "real", "grader": "numeric", **model}},
            "probe": False,
            "max_attempts": 1,
            **settings,
        }
        with serve_gateway(make_config(content)) as port:
            yield upstream, port


def send(
    port: int,
    method: str,
    target: str,
    *,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    timeout_s: float = 30.0,
) -> GatewayReply:
    """Send one request on a new connection, and return the complete reply.

    A body without any headers is sent as JSON.
    """
    with open_connection(port, timeout_s) as connection:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value.encode("latin-1"))
        if body or method in {"POST", "PUT", "PATCH"}:
            connection.putheader("Content-Length", str(len(body)))
            if not headers:
                connection.putheader("Content-Type", "application/json")
        connection.endheaders(body)
        response = connection.getresponse()
        received = tuple((name.lower(), value) for name, value in response.getheaders())
        return GatewayReply(response.status, received, response.read())


def send_raw(port: int, data: bytes, *, timeout_s: float = 10.0) -> bytes:
    """Send raw bytes, and return what is received until the connection ends or times out."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as client:
        client.sendall(data)
        try:
            while part := client.recv(65_536):
                received += part
        except (TimeoutError, ConnectionResetError):
            pass
    return received


@contextmanager
def open_connection(port: int, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
    """Open a connection to a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()
