"""Clients: aiohttp against httpx under load, and the overhead of our own call over aiohttp.

The fake upstream runs in a process of its own. The clients take turns, several times, and the best
turn of each counts, because other processes on the machine can only slow them down.

    python -m benchmarks.clients
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import httpx

from adacompute.models.formats.openai_format import request_body
from adacompute.models.messages import Capabilities, Prompt, Settings
from test_support.upstreams import draw_samples, open_upstream

PROMPT = Prompt(messages=({"role": "user", "content": "What is 6 x 7?"},))
SETTINGS = Settings(max_tokens=64)
BODY = json.dumps(request_body("m", PROMPT, SETTINGS, Capabilities(), seed=1)).encode()
HEADERS = {"Content-Type": "application/json"}
TURNS = 2

Send = Callable[[], Awaitable[object]]
Timing = tuple[float, float]
"""Requests per second, and µs of CPU time per request."""


@contextmanager
def start_upstream(latency_s: float, *options: str) -> Iterator[str]:
    """Start a fake upstream with this latency and further options, and yield its URL."""
    module = "adacompute.testing.fake_openai"
    command = [sys.executable, "-m", module, "--latency-s", f"{latency_s}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


async def measure(send: Send, concurrency: int, n_requests: int) -> Timing:
    """Send requests at this concurrency and time them."""
    numbers = iter(range(n_requests))

    async def work() -> None:
        for _ in numbers:
            await send()

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return n_requests / elapsed_s, cpu_s / n_requests * 1e6


async def measure_httpx(url: str, concurrency: int, n_requests: int) -> Timing:
    """Send the requests with httpx."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:

        async def send() -> Any:  # noqa: ANN401 - JSON
            reply = await client.post(f"{url}/chat/completions", content=BODY, headers=HEADERS)
            return json.loads(reply.content)["choices"][0]["message"]["content"]

        return await measure(send, concurrency, n_requests)


async def measure_aiohttp(url: str, concurrency: int, n_requests: int) -> Timing:
    """Send the requests with aiohttp."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as client:

        async def send() -> Any:  # noqa: ANN401 - JSON
            async with client.post(f"{url}/chat/completions", data=BODY) as reply:
                return json.loads(await reply.read())["choices"][0]["message"]["content"]

        return await measure(send, concurrency, n_requests)


async def measure_ours(url: str, concurrency: int, n_requests: int) -> Timing:
    """Send the requests with `Upstream.call`."""
    async with open_upstream(url, "m") as client:

        async def send() -> object:
            return await draw_samples(client, PROMPT, SETTINGS, seed=1)

        return await measure(send, concurrency, n_requests)


CLIENTS = {"httpx": measure_httpx, "aiohttp": measure_aiohttp, "Upstream.call": measure_ours}


def measure_best(url: str, concurrency: int, n_requests: int) -> dict[str, Timing]:
    """Return the best of several turns of each client."""
    best = dict.fromkeys(CLIENTS, (0.0, float("inf")))
    for _ in range(TURNS):
        for name, client in CLIENTS.items():
            rate, cpu_us = asyncio.run(client(url, concurrency, n_requests))
            best[name] = max(best[name][0], rate), min(best[name][1], cpu_us)
    return best


def main() -> None:
    """Print requests per second and CPU time per request of every client."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2_000, help="per client and turn")
    n_requests = parser.parse_args().requests
    print(f"{'client':14} {'latency':>8} {'parallel':>8} {'requests/s':>11} {'µs of CPU':>10}")
    for latency_s, concurrencies in ((0.02, (64, 256)), (0.0, (8,))):
        with start_upstream(latency_s) as url:
            for concurrency in concurrencies:
                best = measure_best(url, concurrency, n_requests)
                for name, (rate, cpu_us) in best.items():
                    print(f"{name:14} {latency_s:8g} {concurrency:8} {rate:11,.0f} {cpu_us:10.0f}")
                ratio = best["aiohttp"][0] / best["httpx"][0]
                added_us = best["Upstream.call"][1] - best["aiohttp"][1]
                print(f"  aiohttp / httpx {ratio:.1f}; our call adds {added_us:.0f} µs to aiohttp")


if __name__ == "__main__":
    main()
