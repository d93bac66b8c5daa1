"""Collection: throughput and CPU time of a collection against a bare aiohttp loop.

The fake upstream runs in a process of its own. Both sides draw the same samples at the same
concurrency. The bare loop has no store, no retries and no limit on cost.

    python -m benchmarks.collection                   # throughput, and CPU time at saturation
    python -m benchmarks.collection --memory 100000   # peak memory of a whole `adacompute collect`
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

from adacompute.batch.call_limits import AdaptiveLimiter
from adacompute.batch.calls import BatchArm, Caller
from adacompute.collection.collector import Collector
from adacompute.collection.store import CollectionStore
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.formats.openai_format import request_body
from adacompute.models.messages import Capabilities, Settings
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.spending.account import SpendingAccount
from adacompute.spending.call_costs import CallCosts
from adacompute.spending.token_prices import TokenPrices

LATENCY_S, CONCURRENCY = 0.5, 256
SAMPLES_PER_QUESTION = 8
SETTINGS = Settings(max_tokens=64)
Timing = tuple[float, float]
"""Samples per second, and µs of CPU time per sample."""


@contextmanager
def start_upstream(*options: str) -> Iterator[str]:
    """Start a fake upstream and yield its URL."""
    command = [sys.executable, "-m", "adacompute.testing.fake_openai", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


def make_questions(n_samples: int) -> list[tuple[str, str]]:
    """Return ids and texts of the questions that need this number of samples together."""
    return [(f"q{i}", f"What is {i} x 7?") for i in range(n_samples // SAMPLES_PER_QUESTION)]


async def measure(n_samples: int, work: Callable[[], Awaitable[object]]) -> Timing:
    """Time a function that draws samples."""
    start, cpu = time.perf_counter(), time.process_time()
    await work()
    elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return n_samples / elapsed_s, cpu_s / n_samples * 1e6


async def run_bare(url: str, n_samples: int, concurrency: int) -> Timing:
    """Draw the samples with aiohttp alone."""
    template, capabilities = Template(), Capabilities()
    questions = make_questions(n_samples)
    calls = ((text, seed) for _, text in questions for seed in range(SAMPLES_PER_QUESTION))
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def work() -> None:
            for text, seed in calls:
                prompt = template.render(text)
                body = request_body("m", prompt, SETTINGS, capabilities, seed=seed)
                data = json.dumps(body).encode()
                async with session.post(f"{url}/chat/completions", data=data) as reply:
                    document = json.loads(await reply.read())
                assert document["choices"][0]["message"]["content"]

        workers = (work() for _ in range(concurrency))
        return await measure(n_samples, lambda: asyncio.gather(*workers))


async def run_collector(url: str, n_samples: int, concurrency: int) -> Timing:
    """Collect the samples into a store."""
    questions = make_questions(n_samples)
    costs = CallCosts("money", {"m": TokenPrices(input=1.0, output=2.0)})
    arm = BatchArm("default", "m", Template(), SETTINGS)
    with tempfile.TemporaryDirectory() as directory:
        store = CollectionStore(Path(directory))
        positions = store.register_questions(name for name, _ in questions)
        asked = [(i, text) for i, (_, text) in zip(positions, questions, strict=True)]
        async with (
            Upstream(url, "m", limits=EndpointLimits(max_connections=concurrency)) as model,
            SpendingAccount(store.directory, costs, limit=10**18, arms=["default"]) as account,
        ):
            limiter = AdaptiveLimiter(max_calls=concurrency)
            collector = Collector(
                store, "default", Caller(model, [arm], account, limiter), concurrency
            )
            timing = await measure(
                n_samples, lambda: collector.collect(asked, SAMPLES_PER_QUESTION)
            )
        assert (collector.result.done, collector.result.missing) == (n_samples, 0)
    return timing


def compare(latency_s: float, n_samples: int, concurrency: int, turns: int) -> None:
    """Run both sides in turns and print the best of each."""
    rates: dict[str, float] = {}
    cpu: dict[str, float] = {}
    sides = {"bare": run_bare, "collector": run_collector}
    with start_upstream("--latency-s", f"{latency_s}", "--n", "ignored") as url:
        warm_up = CONCURRENCY * SAMPLES_PER_QUESTION
        asyncio.run(run_bare(url, warm_up, concurrency))
        for _ in range(turns):
            for name, side in sides.items():
                rate, cpu_us = asyncio.run(side(url, n_samples, concurrency))
                rates[name] = max(rate, rates.get(name, 0.0))
                cpu[name] = min(cpu_us, cpu.get(name, float("inf")))
                print(f"  {name:10} {rate:8,.0f} samples/s {cpu_us:6.0f} µs of CPU per sample")
    print(
        f"{n_samples} samples, {latency_s:g} s latency, {concurrency} parallel: "
        f"{rates['collector'] / rates['bare']:.3f} of the bare loop's throughput, "
        f"{cpu['collector'] - cpu['bare']:.0f} µs of CPU added per sample"
    )


def measure_memory(n_questions: int) -> None:
    """Print the peak memory of a process that collects and exports this many questions."""
    with tempfile.TemporaryDirectory() as directory, start_upstream() as url:
        rows = [
            {"question_id": name, "question": text, "gold": "7"}
            for name, text in make_questions(n_questions * SAMPLES_PER_QUESTION)
        ]
        source = Path(directory) / "questions.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
        command = [sys.executable, "-m", "adacompute", "collect", str(source), "--json"]
        command += ["--run", f"{directory}/run", "--base-url", url, "--model", "fake"]
        command += ["--grader", "numeric", "--config", "max-tokens=64"]
        command += ["--samples", f"{SAMPLES_PER_QUESTION}"]
        start = time.perf_counter()
        done = subprocess.run(  # noqa: S603 - our own command
            command,
            env={**os.environ, "XDG_CACHE_HOME": directory},
            capture_output=True,
            text=True,
            check=True,
            timeout=3600,
        )
        elapsed_s = time.perf_counter() - start
    (arm,) = json.loads(done.stdout)["arms"]
    assert arm["samples"] == n_questions * SAMPLES_PER_QUESTION
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{n_questions} questions × {SAMPLES_PER_QUESTION} samples: "
        f"peak {peak_mb:.0f} MB, {elapsed_s:.0f} s"
    )


def main() -> None:
    """Measure throughput, or memory with ``--memory``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memory", type=int, metavar="QUESTIONS", help="measure memory instead")
    parser.add_argument(
        "--samples", type=int, default=20_480, help="samples of the run with latency"
    )
    options = parser.parse_args()
    if options.memory:
        measure_memory(options.memory)
        return
    compare(LATENCY_S, options.samples, CONCURRENCY, turns=2)
    compare(0.0, 8_000, 32, turns=3)


if __name__ == "__main__":
    main()
