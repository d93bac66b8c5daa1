"""SIGTERM: clients are sent away, the port closes, and requests that were accepted are finished."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support.gateways import GatewayReply, open_connection, process_tree, send
from test_support.scripted import ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
TIMEOUT_S = 30.0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except ConnectionRefusedError:
        return True


@contextmanager
def in_flight(
    port: int, upstream: ScriptedServer
) -> Iterator[tuple[threading.Event, list[GatewayReply]]]:
    """Send a request whose reply waits for an event; gives that and a list for the reply."""
    hold, replies = threading.Event(), list[GatewayReply]()
    upstream.answer(
        ScriptedReply(200, JSON, [hold, b'{"held": 1}']), ScriptedReply(200, JSON, [b"{}"])
    )

    def ask() -> None:
        path, body = "/v1/embeddings", b'{"model": "other"}'
        replies.append(send(port, "POST", path, headers=JSON, body=body, timeout_s=TIMEOUT_S))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: len(upstream.received) == 1)
    try:
        yield hold, replies
    finally:
        hold.set()
        thread.join()


@pytest.mark.parametrize("workers", [1, 2])
def test_replies_before_the_end_close_their_connections_and_then_the_port_is_closed(
    workers: int, launch: Launch, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    with (
        launch(workers=workers, settings="shutdown_delay_s = 2") as port,
        open_connection(port, TIMEOUT_S) as client,
        in_flight(port, upstream) as (hold, replies),
    ):
        client.request("GET", "/v1/models")
        before = client.getresponse()
        assert before.read()
        assert (before.status, before.getheader("connection")) == (200, None)
        os.kill(pids[port], signal.SIGTERM)
        time.sleep(0.5)
        client.request("GET", "/v1/models")
        reply = client.getresponse()
        assert (reply.status, reply.getheader("connection")) == (200, "close")
        again = send(port, "GET", "/health")
        assert (again.status, again.values("connection")) == (200, ["close"])
        wait_until(lambda: is_refused(port))
        assert replies == []
        hold.set()
        wait_until(lambda: replies != [])
        assert (replies[0].status, json.loads(replies[0].body)) == (200, {"held": 1})
        assert replies[0].values("connection") == ["close"]


def test_connections_are_refused_while_requests_are_finished(
    launch: Launch, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    with launch() as port, in_flight(port, upstream) as (hold, replies):
        os.kill(pids[port], signal.SIGTERM)
        begun = time.monotonic()
        wait_until(lambda: is_refused(port))
        assert time.monotonic() - begun < 2
        time.sleep(1.5)
        assert is_refused(port)
        assert replies == []
        hold.set()
        wait_until(lambda: replies != [])
        assert replies[0].status == 200


def test_requests_in_the_queue_of_the_port_are_answered(
    launch: Launch, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    upstream.answer(ScriptedReply(200, JSON, [b"{}"]))
    with launch() as port:
        worker = process_tree(pids[port])[1]
        os.kill(worker, signal.SIGSTOP)
        clients = [socket.create_connection(("127.0.0.1", port), TIMEOUT_S) for _ in range(20)]
        for client in clients:
            client.sendall(REQUEST)
        os.kill(pids[port], signal.SIGTERM)
        time.sleep(0.3)
        os.kill(worker, signal.SIGCONT)
        for client in clients:
            with client:
                assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_on_its_way_is_answered(
    launch: Launch, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    upstream.answer(ScriptedReply(200, JSON, [b"{}"]))
    with launch() as port, socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
        time.sleep(0.2)
        os.kill(pids[port], signal.SIGTERM)
        wait_until(lambda: is_refused(port))
        client.sendall(REQUEST)
        reply = client.recv(10_000)
        assert reply.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in reply


def test_no_connection_is_reset_under_load(
    launch: Launch, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    upstream.answer(ScriptedReply(200, JSON, [0.01, b"{}"]))
    seen: Counter[object] = Counter()

    def ask() -> None:
        while "refused" not in seen:
            try:
                seen[send(port, "POST", "/v1/embeddings", headers=JSON, body=b"{}").status] += 1
            except ConnectionRefusedError:
                seen["refused"] += 1
            except (OSError, HTTPException) as error:
                seen[type(error).__name__] += 1

    with launch(workers=2, settings="shutdown_delay_s = 0.5") as port:
        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        os.kill(pids[port], signal.SIGTERM)
        for thread in threads:
            thread.join()
    assert set(seen) == {200, "refused"}
