"""Whether compacting a large decision log delays requests, and how much memory it takes.

A gateway process serves voted requests of a few clients. Halfway, its log is rotated while a full
file of the given size waits for compaction. Printed are the latencies before and meanwhile, the
memory of all processes, and how long the compaction took.

    python -m benchmarks.gateway_compaction [MEGABYTES] [SECONDS]
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from test_support.gateways import (
    fetch,
    free_port,
    process_usage,
    save_example_bundle,
    wait_for,
)

N_CLIENTS = 8
CONFIG = """
[serve]
base_url = "http://127.0.0.1:{fake_port}/v1"
port = {port}
probe = false
log_level = "warning"
state_directory = "state"
decision_log = "texts"

[serve.models.fake]
bundle = "policy"
model = "fake"
budget = 2
grader = "numeric"
accept_verdict = true
"""

# Small enough that a file is rotated, and compaction begins, within the second run.
SITE = """from adacompute.storage.decisions import DecisionLog
DecisionLog.__init__.__defaults__ = (400_000, *DecisionLog.__init__.__defaults__[1:])
"""


async def ask(url: str, end: float, latencies: list[tuple[float, float]]) -> None:
    """Send requests one after another; note when each began and how long it took."""
    async with aiohttp.ClientSession() as session:
        number = 0
        while time.monotonic() < end:
            number += 1
            message = {"role": "user", "content": f"What is {number} + {id(session) % 1000}?"}
            began = time.monotonic()
            async with session.post(url, json={"model": "fake", "messages": [message]}) as reply:
                reply.raise_for_status()
                await reply.read()
            latencies.append((began, time.monotonic() - began))


async def watch(pid: int, log: Path, end: float, found: dict[str, list[float]]) -> None:
    """Note the memory of all processes, and the times at which the large file was there."""
    while time.monotonic() < end:
        if await asyncio.to_thread(log.exists):
            found["waiting"].append(time.monotonic())
        found["mb"].append((await asyncio.to_thread(process_usage, pid))["mb"])
        await asyncio.sleep(0.05)


def fill(directory: Path, megabytes: float) -> Path:
    """Write a large full file from the decisions that a gateway has logged."""
    lines = [line for path in directory.glob("active-*.jsonl") for line in path.open()]
    records = [json.loads(line) for line in lines[:200]]
    path, size, number = directory / "full-1-1.jsonl", 0, 0
    with path.with_suffix(".part").open("w") as file:
        while size < megabytes * 1e6:
            record = {**records[number % len(records)], "id": f"copy-{number}", "key": number}
            size += file.write(json.dumps(record, separators=(",", ":")) + "\n")
            number += 1
    print(f"a full file of {size / 1e6:.0f} MB with {number} decisions")
    return path.with_suffix(".part").rename(path)


def show(name: str, latencies: list[float]) -> None:
    """Print percentiles of latencies."""
    ordered = sorted(latencies)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(
        f"{name}: {len(ordered)} requests, p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, "
        f"longest {1e3 * ordered[-1]:.0f} ms"
    )


async def measure(url: str, pid: int, directory: Path, megabytes: float, seconds: float) -> None:
    """Serve for a while, then once more beside a compaction."""
    before: list[tuple[float, float]] = []
    during: list[tuple[float, float]] = []
    for latencies in (before, during):
        found: dict[str, list[float]] = {"waiting": [], "mb": []}
        path = directory / "none"
        if latencies is during:
            path = await asyncio.to_thread(fill, directory, megabytes)
        end = time.monotonic() + seconds
        await asyncio.gather(
            watch(pid, path, end, found), *(ask(url, end, latencies) for _ in range(N_CLIENTS))
        )
        show("beside a compaction" if latencies is during else "before", [t for _, t in latencies])
        print(f"  memory of all processes at most {max(found['mb']):.0f} MB")
        if waiting := found["waiting"]:
            print(f"  compacted after {waiting[-1] - waiting[0]:.1f} s")
        if path.exists():
            print("  NOT compacted in time")


def main() -> None:
    """Run the gateway and measure."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 64.0
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    with TemporaryDirectory() as name:
        directory, port, fake_port = Path(name), free_port(), free_port()
        save_example_bundle(directory / "policy")
        (directory / "sitecustomize.py").write_text(SITE)
        paths = os.pathsep.join([name, *filter(None, [os.getenv("PYTHONPATH")])])
        content = CONFIG.format(port=port, fake_port=fake_port)
        (directory / "gateway.toml").write_text(content)
        fake = [
            sys.executable,
            "-m",
            "adacompute.testing.fake_openai",
            "--port",
            str(fake_port),
            "--latency-s",
            "0.02",
        ]
        serve = [
            sys.executable,
            "-m",
            "adacompute",
            "serve",
            "--config",
            str(directory / "gateway.toml"),
        ]
        with (
            subprocess.Popen(fake, stdout=subprocess.DEVNULL) as upstream,  # noqa: S603 - our own
            subprocess.Popen(serve, env={**os.environ, "PYTHONPATH": paths}) as gateway,  # noqa: S603 - our own
        ):
            try:
                wait_for(f"http://127.0.0.1:{port + 1}/ready")
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                asyncio.run(
                    measure(url, gateway.pid, directory / "state" / "decisions", megabytes, seconds)
                )
                fetch(f"http://127.0.0.1:{port}/health")
            finally:
                gateway.terminate()
                upstream.terminate()


if __name__ == "__main__":
    main()
