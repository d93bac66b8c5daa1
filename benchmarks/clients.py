"""Clients: httpx against aiohttp under load, and what our own call adds to aiohttp.

The fake upstream runs in a process of its own; clients are asked in turns, several times, and the
best of each counts, since whatever else runs here only slows them down.

    python benchmarks/clients.py
"""

from __future__ import annotations

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

from adacompute.models.messages import Capabilities, Prompt, Settings
from adacompute.models.openai import Upstream
from adacompute.models.openai_format import request_body

PROMPT = Prompt(messages=({"role": "user", "content": "What is 6 x 7?"},))
SETTINGS = Settings(max_tokens=64)
BODY = json.dumps(request_body("m", PROMPT, SETTINGS, Capabilities(), seed=1)).encode()
HEADERS = {"Content-Type": "application/json"}
REQUESTS = 2_000
TIMES = 2

Ask = Callable[[], Awaitable[object]]


@contextmanager
def upstream(latency_s: float) -> Iterator[str]:
    """Start a fake upstream with this latency."""
    command = [
        sys.executable,
        "-m",
        "adacompute.testing.fake_openai",
        "--latency-s",
        f"{latency_s}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


async def load(ask: Ask, concurrent: int, requests: int) -> tuple[float, float]:
    """Send requests, so many at once; return requests a second, and µs of CPU a request."""
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            await ask()

    begun, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(concurrent)))
    taken, used = time.perf_counter() - begun, time.process_time() - used
    return requests / taken, used / requests * 1e6


async def with_httpx(url: str, concurrent: int, requests: int) -> tuple[float, float]:
    """Load with httpx."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:

        async def ask() -> Any:  # noqa: ANN401 - JSON
            reply = await client.post(f"{url}/chat/completions", content=BODY, headers=HEADERS)
            return json.loads(reply.content)["choices"][0]["message"]["content"]

        return await load(ask, concurrent, requests)


async def with_aiohttp(url: str, concurrent: int, requests: int) -> tuple[float, float]:
    """Load with aiohttp."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as client:

        async def ask() -> Any:  # noqa: ANN401 - JSON
            async with client.post(f"{url}/chat/completions", data=BODY) as reply:
                return json.loads(await reply.read())["choices"][0]["message"]["content"]

        return await load(ask, concurrent, requests)


async def with_ours(url: str, concurrent: int, requests: int) -> tuple[float, float]:
    """Load with `Upstream.call`."""
    async with Upstream(url, "m") as client:

        async def ask() -> object:
            return await client.call(PROMPT, SETTINGS, seed=1)

        return await load(ask, concurrent, requests)


CLIENTS = {"httpx": with_httpx, "aiohttp": with_aiohttp, "Upstream.call": with_ours}


def best(url: str, concurrent: int) -> dict[str, tuple[float, float]]:
    """The best of a few turns of each client."""
    found = dict.fromkeys(CLIENTS, (0.0, float("inf")))
    for _ in range(TIMES):
        for name, client in CLIENTS.items():
            rate, used = asyncio.run(client(url, concurrent, REQUESTS))
            found[name] = max(found[name][0], rate), min(found[name][1], used)
    return found


def main() -> None:
    """Print requests a second and CPU a request of every client."""
    print(f"{'client':14} {'latency':>8} {'at once':>8} {'requests/s':>11} {'µs of CPU':>10}")
    for latency_s, numbers in ((0.02, (64, 256)), (0.0, (8,))):
        with upstream(latency_s) as url:
            for concurrent in numbers:
                found = best(url, concurrent)
                for name, (rate, used) in found.items():
                    print(f"{name:14} {latency_s:8g} {concurrent:8} {rate:11,.0f} {used:10.0f}")
                rates = {name: rate for name, (rate, _) in found.items()}
                added = found["Upstream.call"][1] - found["aiohttp"][1]
                print(
                    f"  aiohttp / httpx {rates['aiohttp'] / rates['httpx']:.1f}; "
                    f"our call adds {added:.0f} µs to aiohttp"
                )


if __name__ == "__main__":
    main()
