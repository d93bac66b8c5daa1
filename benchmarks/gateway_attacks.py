"""Gateway under attack: honest clients beside hostile ones, and reloads under load.

``python -m benchmarks.gateway_attacks hostile [SECONDS]``: 32 honest clients from 127.0.0.3, first
alone and then beside 64 hostile ones from 127.0.0.2, which send large headers, one giant header,
slow bodies, brackets in every member, compressed bombs, trailers, half requests, pipelined requests
and floods of connections. The gateway is pinned to one core. It prints the memory of all its
processes, the latency of ``/health``, failed honest requests, and their throughput as a share of
that without attackers.

``python -m benchmarks.gateway_attacks reload [SECONDS]``: SIGHUP every two seconds while 16 clients
send requests on connections that they keep; it prints how many requests were lost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from test_support.gateways import (
    fetch,
    free_port,
    process_tree,
    process_usage,
    save_example_bundle,
    wait_for,
)

Attack = Callable[[int], Awaitable[None]]
HONEST, HOSTILE = 32, 64
KEY = "a-key-of-this-benchmark-0123456789"
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
probe = false
log_level = "warning"
bearer_tokens = ["{key}"]
[serve.models.fake]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
"""
BODY = {"model": "fake", "messages": [{"role": "user", "content": "What is 17 + 25?"}]}
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
KEYED = HEAD + b"Authorization: Bearer " + KEY.encode() + b"\r\n"
BOMB = b"[]," * 3_000_000


@contextmanager
def running(command: list[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module as a process, and stop it at the end."""
    full = [sys.executable, "-m", *command]
    process = subprocess.Popen(full, text=True, **settings)  # type: ignore[call-overload]  # noqa: S603
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@contextmanager
def gateway(directory: Path) -> Iterator[tuple[int, int]]:
    """Run a fake upstream and a gateway; gives the gateway's port and process."""
    fake_port, port = free_port(), free_port()
    save_example_bundle(directory / "policy")
    base_url = f"http://127.0.0.1:{fake_port}/v1"
    config = directory / "gateway.toml"
    config.write_text(CONFIG.format(base_url=base_url, port=port, key=KEY))
    fake = ["adacompute.testing.fake_openai", "--port", str(fake_port), "--latency-s", "0.02"]
    serve = ["adacompute", "serve", "--config", str(config)]
    with running(fake, stdout=subprocess.DEVNULL), running(serve) as process:
        wait_for(f"http://127.0.0.1:{port + 1}/ready")
        yield port, process.pid


async def honest_client(
    session: aiohttp.ClientSession, url: str, end: float, found: Counter[str]
) -> None:
    """Send requests, one after the other, half of them voted on."""
    for number in itertools.count():
        if time.monotonic() > end:
            return
        body = {**BODY, "model": "fake" if number % 2 else "other"}
        try:
            async with session.post(url, json=body) as response:
                reply = await response.json(content_type=None)
                is_right = response.status == 200 and "choices" in reply
                found["right" if is_right else f"status {response.status}"] += 1
        except (aiohttp.ClientError, ValueError, TimeoutError) as error:
            found[type(error).__name__] += 1


async def measure_health(port: int, end: float, latencies: list[float]) -> None:
    """Ask for /health ten times per second, on a new connection each."""
    while time.monotonic() < end:
        start = time.perf_counter()
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{port}/health") as response:
                    is_right = response.status == 200
            except aiohttp.ClientError:
                is_right = False
        latencies.append(time.perf_counter() - start if is_right else 60.0)
        await asyncio.sleep(0.1)


async def measure_memory(pid: int, end: float, used: list[int]) -> None:
    """Note the memory of all processes of the gateway, twice per second."""
    while time.monotonic() < end:
        used.append((await asyncio.to_thread(process_usage, pid))["mb"])
        await asyncio.sleep(0.5)


async def send_parts(port: int, parts: Iterator[bytes], pause_s: float = 0.0) -> None:
    """Connect from the hostile address, and send until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    try:
        for part in parts:
            writer.write(part)
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.sleep(pause_s)
        writer.write_eof()
        while await asyncio.wait_for(reader.read(65_536), 10):
            pass
    finally:
        writer.transport.abort()


def with_length(head: bytes, body: bytes) -> bytes:
    """Return a request with a body."""
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def bombs() -> Iterator[bytes]:
    """Yield bodies with a million elements in one member each, and compressed ones."""
    for member in ("messages", "model", "n", "stop", "adacompute", "tools", "x"):
        values = {"model": b'"fake"', "messages": b"[]", member: b"[" + BOMB + b"[]]"}
        yield b"{" + b",".join(b'"%s":%s' % (k.encode(), v) for k, v in values.items()) + b"}"


def attacks() -> list[Attack]:
    """Every attack, as a function of the port."""
    packed = zlib.compress(b"[" * 20_000_000)
    bodies = list(bombs())
    chunked = KEYED + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    keys = itertools.cycle([HEAD, KEYED])

    def sending(make: Callable[[], Iterator[bytes]], pause_s: float = 0.0) -> Attack:
        return lambda port: send_parts(port, make(), pause_s)

    numbers = itertools.count()
    return [
        sending(lambda: iter([HEAD, *[b"X-%d: " % i + b"a" * 8000 + b"\r\n" for i in range(500)]])),
        sending(lambda: iter([HEAD + b"X: ", *[b"a" * 65_536] * 200])),
        sending(lambda: iter([KEYED + b"Content-Length: 1000\r\n\r\n", *[b"{"] * 8]), 1.0),
        sending(lambda: iter([with_length(next(keys), bodies[next(numbers) % len(bodies)])])),
        sending(lambda: iter([with_length(KEYED + b"Content-Encoding: deflate\r\n", packed)])),
        sending(lambda: iter([chunked, *[b"X-Adacompute-Budget: 16\r\n" * 100] * 50, b"\r\n"])),
        sending(lambda: iter([HEAD[:40]]), 5.0),
        sending(lambda: iter([b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500])),
        sending(lambda: iter([])),
    ]


async def hostile_client(attack: Attack, port: int, end: float, found: Counter[str]) -> None:
    """Repeat one attack."""
    while time.monotonic() < end:
        try:
            await asyncio.wait_for(attack(port), 20)
            found["ended"] += 1
        except (OSError, TimeoutError):
            found["refused"] += 1
        await asyncio.sleep(0.01)


def run_hostile(port: int, seconds: float) -> None:
    """Run all hostile clients, in a process of their own."""
    os.nice(15)  # on two cores, attackers must not take the honest clients' processor time

    async def run() -> None:
        end, found, every = time.monotonic() + seconds, Counter[str](), attacks()
        clients = (
            hostile_client(every[index % len(every)], port, end, found) for index in range(HOSTILE)
        )
        await asyncio.gather(*clients)
        print(f"attacks: {dict(found)}", flush=True)

    asyncio.run(run())


async def run_honest(port: int, pid: int, seconds: float) -> dict[str, object]:
    """Run the honest clients for some seconds, and return what they met."""
    end, found = time.monotonic() + seconds, Counter[str]()
    latencies: list[float] = []
    used: list[int] = []
    connector = aiohttp.TCPConnector(limit=HONEST, local_addr=("127.0.0.3", 0))
    headers = {"Authorization": f"Bearer {KEY}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await asyncio.gather(
            *(honest_client(session, url, end, found) for _ in range(HONEST)),
            measure_health(port, end, latencies),
            measure_memory(pid, end, used),
        )
    latencies.sort()
    return {
        "requests": found["right"],
        "failed": {name: n for name, n in found.items() if name != "right"},
        "per_second": round(found["right"] / seconds, 1),
        "health_p99_ms": round(1000 * latencies[int(0.99 * len(latencies))], 1),
        "memory_mb": max(used),
    }


def measure_hostile(seconds: float) -> None:
    """Measure the honest clients alone, then beside the hostile ones."""
    with TemporaryDirectory() as directory, gateway(Path(directory)) as (port, pid):
        for process in process_tree(pid):
            os.sched_setaffinity(process, {0})
        alone = asyncio.run(run_honest(port, pid, seconds / 3))
        print("alone:", json.dumps(alone), flush=True)
        command = [sys.executable, __file__, "attackers", str(seconds + 5), "--port", str(port)]
        with subprocess.Popen(command):  # noqa: S603
            beside = asyncio.run(run_honest(port, pid, seconds))
        print("beside hostile clients:", json.dumps(beside))
        print(f"share of throughput: {beside['per_second'] / alone['per_second']:.2f}")  # type: ignore[operator]


def measure_reload(seconds: float) -> None:
    """Send SIGHUP every two seconds under load."""

    async def run(port: int, pid: int) -> None:
        end, found = time.monotonic() + seconds, Counter[str]()
        url = f"http://127.0.0.1:{port}/v1/chat/completions"

        async def hang_up() -> None:
            while time.monotonic() < end - 2:
                await asyncio.sleep(2)
                os.kill(pid, signal.SIGHUP)

        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            await asyncio.gather(
                hang_up(), *(honest_client(session, url, end, found) for _ in range(16))
            )
        shown = (
            await asyncio.to_thread(fetch, f"http://127.0.0.1:{port + 1}/metrics")
        ).splitlines()
        reloads = [line for line in shown if line.startswith("adacompute_reloads_total")]
        print("requests:", dict(found), "reloads:", reloads)

    with TemporaryDirectory() as directory, gateway(Path(directory)) as (port, pid):
        asyncio.run(run(port, pid))


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["hostile", "reload", "attackers"])
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.what == "attackers":
        run_hostile(given.port, given.seconds)
    elif given.what == "hostile":
        measure_hostile(given.seconds)
    else:
        measure_reload(given.seconds)


if __name__ == "__main__":
    main()
