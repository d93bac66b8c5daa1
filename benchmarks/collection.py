"""Collection: what the ledger and all the care around a call cost, against a bare loop of aiohttp.

The fake upstream runs in a process of its own. Both sides draw the same samples, the bare loop by
as many workers, without a ledger, retries or a limit on cost.

    python benchmarks/collection.py                   # throughput, and CPU at saturation
    python benchmarks/collection.py --memory 100000   # peak memory of a whole `adacompute collect`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq

from adacompute.collection.collector import Collector
from adacompute.collection.limits import AdaptiveLimiter
from adacompute.collection.plan import CollectionLevel
from adacompute.models.messages import Capabilities, Settings
from adacompute.models.openai import Upstream
from adacompute.models.openai_format import request_body
from adacompute.models.templates import Template
from adacompute.spending.meter import Meter
from adacompute.spending.token_prices import TokenPrices
from adacompute.storage.ledger import Ledger

LATENCY_S, AT_ONCE = 0.5, 256
DRAWS = 8
SETTINGS = Settings(max_tokens=64)
Timed = tuple[float, float]
"""Samples a second, and µs of CPU a sample."""


@contextmanager
def upstream(*options: str) -> Iterator[str]:
    """Start a fake upstream."""
    command = [sys.executable, "-m", "adacompute.testing.fake_openai", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


def asked(samples: int) -> list[tuple[str, str]]:
    """Questions that need so many samples."""
    return [(f"q{i}", f"What is {i} x 7?") for i in range(samples // DRAWS)]


async def timed(samples: int, work: Callable[[], Awaitable[object]]) -> Timed:
    """Time something that draws samples."""
    begun, used = time.perf_counter(), time.process_time()
    await work()
    taken, used = time.perf_counter() - begun, time.process_time() - used
    return samples / taken, used / samples * 1e6


async def bare(url: str, samples: int, at_once: int) -> Timed:
    """Draw with aiohttp alone."""
    template, known = Template(), Capabilities()
    todo = ((text, seed) for _, text in asked(samples) for seed in range(DRAWS))
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def worker() -> None:
            for text, seed in todo:
                body = request_body("m", template.render(text), SETTINGS, known, seed=seed)
                data = json.dumps(body).encode()
                async with session.post(f"{url}/chat/completions", data=data) as reply:
                    document = json.loads(await reply.read())
                assert document["choices"][0]["message"]["content"]

        return await timed(samples, lambda: asyncio.gather(*(worker() for _ in range(at_once))))


async def collected(url: str, samples: int, at_once: int) -> Timed:
    """Draw into a ledger."""
    with tempfile.TemporaryDirectory() as place:
        ledger = Ledger(Path(place) / "ledger.sqlite")
        async with Upstream(url, "m", connections=at_once) as model:
            prices = TokenPrices(input=1.0, output=2.0)
            level = CollectionLevel("default", "m", model, Template(), SETTINGS, prices, DRAWS)
            collector = Collector(
                ledger, level, asked(samples), Meter(10**18), AdaptiveLimiter(max_calls=at_once)
            )
            found = await timed(samples, collector.run)
        assert (collector.progress.done, collector.progress.missing) == (samples, 0)
        ledger.close()
    return found


def compare(latency_s: float, samples: int, at_once: int, times: int) -> None:
    """Print both, in turns; the best of each counts."""
    rate: dict[str, float] = {}
    used: dict[str, float] = {}
    with upstream("--latency-s", f"{latency_s}", "--n", "ignored") as url:
        asyncio.run(bare(url, AT_ONCE * DRAWS, at_once))  # connections warm up nobody's clock
        for _ in range(times):
            for side in (bare, collected):
                name = side.__name__
                samples_s, cpu = asyncio.run(side(url, samples, at_once))
                rate[name] = max(samples_s, rate.get(name, 0.0))
                used[name] = min(cpu, used.get(name, float("inf")))
                print(f"  {name:10} {samples_s:8,.0f} samples/s {cpu:6.0f} µs of CPU a sample")
    print(
        f"{samples} samples, {latency_s:g} s latency, {at_once} at once: "
        f"{rate['collected'] / rate['bare']:.3f} of the bare loop's throughput, "
        f"{used['collected'] - used['bare']:.0f} µs of CPU a sample added"
    )


def measure_memory(questions: int) -> None:
    """Print the peak memory of a process that collects and exports so many questions."""
    with tempfile.TemporaryDirectory() as place, upstream() as url:
        rows = [
            {"question_id": name, "question": text, "gold": "7"}
            for name, text in asked(questions * DRAWS)
        ]
        source = Path(place) / "questions.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
        command = [sys.executable, "-m", "adacompute", "collect", str(source), "--json"]
        command += ["--run", f"{place}/run", "--base-url", url, "--model", "fake"]
        command += ["--grader", "numeric", "--samples", f"{DRAWS}", "--max-tokens", "64"]
        begun = time.perf_counter()
        done = subprocess.run(  # noqa: S603 - our own
            command,
            env={**os.environ, "XDG_CACHE_HOME": place},
            capture_output=True,
            text=True,
            check=True,
            timeout=3600,
        )
        taken = time.perf_counter() - begun
    (level,) = json.loads(done.stdout)["levels"]
    assert level["samples"] == questions * DRAWS
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{questions} questions × {DRAWS} samples: peak {peak:.0f} MB, {taken:.0f} s")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description="What collecting costs.")
    parser.add_argument("--memory", type=int, metavar="QUESTIONS", help="measure memory instead")
    parser.add_argument("--samples", type=int, default=20_480, help="of the test with latency")
    options = parser.parse_args()
    if options.memory:
        measure_memory(options.memory)
        return
    compare(LATENCY_S, options.samples, AT_ONCE, times=2)
    compare(0.0, 8_000, 32, times=3)


if __name__ == "__main__":
    main()
