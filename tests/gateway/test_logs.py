"""Lines on standard error: all of them are JSON if they should be, and clients cannot fill them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.storage.calls import read_calls
from test_support.gateways import free_port, process_tree, send
from test_support.scripted import ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
USAGE = b'{"data": [], "usage": {"prompt_tokens": 1000, "total_tokens": 1000}}'
PRICES = "[models.priced]\ninput = 2.0\noutput = 4.0\n"

PROGRAM = """
import asyncio, gc, logging, sys, threading, warnings
from adacompute.gateway.processes.logs import log, set_up_logging
set_up_logging("json", "info")
warnings.warn("a warning of a library")
logging.getLogger("uvicorn.error").error("an error of\\nuvicorn")
log(logging.INFO, "a line of ours", path="/a b")

class Unraisable:
    def __del__(self):
        raise ValueError("in a finalizer")

Unraisable()
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()

async def fail():
    raise KeyError("in a task")

async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0.01)
    del task
    gc.collect()

asyncio.run(main())
raise RuntimeError("nobody handles this")
"""


def lines(text: str) -> list[dict[str, Any]]:
    """Parse every line as a JSON object."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(one) for one in found)
    return found


def test_whatever_a_process_writes_is_json() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    told = " ".join(f"{one['message']} {one.get('exception', '')}" for one in lines(done.stderr))
    for part in (
        "a warning of a library",
        "uvicorn",
        "a line of ours",
        "in a finalizer",
        "ZeroDivisionError",
        "in a task",
        "nobody handles this",
    ):
        assert part in told
    assert (done.returncode, done.stdout) == (1, "")


def test_every_line_of_a_gateway_is_json(
    launch: Launch, upstream: ScriptedServer, policies: Path, pids: dict[int, int]
) -> None:
    upstream.answer(ScriptedReply(200, JSON, [b"{}"]))
    with launch(settings='log_format = "json"', workers=2) as port:
        send(port, "POST", "/v1/embeddings", headers=JSON, body=b'{"model": "m"}')
        send(port, "POST", "/v1/chat/completions", headers=JSON, body=b"{")
        worker = process_tree(pids[port])[1]
        os.kill(worker, signal.SIGKILL)
        time.sleep(1)
        file = policies / f"gateway-{port}.toml"
        right = file.read_text()
        file.write_text("[serve")
        os.kill(pids[port], signal.SIGHUP)
        time.sleep(1)
        file.write_text(right)
    told = " ".join(one["message"] for one in lines((policies / f"gateway-{port}.log").read_text()))
    for part in ("listening on", "request", "a worker died", "stays as it is", "stopped: "):
        assert part in told


@pytest.mark.parametrize("wrong", ["bundle", "setting", "port"])
def test_a_start_that_fails_is_a_line_of_json(wrong: str, policies: Path) -> None:
    port, path = free_port(), policies / "wrong.toml"
    plug = socket.create_server(("127.0.0.1", port + (1 if wrong == "port" else 2)))
    bundle = "nowhere" if wrong == "bundle" else "one"
    text = (
        f'[serve]\nbase_url = "http://127.0.0.1:9/v1"\nport = {port}\nlog_format = "json"\n'
        f'[serve.models.m]\nbundle = "{bundle}"\nbudget = 1\n'
        'model = "real"\ngrader = "numeric"\n'
    )
    path.write_text(text.replace("budget = 1", "budget = -1") if wrong == "setting" else text)
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(path)]
    with plug:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    *_, last = lines(done.stderr)
    assert last["level"] == "error"
    assert {"bundle": "nowhere", "setting": "budget", "port": f"port {port + 1}"}[wrong] in last[
        "message"
    ]


def test_forwarded_requests_log_their_model_and_cost(
    launch: Launch, upstream: ScriptedServer, policies: Path
) -> None:
    (policies / "log-prices.toml").write_text(PRICES)
    upstream.answer(ScriptedReply(200, JSON, [USAGE]))
    settings = 'log_format = "json"\ntoken_prices = "log-prices.toml"'
    with launch(settings=settings) as port:
        for model in (b"priced", b"unknown"):
            body = b'{"model": "%s", "input": "a"}' % model
            assert send(port, "POST", "/v1/embeddings", headers=JSON, body=body).status == 200
    found = lines((policies / f"gateway-{port}.log").read_text())
    requests = [one for one in found if one["message"] == "request"]
    assert [one["upstream_model"] for one in requests] == ["priced", "unknown"]
    assert [one.get("cost") for one in requests] == [pytest.approx(0.002), None]


def test_ids_that_clients_choose_are_cut(
    launch: Launch, upstream: ScriptedServer, policies: Path, tmp_path: Path
) -> None:
    upstream.answer(ScriptedReply(200, JSON, [USAGE]))
    settings = f'log_format = "json"\nstate_directory = "{tmp_path}"'
    headers = [*JSON, ("x-request-id", "i" * 5_000)]
    body = b'{"model": "%s", "input": "a"}' % (b"m" * 5_000)
    with launch(settings=settings) as port:
        reply = send(port, "POST", "/v1/embeddings", headers=headers, body=body)
        send(port, "POST", "/v1/" + "p" * 5_000, headers=headers, body=b"{}")
    assert reply.status == 200
    (sent, *_) = upstream.received
    assert sent.values("x-request-id") == ["i" * 5_000]
    (call, *_) = read_calls(tmp_path)
    assert (call["request"], call["upstream_model"]) == ("i" * 200, "m" * 200)
    found = lines((policies / f"gateway-{port}.log").read_text())
    requests = [one for one in found if one["message"] == "request"]
    assert [one["request_id"] for one in requests] == ["i" * 200] * 2
    for one in requests:
        assert all(len(value) <= 200 for value in one.values() if isinstance(value, str))
