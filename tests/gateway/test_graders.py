"""Attacks on the graders of a gateway: nothing that they do may hold it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from test_support import gateways
from test_support.gateways import GatewayReply
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply

MODEL = """
[serve.models.graded]
bundle = "two"
budget = 2
model = "real"
grader = "{grader}"
"""


def ask(port: int, model: str) -> GatewayReply:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "How much?"}],
        "adacompute": {"debug": True},
    }
    return gateways.send(port, "POST", "/v1/chat/completions", body=json.dumps(body).encode())


def answers(found: GatewayReply) -> list[str | None]:
    assert found.status == 200
    values: list[str | None] = json.loads(found.values("x-adacompute-debug")[0])["answers"]
    return values


def test_expressions_that_sympy_does_not_finish_hold_nobody(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer
) -> None:
    pytest.importorskip("math_verify")
    hostile: list[list[str | None]] = []
    with launch(settings=MODEL.format(grader="math")) as port:
        threads = []
        for number in range(4):
            first = f"{95 + number}^{{99!}}"
            upstream.answer(chat_reply(first), chat_reply("y+1"))
            thread = threading.Thread(target=lambda: hostile.append(answers(ask(port, "graded"))))
            thread.start()
            threads.append(thread)
            while len(upstream.received) < 2:
                time.sleep(0.01)
            time.sleep(0.1)
        upstream.answer(chat_reply("4"))
        slowest = 0.0
        for _ in range(20):
            begun = time.monotonic()
            assert answers(ask(port, "thrifty")) == ["4", "4"]
            assert answers(ask(port, "graded")) == ["4", "4"]  # equal as texts
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 2
        for thread in threads:
            thread.join(timeout=30)
        assert len(hostile) == 4
        assert all(values[1] is None for values in hostile)
        upstream.answer(chat_reply(r"\boxed{\frac{1}{2}}"), chat_reply(r"\boxed{0.5}"))
        end = time.monotonic() + 40
        while time.monotonic() < end:
            upstream.answer(chat_reply(r"\boxed{\frac{1}{2}}"), chat_reply(r"\boxed{0.5}"))
            if answers(ask(port, "graded")) == [r"\frac{1}{2}"] * 2:
                break
            time.sleep(0.2)
        else:
            pytest.fail("the grader does not work any more")
        metrics = gateways.send(port + 1, "GET", "/metrics").body.decode()
    assert 'adacompute_grader_failures_total{grader="math"' in metrics


def test_a_stalled_program_does_not_cost_every_request_its_time_limit(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer, tmp_path: Path
) -> None:
    program = tmp_path / "stalled.py"
    program.write_text("import sys, time\nfor line in sys.stdin:\n    time.sleep(600)\n")
    upstream.answer(chat_reply("4"))
    with launch(settings=MODEL.format(grader=f"cmd:{sys.executable} {program}")) as port:
        ask(port, "graded")
        begun = time.monotonic()
        for _ in range(20):
            assert answers(ask(port, "graded")) == [None, None]
        assert time.monotonic() - begun < 5
        metrics = gateways.send(port + 1, "GET", "/metrics").body.decode()
    assert 'reason="circuit_open"' in metrics


def test_a_grader_program_inherits_no_secret(
    launch: Callable[..., AbstractContextManager[int]], upstream: ScriptedServer, tmp_path: Path
) -> None:
    secret, program, note = "sk-a-secret-of-the-environment", tmp_path / "g.py", tmp_path / "note"
    program.write_text(
        "import json, os, sys\n"
        f"open({str(note)!r}, 'w').write(str(dict(os.environ)))\n"
        "for line in sys.stdin:\n    print(json.dumps({'answer': '4'}), flush=True)\n"
    )
    upstream.answer(chat_reply("4"))
    settings = 'allowed_fields = ["${A_SECRET}"]\n' + MODEL
    settings = settings.replace("{grader}", f"cmd:{sys.executable} {program}")
    with launch(settings=settings, A_SECRET=secret, ANOTHER="inherited") as port:
        assert answers(ask(port, "graded")) == ["4", "4"]
    assert "inherited" in note.read_text()
    assert secret not in note.read_text()


HANGING = """
import json, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for line in sys.stdin:
    if "frac" not in line:
        time.sleep(600)
    print(json.dumps({"answer": "1"}), flush=True)
"""
"""Answers the gateway's warm-up, then ignores SIGTERM, and so does a process that it starts."""

CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = {workers}
probe = false
drain_s = 3.0
[serve.models.graded]
bundle = "policy"
budget = 2
grader = "{grader}"
model = "graded"
"""


def send_unread(port: int, **members: Any) -> socket.socket:
    """Send a chat request, and leave its reply unread."""
    body = json.dumps({"messages": [{"role": "user", "content": "1 + 1?"}], **members})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(f"{head}{body}".encode())
    return client


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_ends_everything_in_time(
    workers: int, upstream: ScriptedServer, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    gateways.save_example_bundle(tmp_path / "policy")
    port, released = gateways.free_port(), threading.Event()
    values = {"base_url": upstream.base_url, "port": port, "workers": workers}
    grader = f"cmd:{sys.executable} {tmp_path / 'hanging.py'}"
    (tmp_path / "gateway.toml").write_text(CONFIG.format(grader=grader, **values))
    command = [sys.executable, "-m", "adacompute", "serve"]
    command += ["--config", str(tmp_path / "gateway.toml")]
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    stream = [("Content-Type", "text/event-stream")]
    gateway, pids, clients = subprocess.Popen(command), set[int](), list[socket.socket]()
    try:
        gateways.wait_for(f"http://127.0.0.1:{port}/health")
        upstream.answer(chat_reply("a"), chat_reply("b"))
        clients.append(send_unread(port, model="graded"))  # hangs in the grader
        while not upstream.received:
            time.sleep(0.01)
        time.sleep(0.3)
        upstream.answer(
            ScriptedReply(200, stream, [event, released], "chunked"),
            ScriptedReply(200, [("Content-Type", "application/json")], [released, b"{}"]),
        )
        clients.append(send_unread(port, model="other", stream=True))
        assert clients[-1].recv(10)
        clients.append(send_unread(port, model="graded"))  # the upstream stalls
        while len(upstream.received) < 2:
            time.sleep(0.01)
        pids = {*gateways.process_tree(gateway.pid), gateway.pid}
        gateway.terminate()
        begun = time.monotonic()
        while any(is_running(pid) for pid in pids) and time.monotonic() < begun + 30:
            gateway.poll()
            time.sleep(0.01)
        assert time.monotonic() - begun <= 3
    finally:
        released.set()
        for client in clients:
            client.close()
        for pid in filter(is_running, pids | {gateway.pid}):
            os.kill(pid, signal.SIGKILL)
        gateway.wait()
