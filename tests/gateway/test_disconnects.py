"""Clients that disconnect: free before the request is sent, the maximum of the call after that."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.accounting.call_log import CallLog, CallOrigin
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.accounting.spending import Spending
from adacompute.gateway.settings.config import make_config
from adacompute.spending.attempts import CallBound
from adacompute.storage.calls import FILES, CallFile, read_calls
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer

N_CLIENTS = 150
CAPS = [{"amount": 100_000, "unit": "tokens", "period": "all"}]
EVENTS = [("Content-Type", "text/event-stream")]
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "4"}}]}\n\n'


@pytest.fixture
def full_server() -> Iterator[int]:
    """Port of a server that accepts no connection, because others wait for it already."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for one in waiting:
            one.close()


def make_settings(directory: Path, policy: Path, base_url: str) -> Any:
    model = {"bundle": str(policy), "budget": 2, "model": "real", "grader": "numeric"}
    content = {
        "base_url": base_url,
        "models": {"virtual": model},
        "probe": False,
        "caps": CAPS,
        "max_output_tokens": 50,
        "state_directory": str(directory),
    }
    return make_config(content)


def open_clients(port: int, n: int, model: str, **body: Any) -> list[socket.socket]:
    """Send a request on each of some connections."""
    content = {"model": model, "messages": [{"role": "user", "content": "2 + 2?"}], **body}
    data = json.dumps(content).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    clients = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(n)]
    for client in clients:
        client.sendall(head.encode() + data)
    return clients


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.1)


def gauge(port: int, name: str) -> float:
    lines = gateways.send(port, "GET", "/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith(f"adacompute_{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.parametrize("model", ["virtual", "other"])
def test_clients_that_disconnect_before_the_request_is_sent_spend_nothing(
    model: str, full_server: int, policies: Path, tmp_path: Path
) -> None:
    config = make_settings(tmp_path, policies / "two", f"http://127.0.0.1:{full_server}/v1")
    with gateways.serve_gateway(config) as port:
        clients = open_clients(port, N_CLIENTS, model, max_tokens=50, stream=True)
        wait_until(lambda: any(tmp_path.glob(FILES)) and len([*read_calls(tmp_path)]) >= N_CLIENTS)
        wait_until(lambda: gauge(port, "cap_reserved") > 0)
        for client in clients:
            client.close()
        wait_until(lambda: gauge(port, "requests_in_flight") == 0)
        wait_until(lambda: gauge(port, "cap_reserved") == 0)
        assert gauge(port, "cap_spent") == 0
    calls = list(read_calls(tmp_path))
    assert len(calls) >= N_CLIENTS
    assert not any(call["is_estimated"] or call["prompt_tokens"] for call in calls)


@pytest.mark.parametrize("model", ["virtual", "other"])
def test_a_client_that_disconnects_during_a_stream_spends_the_maximum(
    model: str, upstream: ScriptedServer, policies: Path, tmp_path: Path
) -> None:
    upstream.answer(ScriptedReply(200, EVENTS, [TOKEN, 20.0, TOKEN], framing="close"))
    config = make_settings(tmp_path, policies / "one", upstream.base_url)
    n_before = len(upstream.received)
    with gateways.serve_gateway(config) as port:
        (client,) = open_clients(port, 1, model, max_tokens=50, stream=True)
        wait_until(lambda: len(upstream.received) > n_before)
        if model == "other":
            assert b"data:" in client.recv(4096)
        client.close()
        wait_until(lambda: gauge(port, "cap_spent") > 0)
        spent = gauge(port, "cap_spent")
        assert gauge(port, "cap_overruns_total") == 0
    (call,) = read_calls(tmp_path)
    assert call["is_estimated"]
    assert spent == len(upstream.received[-1].body) + 50 == sum_tokens(call)


def sum_tokens(call: dict[str, Any]) -> int:
    return int(call["prompt_tokens"]) + int(call["completion_tokens"])


@pytest.mark.parametrize("wait_s", [i * 0.0003 for i in range(16)])
def test_a_call_that_is_cancelled_while_it_starts_leaves_no_reservation(
    wait_s: float, tmp_path: Path
) -> None:
    config = make_config(
        {"base_url": "http://x/v1", "caps": CAPS, "state_directory": str(tmp_path)}
        | {"max_output_tokens": 50}
    )
    metrics = Metrics()
    spending = Spending(config, metrics)

    async def start() -> int:
        await spending.open()
        log = CallLog(CallFile(tmp_path / "calls"), metrics)
        log.caps = spending.caps
        assert log.caps is not None
        origin, bound = CallOrigin("r", "m", "forward"), CallBound("m", 50, 50, 1)
        task = asyncio.create_task(log.start(origin, "chat/completions", bound))
        await asyncio.sleep(wait_s)
        is_started = task.done()
        task.cancel()
        await asyncio.wait({task})
        reserved = sum(one.own_reserved for one in log.caps.meter.usage())
        await spending.close()
        return reserved if not is_started else reserved - 100

    assert asyncio.run(start()) == 0
