"""Request bodies take a bounded part of the memory, and give it back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adacompute.gateway import gateway
from adacompute.gateway.app import Application, build
from adacompute.gateway.connection.bodies_in_flight import (
    SMALL_BODY_BYTES,
    BodiesInFlight,
    CountedBody,
    TooManyBytes,
)
from adacompute.gateway.connection.exchange import Exchange
from adacompute.gateway.settings.config import make_config
from test_support.gateways import GatewayReply, process_tree, send, serve_app
from test_support.scripted import ScriptedReply, ScriptedServer

CHAT = "/v1/chat/completions"
JSON = ("Content-Type", "application/json")
OK = ScriptedReply(200, [JSON], [b'{"choices": []}'])
CLIENTS = {name: f"sk-{name}-0123456789abcdef" for name in ("ann", "bob", "cid", "dan", "eve")}
KEYS = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in CLIENTS.items()}
TOTAL, BODY_MB = 40_000_000, 8
LARGE = 7_900_000
TIMEOUT_S = 30.0


@pytest.fixture
def application(upstream: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Application:
    monkeypatch.setattr(gateway, "BODIES_IN_FLIGHT", TOTAL / BODY_MB / 1e6)
    upstream.answer(OK)
    settings = {
        "base_url": upstream.base_url,
        "client_keys": KEYS,
        "max_body_mb": BODY_MB,
    }
    return build(make_config(settings), {})


@pytest.fixture
def bodies(application: Application) -> BodiesInFlight:
    return application.connection_limits.bodies


@pytest.fixture
def port(application: Application) -> Iterator[int]:
    with serve_app(application) as port:
        yield port


def head(length: int, client: str | None) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", ": ".join(JSON)]
    if client is not None:
        lines.append(f"Authorization: Bearer {CLIENTS[client]}")
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@contextmanager
def unfinished(port: int, size: int, client: str | None = None) -> Iterator[socket.socket]:
    """A request whose body never ends."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plug:
        with suppress(ConnectionResetError, BrokenPipeError):
            plug.sendall(head(size + 1, client) + bytes(size))
        yield plug


def ask(port: int, size: int, client: str) -> GatewayReply:
    body = b'{"model": "other", "x": "' + b"x" * (size - 27) + b'"}'
    key = ("Authorization", f"Bearer {CLIENTS[client]}")
    return send(port, "POST", CHAT, headers=[key, JSON], body=body)


def code(reply: GatewayReply) -> str:
    found: str = json.loads(reply.body)["error"]["code"]
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_client_takes_its_share_and_no_more(port: int, bodies: BodiesInFlight) -> None:
    with unfinished(port, LARGE, "ann"):
        wait_until(lambda: bodies.by_client["ann"] == LARGE)
        refused = ask(port, 3_000_000, "ann")
        assert (refused.status, code(refused)) == (429, "client_body_bytes_in_flight")
        assert refused.values("retry-after") == ["1"]
        assert ask(port, 1_000_000, "ann").status == 200
        assert ask(port, LARGE, "bob").status == 200
        assert bodies.by_client == {"ann": LARGE}
    wait_until(lambda: bodies.n_bytes == 0)
    assert ask(port, LARGE, "ann").status == 200


def test_large_bodies_leave_room_for_small_ones(port: int, bodies: BodiesInFlight) -> None:
    with ExitStack() as stack:
        for name in ("ann", "bob", "cid"):
            stack.enter_context(unfinished(port, LARGE, name))
        wait_until(lambda: bodies.n_bytes == 3 * LARGE)
        refused = ask(port, LARGE, "dan")
        assert (refused.status, code(refused)) == (503, "body_bytes_in_flight")
        assert refused.values("retry-after") == ["1"]
        assert ask(port, 1_000, "dan").status == 200
        assert bodies.n_bytes == 3 * LARGE
    wait_until(lambda: bodies.n_bytes == 0)
    assert ask(port, LARGE, "dan").status == 200


def test_a_refused_client_can_read_its_reply(port: int, bodies: BodiesInFlight) -> None:
    with unfinished(port, LARGE, "ann"):
        wait_until(lambda: bodies.n_bytes == LARGE)
        with unfinished(port, 2_300_000, "ann") as plug:
            assert plug.recv(65_536).startswith(b"HTTP/1.1 429 ")
            assert bodies.n_bytes == LARGE
            plug.sendall(b"x" + head(2, "ann") + b"{}")  # the connection is used again
            assert plug.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_body_counts_until_its_request_has_ended(
    port: int, bodies: BodiesInFlight, upstream: ScriptedServer
) -> None:
    go_on = threading.Event()
    upstream.answer(ScriptedReply(200, [JSON], [go_on, b"{}"]))
    replies: list[GatewayReply] = []
    thread = threading.Thread(target=lambda: replies.append(ask(port, LARGE, "ann")))
    thread.start()
    wait_until(lambda: len(upstream.received) == 1)
    assert bodies.n_bytes == LARGE
    go_on.set()
    thread.join()
    assert replies[0].status == 200
    wait_until(lambda: bodies.n_bytes == 0)


def test_bytes_that_wait_behind_another_request_count(
    port: int, bodies: BodiesInFlight, upstream: ScriptedServer
) -> None:
    go_on = threading.Event()
    upstream.answer(ScriptedReply(200, [JSON], [go_on, b"{}"]))
    first, second = head(2, "ann") + b"{}", head(200_000, "ann") + bytes(50_000)
    for leaves in (True, False):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plug:
            plug.sendall(first + second)
            wait_until(lambda: bodies.n_bytes == 50_002)
            if leaves:
                continue
            go_on.set()
            plug.sendall(bytes(150_000))
            wait_until(lambda: bodies.n_bytes == 0)
        wait_until(lambda: bodies.n_bytes == 0)


def test_bytes_of_a_request_that_is_not_authorised_are_dropped(
    port: int, bodies: BodiesInFlight
) -> None:
    with unfinished(port, 200_000) as plug:
        assert plug.recv(65_536).startswith(b"HTTP/1.1 401 ")
        wait_until(lambda: bodies.n_bytes == 0)


def test_a_body_that_is_refused_gives_its_bytes_back() -> None:
    bodies = BodiesInFlight(max_bytes=1_000_000, max_client_bytes=500_000)
    counted = CountedBody(bodies)
    assert counted.add(400_000)
    counted.assign("ann")
    assert bodies.by_client == {"ann": 400_000}
    assert not counted.add(100_001)
    assert counted.rejection is not None
    assert counted.rejection[0] == 429
    assert (bodies.n_bytes, bodies.by_client) == (0, {})
    assert not counted.add(1)
    counted.release()
    assert bodies.n_bytes == 0


def test_the_last_quarter_is_for_small_bodies() -> None:
    bodies = BodiesInFlight(max_bytes=1_000_000)
    assert CountedBody(bodies).add(750_000)
    assert not CountedBody(bodies).add(SMALL_BODY_BYTES + 1)
    assert CountedBody(bodies).add(250_000)
    refused = CountedBody(bodies)
    assert not refused.add(1)
    assert refused.rejection is not None
    assert refused.rejection[0] == 503


def test_bodies_from_other_servers_are_counted() -> None:
    async def main() -> None:
        bodies = BodiesInFlight(max_bytes=100)
        message: MutableMapping[str, Any] = {
            "type": "http.request",
            "body": bytes(60),
            "more_body": True,
        }
        scope = {"method": "POST", "path": CHAT, "headers": []}

        async def receive() -> MutableMapping[str, Any]:
            return message

        async def ignore(_: object) -> None:
            pass

        exchange = Exchange(scope, receive, ignore)
        exchange.count_body(bodies)
        with pytest.raises(TooManyBytes):
            await exchange.read(max_bytes=1_000, timeout_s=5)
        message["more_body"] = False
        exchange = Exchange(scope, receive, ignore)
        exchange.count_body(bodies)
        assert await exchange.read(max_bytes=1_000, timeout_s=5) == bytes(60)
        assert bodies.n_bytes == 60
        exchange.release_body()
        assert bodies.n_bytes == 0

    asyncio.run(main())


def is_given_back(pid: int, floor_mb: int) -> bool:
    return memory_mb(pid) - floor_mb < 20


def memory_mb(pid: int) -> int:
    """Memory of a process, in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024


@pytest.mark.parametrize(("n_bodies", "size"), [(40, 30_000_000), (400, 200_000)])
def test_memory_is_bounded_and_given_back(
    n_bodies: int,
    size: int,
    launch: Callable[..., AbstractContextManager[int]],
    pids: dict[int, int],
    upstream: ScriptedServer,
) -> None:
    upstream.answer(OK)
    with launch(settings="body_timeout_s = 120") as port:
        worker = process_tree(pids[port])[-1]
        for _ in range(2):
            before = memory_mb(worker)
            with ExitStack() as stack:
                for number in range(n_bodies):
                    stack.enter_context(unfinished(port, size))
                    if number % 10 == 0:
                        assert send(port, "POST", CHAT, headers=[JSON], body=b"{}").status == 200
                assert memory_mb(worker) - before < 1.2 * min(n_bodies * size, 200e6) / 1e6 + 30
            wait_until(partial(is_given_back, worker, before))
