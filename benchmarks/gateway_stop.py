"""Gateway stop: SIGTERM while nothing in the gateway wants to end.

``python -m benchmarks.gateway_stop [TRIES] [--workers N] [--grader cmd|math]``. Each try starts a
gateway with a grader that hangs, an upstream that stalls before its reply, and a stream that stays
open, sends SIGTERM to the gateway, and measures how long it takes until every process that it
started has ended. It fails if one try takes longer than ``drain_s``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from test_support.gateways import free_port, save_example_bundle
from test_support.scripted import ScriptedReply, ScriptedServer, serve_scripted

DRAIN_S = 3.0
START_TIMEOUT_S = 120.0
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = {workers}
probe = false
drain_s = {drain_s}
[serve.models.graded]
bundle = "policy"
budget = 2
grader = "{grader}"
model = "graded"
"""
# It answers the gateway's warm-up, then ignores SIGTERM, and so does a process that it starts.
HANGING = """
import json, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for line in sys.stdin:
    if "frac" not in line:
        time.sleep(600)
    print(json.dumps({"answer": "1"}), flush=True)
"""
MATH_EXPRESSIONS = ("97^{99!}", "y+1")
JSON_TYPE = [("Content-Type", "application/json")]
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'


def main() -> None:
    """Try as often as asked, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tries", type=int, nargs="?", default=50)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--grader", choices=["cmd", "math"], default="cmd")
    arguments = parser.parse_args()
    taken = []
    with TemporaryDirectory() as directory, serve_scripted() as upstream:
        root = Path(directory)
        save_example_bundle(root / "policy")
        (root / "hanging.py").write_text(HANGING)
        grader = f"cmd:{sys.executable} {root / 'hanging.py'}"
        if arguments.grader == "math":
            grader = "math"
        for number in range(arguments.tries):
            taken.append(stop_once(root, upstream, grader, arguments.workers))
            print(f"try {number + 1}: {taken[-1]:.2f} s", flush=True)
    n_in_time = sum(one <= DRAIN_S for one in taken)
    print(
        f"{n_in_time} of {len(taken)} ended within drain_s = {DRAIN_S:g} s: "
        f"median {statistics.median(taken):.2f} s, longest {max(taken):.2f} s"
    )
    sys.exit(n_in_time < len(taken))


def stop_once(root: Path, upstream: ScriptedServer, grader: str, workers: int) -> float:
    """Start a gateway, keep it busy, stop it, and return how long that took."""
    port, released = free_port(), threading.Event()
    config = root / "gateway.toml"
    values = {"base_url": upstream.base_url, "port": port, "grader": grader, "workers": workers}
    config.write_text(CONFIG.format(drain_s=DRAIN_S, **values))
    command = [sys.executable, "-m", "adacompute", "serve", "--config", str(config)]
    with (root / "gateway.log").open("wb") as log:
        gateway = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own
        pids: set[int] = set()
        try:
            wait_until_ready(port, gateway)
            clients = keep_busy(port, upstream, grader, released)
            pids = find_descendants(gateway.pid) | {gateway.pid}
            begun = time.monotonic()
            gateway.send_signal(signal.SIGTERM)
            while any(is_running(pid) for pid in pids):
                if time.monotonic() - begun > 10 * DRAIN_S:
                    break
                gateway.poll()
                time.sleep(0.01)
            taken = time.monotonic() - begun
            for client in clients:
                client.close()
        finally:
            released.set()
            for pid in filter(is_running, pids | {gateway.pid}):
                os.kill(pid, signal.SIGKILL)
            gateway.wait()
    return taken


def keep_busy(
    port: int, upstream: ScriptedServer, grader: str, released: threading.Event
) -> list[socket.socket]:
    """Send one request that hangs in the grader, one in the upstream, and one open stream."""
    texts = MATH_EXPRESSIONS if grader == "math" else ("a", "b")
    upstream.answer(*(ScriptedReply(200, JSON_TYPE, [write_reply(text)]) for text in texts))
    clients = [send(port, {"model": "graded"})]
    wait_for(lambda: len(upstream.received) >= len(texts) - (grader != "math"))
    time.sleep(0.3)  # until it is being graded
    upstream.answer(
        ScriptedReply(200, [("Content-Type", "text/event-stream")], [EVENT, released], "chunked"),
        ScriptedReply(200, JSON_TYPE, [released, b"{}"]),
    )
    clients.append(send(port, {"model": "other", "stream": True}))
    assert clients[-1].recv(10)
    clients.append(send(port, {"model": "graded"}))
    wait_for(lambda: len(upstream.received) >= len(clients) - 1)
    return clients


def write_reply(text: str) -> bytes:
    """Return a chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()


def send(port: int, members: dict[str, object]) -> socket.socket:
    """Send a chat request, and leave its reply unread."""
    body = json.dumps({"messages": [{"role": "user", "content": "1 + 1?"}], **members}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(head.encode() + body)
    return client


def wait_for(condition: object) -> None:
    """Wait until a condition holds."""
    assert callable(condition)
    end = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_until_ready(port: int, gateway: subprocess.Popen[bytes]) -> None:
    """Wait until the gateway answers."""

    def is_ready() -> bool:
        assert gateway.poll() is None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    wait_for(is_ready)


def find_descendants(pid: int) -> set[int]:
    """Return the ids of all processes that a process started, and of all that those did."""
    found: set[int] = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found |= {child} | find_descendants(child)
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


if __name__ == "__main__":
    main()
