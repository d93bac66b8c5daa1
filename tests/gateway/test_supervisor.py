"""Workers are replaced when they die and when the configuration changes; nothing is dropped."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support.gateways import open_connection, process_tree, send
from test_support.scripted import ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]

ADMIN_KEY = "an-admin-key-of-the-tests-0123"
ADMIN = [("Authorization", f"Bearer {ADMIN_KEY}")]
SECRET = "sk-a-secret-of-the-environment-77"  # noqa: S105 - of this test
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def gateway(launch: Launch) -> Iterator[int]:
    settings = f'admin_key = "{ADMIN_KEY}"\nallowed_fields = ["${{A_SECRET}}"]'
    with launch(settings=settings, A_SECRET=SECRET) as port:
        yield port


@pytest.fixture(autouse=True)
def answers(upstream: ScriptedServer) -> None:
    upstream.answer(ScriptedReply(200, [("Content-Type", "application/json")], [b"{}"]))


def workers(gateway: int) -> list[int]:
    reply = send(gateway + 1, "GET", "/admin/workers", headers=ADMIN)
    return [worker["pid"] for worker in json.loads(reply.body)["workers"]]


def metric(gateway: int, name: str) -> float:
    shown = send(gateway + 1, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in shown if line.startswith(f"adacompute_{name}"))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_ready(gateway: int) -> bool:
    return send(gateway + 1, "GET", "/ready").status == 200


def test_a_worker_that_is_killed_is_replaced_and_counted(gateway: int) -> None:
    before, deaths = workers(gateway), metric(gateway, "worker_deaths_total")
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: workers(gateway) != before and is_ready(gateway))
    assert send(gateway, "GET", "/v1/models").status == 200
    assert metric(gateway, "worker_deaths_total") == deaths + 1


def test_requests_in_flight_of_a_killed_worker_are_not_counted(
    gateway: int, upstream: ScriptedServer
) -> None:
    hold = threading.Event()
    upstream.answer(ScriptedReply(200, [], [b"{", hold, b"}"]))
    with socket.create_connection(("127.0.0.1", gateway)) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: metric(gateway, "requests_in_flight") == 1)
        before = workers(gateway)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: workers(gateway) != before and is_ready(gateway))
    hold.set()
    assert metric(gateway, "requests_in_flight") == 0


def test_a_request_outlives_the_worker_configuration_it_began_with(
    gateway: int, upstream: ScriptedServer, pids: dict[int, int]
) -> None:
    hold, replies = threading.Event(), []
    upstream.answer(ScriptedReply(200, [], [b"{", hold, b"}"]))
    thread = threading.Thread(
        target=lambda: replies.append(send(gateway, "GET", "/v1/models", timeout_s=TIMEOUT_S))
    )
    thread.start()
    wait_until(lambda: metric(gateway, "requests_in_flight") == 1)
    before = workers(gateway)
    os.kill(pids[gateway], signal.SIGHUP)
    wait_until(lambda: workers(gateway) != before)
    assert send(gateway, "GET", "/health").status == 200
    hold.set()
    thread.join()
    assert [reply.status for reply in replies] == [200]
    wait_until(lambda: not set(before) & set(process_tree(pids[gateway])))


def test_an_idle_connection_is_answered_once_more_during_a_reload(
    gateway: int, pids: dict[int, int]
) -> None:
    with open_connection(gateway, TIMEOUT_S) as client:
        client.request("GET", "/v1/models")
        assert client.getresponse().read()
        before = workers(gateway)
        os.kill(pids[gateway], signal.SIGHUP)
        wait_until(lambda: workers(gateway) != before)
        time.sleep(0.3)
        client.request("GET", "/v1/models")
        reply = client.getresponse()
        assert (reply.status, reply.getheader("connection")) == (200, "close")


def test_a_wrong_configuration_is_refused_and_the_old_one_stays(
    gateway: int, policies: Path
) -> None:
    file = policies / f"gateway-{gateway}.toml"
    right, before = file.read_text(), workers(gateway)
    for wrong in (
        "[serve",
        right.replace("budget = 2", "budget = -2"),
        right.replace('bundle = "two"', 'bundle = "nowhere"'),
        right.replace('bundle = "two"', f'bundle = "two"\nbundle_digest = "{"0" * 64}"'),
        right.replace(f"port = {gateway}", f"port = {gateway + 10}"),
    ):
        assert wrong != right
        file.write_text(wrong)
        reply = send(gateway + 1, "POST", "/admin/reload", headers=ADMIN, timeout_s=TIMEOUT_S)
        assert reply.status == 409
        assert json.loads(reply.body)["error"]
    file.write_text(right)
    assert workers(gateway) == before
    assert send(gateway, "GET", "/v1/models").status == 200


def test_administration_needs_the_admin_key(gateway: int, launch: Launch) -> None:
    for headers in (
        [],
        [("Authorization", f"Bearer {ADMIN_KEY}x")],
        [("Authorization", ADMIN_KEY)],
    ):
        for method, path in (("GET", "/admin/workers"), ("POST", "/admin/reload")):
            assert send(gateway + 1, method, path, headers=headers).status == 401
    with launch() as other:
        assert send(other + 1, "GET", "/admin/workers", headers=ADMIN).status == 403


def test_pages_of_operators_are_not_on_the_serving_port(gateway: int) -> None:
    for path in ("/metrics", "/ready", "/admin/workers"):
        assert send(gateway, "GET", path, headers=ADMIN).status == 404
    assert send(gateway, "GET", "/health").status == 200
    assert send(gateway + 1, "GET", "/health").status == 200


def test_a_web_page_cannot_read_the_admin_port(gateway: int) -> None:
    headers = [("Host", "attacker.example")]
    assert send(gateway + 1, "GET", "/metrics", headers=headers).status in {400, 403}


def test_a_worker_that_stops_responding_makes_the_gateway_unhealthy(gateway: int) -> None:
    (worker,) = workers(gateway)
    os.kill(worker, signal.SIGSTOP)
    try:
        assert send(gateway + 1, "GET", "/health").status == 503
    finally:
        os.kill(worker, signal.SIGCONT)
    assert send(gateway + 1, "GET", "/health").status == 200


def test_secrets_are_not_in_the_environment_of_workers(gateway: int) -> None:
    (worker,) = workers(gateway)
    environment = Path(f"/proc/{worker}/environ").read_bytes()
    command = Path(f"/proc/{worker}/cmdline").read_bytes()
    assert b"PATH=" in environment
    for secret in (SECRET.encode(), b"sk-upstream-0123456789abcdef"):
        assert secret not in environment + command


def test_workers_end_when_the_supervisor_is_killed(launch: Launch, pids: dict[int, int]) -> None:
    with launch(settings="drain_s = 2", exit_code=-signal.SIGKILL) as port:
        processes = process_tree(pids[port])
        assert len(processes) >= 2
        os.kill(pids[port], signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes[1:]))
