"""Soak: whether the gateway's memory grows in hours of mixed traffic.

``python -m benchmarks.soak run MINUTES.csv [--minutes 120] [--rate 14]`` sends so many requests per
second at random moments, to a gateway with two workers, a decision log and caps: voted, forwarded
and streamed ones to chat completions, completions, responses and embeddings; broken ones, clients
that hang up, a model whose cap is spent, a wrong token, and an upstream of which one call in twenty
fails. Files rotate at 2 MB, so that two hours hold what takes days elsewhere. Each minute it writes
the memory of the gateway's processes, their open files and their processor time into a table.

``python -m benchmarks.soak summarise MINUTES.csv [--figure FILE.svg]`` prints the first, median and
last memory and the slope per hour after the first quarter of an hour, with its 95 % interval from
the means of ten minutes, and draws the memory by minute. Minutes in which a process converts a full
log are left out of these, and counted. It does not say whose memory it is.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import numpy as np
from scipy import stats

from adacompute.core.types import FloatArray
from adacompute.report.plot_style import COLOURS, panels
from scripts.svg_theme import figure_svg
from test_support.gateways import (
    fetch,
    free_port,
    process_tree,
    process_usage,
    save_example_bundle,
    wait_for,
)

MINUTE_S = 60.0
SETTLED_MINUTES, BLOCK_MINUTES, HALF_HOUR = 15, 10, 30
MAX_DIGITS = 20_000
"""Of a number in a question: most have a few, and one in a thousand has over a thousand."""

KEY = "token-of-the-soak-0123456789"
SPENT_SHARE, WRONG_SHARE = 0.02, 0.01
"""Shares of requests for a model whose cap is reached at once, and with a wrong token."""

FAULTS = (
    "429=0.01,500=0.01,503=0.01,reset=0.005,half=0.005,garbled=0.005,shape=0.003,stall=0.001,"
    "hang=0.001"
)
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = 2
probe = false
log_level = "warning"
state_directory = "state"
decision_log = "answers"
max_output_tokens = 60
first_byte_timeout_s = 2.0
timeout_s = 10.0
max_attempts = 3
bearer_tokens = ["{token}"]
[serve.models.spent]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
[serve.models.voted]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
[[serve.caps]]
amount = 10_000_000_000
unit = "tokens"
period = "all"
[[serve.caps]]
amount = 20
unit = "samples"
period = "day"
model = "spent"
"""

# What takes a day under load takes minutes: files rotate, are compacted and opened again.
SITE = """from adacompute.storage import calls, decisions
for kind in (calls.CallFile, decisions.DecisionLog):
    kind.__init__.__defaults__ = (2_000_000, *kind.__init__.__defaults__[1:])
"""
USAGE = {"stream_options": {"include_usage": True}}
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("chat/completions", "voted", {}),
    ("chat/completions", "voted", {"stream": True}),
    ("completions", "voted", {}),
    ("responses", "voted", {}),
    ("chat/completions", "other", {"n": 2}),
    ("chat/completions", "other", {"stream": True, **USAGE}),
    ("chat/completions", "other", {"stream": True}),
    ("completions", "other", {"stream": True, **USAGE}),
    ("responses", "other", {}),
    ("responses", "other", {"stream": True}),
    ("embeddings", "other", {}),
]
"""Path, model and options of each kind of request."""
BROKEN = (b'{"model": "voted"', b"[]", b'{"model": 5, "messages": []}', b'{"messages": "?"}')
COLUMNS = ("minute", "resident_kb", "anonymous_kb", "processes", "files", "cpu_s", "requests")


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


def make_body(number: int) -> tuple[str, bytes]:
    """Return the path and the body of a request."""
    path, model, options = KINDS[number % len(KINDS)]
    question = f"What is {number} + 1?"
    body: dict[str, Any] = {"model": model, **options}
    if path == "chat/completions":
        body |= {"messages": [{"role": "user", "content": question}], "max_tokens": 60}
    elif path == "completions":
        body |= {"prompt": question, "max_tokens": 60}
    else:
        body["input"] = question
    if path == "responses":
        body["max_output_tokens"] = 60
    return path, json.dumps(body).encode()


async def send(session: aiohttp.ClientSession, url: str, number: int) -> str:
    """Send the request of this number and return its outcome."""
    rng = random.Random(number)  # noqa: S311 - no secrets
    path, body = make_body(number)
    length = min(MAX_DIGITS, int(rng.paretovariate(1)))
    body = body.replace(b"+ 1?", b"+ %b?" % (b"1" * length))
    if rng.random() < 0.04:
        body = rng.choice(BROKEN)
    hangs_up = rng.random() < 0.05
    limit = aiohttp.ClientTimeout(total=rng.uniform(0.005, 0.2) if hangs_up else 60)
    if rng.random() < SPENT_SHARE:
        body = body.replace(b'"voted"', b'"spent"')
    token = KEY[::-1] if rng.random() < WRONG_SHARE else KEY
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    try:
        async with session.post(
            f"{url}/{path}", data=body, headers=headers, timeout=limit
        ) as reply:
            await reply.read()
    except TimeoutError:
        return "hung up" if hangs_up else "HUNG"
    except aiohttp.ClientError as error:  # the upstream broke off a stream
        return type(error).__name__
    return str(reply.status)


async def send_until(url: str, end: float, rate: float, outcomes: Counter[str]) -> None:
    """Send requests at random moments until a time, and count their outcomes."""
    rng, under_way, number = random.Random(0), set[asyncio.Task[None]](), 0  # noqa: S311
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def count(number: int) -> None:
            outcomes[await send(session, url, number)] += 1

        while time.monotonic() < end:
            number += 1
            task = asyncio.create_task(count(number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(rng.expovariate(rate))
        await asyncio.gather(*under_way)


def measure(pid: int) -> dict[str, float]:
    """Memory, processes, files and processor time of a process and all its descendants."""
    found = {"resident_kb": 0.0, "anonymous_kb": 0.0, "processes": 0.0, "cpu_s": 0.0}
    for one in process_tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:]
            times = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]
        except (FileNotFoundError, ProcessLookupError):
            continue
        sizes = {line.split(":")[0]: float(line.split()[1]) for line in lines}
        found["resident_kb"] += sizes["Rss"]
        found["anonymous_kb"] += sizes["Anonymous"]
        found["processes"] += 1
        found["cpu_s"] += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return {**found, "files": process_usage(pid)["files"]}


async def watch(pid: int, admin_url: str, out: Path, minutes: int, outcomes: Counter[str]) -> None:
    """Write a row per minute, and read the metrics as Prometheus does."""
    began = time.monotonic()
    with out.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for minute in range(minutes + 1):
            await asyncio.sleep(began + minute * MINUTE_S - time.monotonic())
            row = await asyncio.to_thread(measure, pid)
            counted = {"minute": minute, "requests": outcomes.total()}
            table.writerow({name: round(value, 1) for name, value in (row | counted).items()})
            file.flush()
            await asyncio.to_thread(fetch, f"{admin_url}/metrics")


@contextmanager
def run_gateway(directory: Path, base_url: str) -> Iterator[tuple[int, int]]:
    """Run a gateway in a directory; gives its process and its port."""
    port = free_port()
    save_example_bundle(directory / "policy")
    config = CONFIG.format(base_url=base_url, port=port, token=KEY)
    (directory / "gateway.toml").write_text(config)
    (directory / "sitecustomize.py").write_text(SITE)
    python_path = f"{directory}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "adacompute", "serve"]
    command += ["--config", str(directory / "gateway.toml")]
    with (
        (directory / "gateway.log").open("wb") as said,
        subprocess.Popen(  # noqa: S603 - our own
            command, stderr=said, env={**os.environ, "PYTHONPATH": python_path}
        ) as gateway,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port + 1}/ready")
            yield gateway.pid, port
        finally:
            gateway.terminate()
            gateway.wait(60)


async def soak(pid: int, port: int, out: Path, minutes: int, rate: float) -> Counter[str]:
    """Send requests and watch the gateway meanwhile; return the outcomes."""
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + minutes * MINUTE_S
    await asyncio.gather(
        send_until(f"http://127.0.0.1:{port}/v1", end, rate, outcomes),
        watch(pid, f"http://127.0.0.1:{port + 1}", out, minutes, outcomes),
    )
    return outcomes


def run(out: Path, minutes: int, rate: float) -> None:
    """Run everything and print the outcomes and what the gateway left."""
    options = ["--completion-tokens", "50", "--vary-tokens", "true", "--fault-rates", FAULTS]
    options += ["--token-latency-s", "0.002"]
    with TemporaryDirectory() as name, start_upstream(0.02, *options) as base_url:
        directory = Path(name)
        with run_gateway(directory, base_url) as (pid, port):
            outcomes = asyncio.run(soak(pid, port, out, minutes, rate))
            metrics = fetch(f"http://127.0.0.1:{port + 1}/metrics")
        log = (directory / "gateway.log").read_text(errors="replace")
        files = [path for path in (directory / "state").rglob("*") if path.is_file()]
    kept = ("adacompute_requests_in_flight ", "adacompute_worker_deaths_total ")
    print(json.dumps(dict(outcomes.most_common())))
    print(*(line for line in metrics.splitlines() if line.startswith(kept)), sep="\n")
    print(f"tracebacks: {log.count('Traceback')}; files in the state directory: {len(files)}")
    assert not outcomes["HUNG"]


def read_minutes(path: Path) -> dict[str, FloatArray]:
    """Read the columns of a table of minutes."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}


def slope_per_hour(minutes: FloatArray, memory: FloatArray) -> tuple[float, float]:
    """Slope per hour, and half the width of its 95 % interval.

    Neighbouring minutes depend on each other, so the means of ten minutes are fitted.
    """
    blocks = minutes // BLOCK_MINUTES
    numbers = np.unique(blocks)
    means = [memory[blocks == number].mean() for number in numbers]
    fit = stats.linregress(numbers * BLOCK_MINUTES / 60, means)
    return fit.slope, fit.stderr * stats.t.ppf(0.975, len(means) - 2)


def summarise(path: Path, figure: Path | None) -> None:
    """Print the memory in MB by minute in short; draw it if a file is given."""
    table = read_minutes(path)
    last = int(table["minute"][-1])
    busy = table["cpu_s"][-1] / (last * MINUTE_S)
    print(f"{table['requests'][-1]:,.0f} requests in {last} minutes, {busy:.0%} of a core")
    is_lasting = table["processes"] == table["processes"].min()
    settled = is_lasting & (table["minute"] >= SETTLED_MINUTES)
    for name in ("resident_kb", "anonymous_kb"):
        minutes, memory = table["minute"][settled], table[name][settled] / 1024
        slope, half = slope_per_hour(minutes, memory)
        half_hours = [minutes // HALF_HOUR == number for number in np.unique(minutes // HALF_HOUR)]
        ends = ", ".join(f"{memory[one][-1]:.1f}" for one in half_hours)
        print(
            f"{name.removesuffix('_kb')} MB: minute 0 {table[name][0] / 1024:.1f}, minute "
            f"{SETTLED_MINUTES} {memory[0]:.1f}; then median {np.median(memory):.1f}, between "
            f"{memory.min():.1f} and {memory.max():.1f}; last {memory[-1]:.1f}; at the ends of "
            f"half hours {ends}; per hour {slope:+.2f} ± {half:.2f}"
        )
    most = table["resident_kb"].max() / 1024
    print(f"{(~is_lasting).sum()} minutes beside a conversion of a log, at most {most:.0f} MB")
    files = table["files"][settled]
    print(f"open files: between {files.min():.0f} and {files.max():.0f}")
    if figure is not None:
        figure.write_text(draw(table))


def draw(table: dict[str, FloatArray]) -> str:
    """Return the memory by minute as an SVG document."""
    with panels(width=6.4, height=3.2) as (figure, (axes,)):
        for i, name in enumerate(("resident_kb", "anonymous_kb")):
            label = f"{name.removesuffix('_kb')} memory"
            axes.plot(table["minute"], table[name] / 1024, color=COLOURS[i], label=label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minute")
        axes.set_ylabel("MB of all processes")
        axes.legend(loc="lower right")
        return figure_svg(
            figure,
            shown=620,
            title="Memory of the gateway by minute",
            description=f"Resident and anonymous memory of all processes of the gateway in"
            f" {table['minute'][-1]:.0f} minutes of mixed traffic.",
        )


def main() -> None:
    """Run the soak, or summarise one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="send the requests and write a row per minute")
    running.add_argument("table", type=Path)
    running.add_argument("--minutes", type=int, default=120)
    running.add_argument("--rate", type=float, default=14.0, help="requests per second")
    summing = commands.add_parser("summarise", help="print a table of minutes in short")
    summing.add_argument("table", type=Path)
    summing.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.command == "run":
        run(given.table, given.minutes, given.rate)
    else:
        summarise(given.table, given.figure)


if __name__ == "__main__":
    main()
