"""Batch, speed: samples per second, and CPU per sample, against a bare asynchronous loop.

``python -m benchmarks.batch_speed OUT --questions 100000 --concurrency 512 --latency 1`` starts the
fake upstream as a process. A bare loop of aiohttp makes as many calls as the batch needs, with the
same bodies and concurrency; then the batch answers the questions. It prints samples per second and
CPU per sample of both, their ratio, how long the last 1 % of the questions took, and the peak
memory. With ``--latency 0`` both are limited by the CPU. ``--engine ray`` answers them on Ray with
two actors, which share the calls at a time; the start of the cluster is not counted, that of the
actors is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp

from adacompute.batch.planning.expected_spend import ExpectedSpend
from adacompute.batch.progress import Progress
from adacompute.batch.ray.cluster import SETTINGS, connect
from adacompute.batch.ray.sampling import RayBatch, sample_on_ray
from adacompute.batch.server import Server
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.policies.bundles.bundle import save_bundle
from test_support.batches import Case, make_job
from test_support.gateways import free_port


@contextmanager
def start_fake(latency_s: float) -> Iterator[str]:
    """Run the fake upstream as a process."""
    port = free_port()
    command = [sys.executable, "-m", "adacompute.testing.fake_openai", "--port", str(port)]
    command += ["--latency-s", str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


async def run_bare(url: str, n_calls: int, concurrency: int) -> None:
    """Make calls with aiohttp, and parse the replies."""
    body = {"model": "fake", "temperature": 0.7, "max_tokens": 40}
    numbers = iter(range(n_calls))
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for i in numbers:
                message = {"role": "user", "content": f"What is {i} + {i * i % 97}? Think. Think."}
                sent = json.dumps(body | {"messages": [message], "seed": i}).encode()
                headers = {"content-type": "application/json"}
                post = session.post(f"{url}/chat/completions", data=sent, headers=headers)
                async with post as reply:
                    json.loads(await reply.read())

        await asyncio.gather(*(work() for _ in range(concurrency)))


def measure_bare(url: str, n_calls: int, concurrency: int) -> dict[str, float]:
    """Return the rate and the CPU per call of the bare loop."""
    start, cpu = time.monotonic(), time.process_time()
    asyncio.run(run_bare(url, n_calls, concurrency))
    return _rates(n_calls, start, cpu)


def measure_batch(out: Path, url: str, n_questions: int, concurrency: int) -> dict[str, float]:
    """Return the rate and the CPU per sample of a batch, and the time of its last 1 %."""
    case = Case(n_questions, 2.0, concurrency=concurrency, lag=None, flush_s=1.0)
    moments: list[float] = []

    def note(done: Progress) -> None:
        if not moments and done.done >= 0.99 * n_questions:
            moments.append(time.monotonic())

    job = make_job(out, case)
    job.on_progress = note
    job.settings = replace(job.settings, patience_s=60.0)
    start, cpu = time.monotonic(), time.process_time()
    upstream = Upstream(url, "fake", limits=EndpointLimits(max_connections=concurrency))
    result = asyncio.run(job.run(upstream))
    found = _rates(result["samples"], start, cpu)
    return found | {
        "samples": result["samples"],
        "cost": result["cost"],
        "last_percent_s": time.monotonic() - moments[0],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure_ray(out: Path, url: str, n_questions: int, concurrency: int) -> dict[str, float]:
    """Return the rate of a batch on Ray, with two actors."""
    case = Case(n_questions, 2.0, concurrency=concurrency, lag=None, flush_s=1.0)
    job = make_job(out, case)
    save_bundle(job.bundle, out.with_name(f"{out.name}-bundle"))
    batch = RayBatch(
        directory=out,
        source=job.span.source,
        grader="numeric",
        arms=job.arms,
        curve=job.curve,
        expected=ExpectedSpend.uniform(n_questions),
        costs=job.costs,
        settings=replace(job.settings, patience_s=60.0),
        server=Server(url, Capabilities()),
        identity={},
    )
    with connect(n_cpus=2):
        start, cpu = time.monotonic(), time.process_time()
        result = sample_on_ray(batch, out.with_name(f"{out.name}-bundle"), workers=2)
        found = _rates(result["samples"], start, cpu)
    del found["cpu_us"]  # of the driver, which does nothing
    return found | {"samples": result["samples"], "cost": result["cost"]}


def _rates(n_calls: int, start: float, cpu: float) -> dict[str, float]:
    elapsed_s = time.monotonic() - start
    return {
        "seconds": elapsed_s,
        "per_second": n_calls / elapsed_s,
        "cpu_us": (time.process_time() - cpu) / n_calls * 1e6,
    }


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=512)
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--latency", type=float, default=1.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ |= SETTINGS
    with start_fake(options.latency) as url:
        measure = measure_ray if options.engine == "ray" else measure_batch
        batch = measure(
            options.out / f"job-{os.getpid()}", url, options.questions, options.concurrency
        )
        bare = measure_bare(url, int(batch["samples"]), options.concurrency)
    found = {"bare": bare, "batch": batch, "ratio": batch["per_second"] / bare["per_second"]}
    if "cpu_us" in batch:
        found["extra_cpu_us"] = batch["cpu_us"] - bare["cpu_us"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
