"""Gateway spend: the account of calls beside the upstream's own count, while everything fails.

``python -m benchmarks.gateway_spend [REQUESTS]`` sends voted, forwarded and streamed requests, some
of them audited, to chat completions, completions, responses and embeddings, under a cap in tokens.
A fifth of all calls fails, two fifths report a usage that is broken in one of many ways, a tenth of
all clients disconnects, and a worker is killed with SIGKILL every few seconds. It checks that every
call that the upstream received has its row, that calls which are not flagged equal the upstream's
count to the token, that flagged calls alone explain the difference, and that neither the account
nor what the upstream generated is above the cap.

A second run, of a fifth of the size, does the same with an upstream that reports the tokens of one
choice for several. A third has no faults: the account must be within 2 % of what was generated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import aiohttp

from adacompute.core.types import make_levels
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.storage.calls import FILES, read_calls, sum_calls
from adacompute.testing.fake_usage import BROKEN_USAGE
from test_support.gateways import fetch, free_port, wait_for
from test_support.spend import SpendComparison, compare_spend

CONCURRENCY = 32
DISCONNECT_RATE = 0.1
MAX_RATIO = 1.02
"""Most that the account may say relative to what was generated, if nothing fails."""

FAULTS = (
    "429=0.03,500=0.02,502=0.02,503=0.02,reset=0.03,half=0.02,garbled=0.02,shape=0.015,type=0.01,"
    "stall=0.005,hang=0.005,few=0.005"
)
BROKEN_RATES = ",".join(f"{kind}=0.045" for kind in BROKEN_USAGE)
TOKENS_PER_REQUEST = 120
"""Tokens of the cap for each request: enough for most of the requests, and not for all."""

CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = 2
state_directory = "state"
max_output_tokens = 60
probe = false
first_byte_timeout_s = 1.0
timeout_s = 3.0
max_attempts = 3
drain_s = 5
[serve.models.voted]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
audit_share = 0.2
audit_max_share = 0.5
[[serve.caps]]
amount = {cap}
unit = "tokens"
period = "all"
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


class Scenario(NamedTuple):
    """How the upstream and the clients behave in a run.

    ``counts`` is whether the usage counts all choices of a reply, which a probe has found.
    """

    name: str
    n_requests: int
    kill_every_s: float
    counts: Literal["all", "one"] = "all"
    is_faulty: bool = True

    @property
    def cap(self) -> int:
        """The most tokens that may be spent; without faults there is enough for all."""
        return self.n_requests * TOKENS_PER_REQUEST * (1 if self.is_faulty else 10)

    @property
    def fake_options(self) -> list[str]:
        """Options of the fake upstream."""
        options = ["--latency-s", "0.02", "--completion-tokens", "50", "--usage", self.counts]
        options += ["--vary-tokens", "true", "--record-calls", "true"]
        faults = ["--fault-rates", FAULTS, "--usage-rates", BROKEN_RATES]
        return [*options, *faults] if self.is_faulty else options


def save_policy(path: Path) -> None:
    """Save a bundle that draws two samples for each request, of which audits draw four."""
    policy = RulePolicy("fixed", make_levels((1, 2, 4)), (FixedRule(2),), PriceSchedule((0.1,)))
    frontier = (FrontierPoint(2.0, 0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 1.0),)
    save_bundle(Bundle(policy, frontier=frontier), path)


def make_body(number: int, *, is_faulty: bool) -> tuple[str, bytes]:
    """Return the path and the body of a request; without faults, all streams ask for a usage."""
    path, model, options = KINDS[number % len(KINDS)]
    if not is_faulty and path != "responses" and options.get("stream"):
        options = {**options, **USAGE}
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


async def send(session: aiohttp.ClientSession, url: str, number: int, *, is_faulty: bool) -> str:
    """Send one request and return its outcome."""
    rng = random.Random(number)  # noqa: S311 - no secrets
    path, body = make_body(number, is_faulty=is_faulty)
    disconnects = is_faulty and rng.random() < DISCONNECT_RATE
    limit = aiohttp.ClientTimeout(total=rng.uniform(0.005, 0.08) if disconnects else 60)
    headers = {"x-request-id": f"r{number}", "content-type": "application/json"}
    try:
        async with session.post(
            f"{url}/{path}", data=body, headers=headers, timeout=limit
        ) as reply:
            await reply.read()
    except TimeoutError:
        return "disconnected" if disconnects else "HUNG"
    except aiohttp.ClientError:
        return "lost"  # its worker was killed
    return str(reply.status)


async def send_all(url: str, scenario: Scenario) -> Counter[str]:
    """Send all requests in parallel and count the outcomes."""
    outcomes: Counter[str] = Counter()
    numbers = iter(range(scenario.n_requests))
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # reach every worker
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                outcome = await send(session, url, number, is_faulty=scenario.is_faulty)
                outcomes[outcome] += 1
                if outcome == "lost":
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return outcomes


def list_workers(calls: Path, parent: int) -> list[int]:
    """Return the living workers of a gateway that have recorded calls."""
    workers = []
    for path in calls.glob(FILES):
        pid = int(path.stem.rpartition("-")[2])
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        is_child = int(status.split("PPid:")[1].split()[0]) == parent
        if is_child and "State:\tZ" not in status:
            workers.append(pid)
    return sorted(set(workers))


async def kill_workers(calls: Path, parent: int, every_s: float) -> int:
    """Kill a worker every few seconds until cancelled; return how many were killed.

    A kill waits until another worker serves requests, because a busy machine starts one slowly.
    """
    n_killed, next_at = 0, time.monotonic() + every_s
    try:
        while True:
            await asyncio.sleep(0.2)
            workers = list_workers(calls, parent) if time.monotonic() >= next_at else []
            if len(workers) > 1:
                os.kill(random.choice(workers), signal.SIGKILL)  # noqa: S311 - no secrets
                n_killed, next_at = n_killed + 1, time.monotonic() + every_s
    except asyncio.CancelledError:
        return n_killed


async def load(url: str, calls: Path, gateway: int, scenario: Scenario) -> tuple[Counter[str], int]:
    """Send requests while workers of the gateway are killed."""
    every_s = scenario.kill_every_s if scenario.is_faulty else math.inf
    killer = asyncio.create_task(kill_workers(calls, gateway, every_s))
    await asyncio.sleep(0)
    outcomes = await send_all(url, scenario)
    killer.cancel()
    return outcomes, await killer


def start_module(*command: str, **variables: str) -> subprocess.Popen[str]:
    """Start a Python module as a process."""
    full, environment = [sys.executable, "-m", *command], {**os.environ, **variables}
    return subprocess.Popen(full, text=True, stdout=subprocess.PIPE, env=environment)  # noqa: S603


def run(directory: Path, scenario: Scenario) -> SpendComparison:
    """Send requests, print the outcomes, and compare the account with the upstream's count."""
    fake = start_module("adacompute.testing.fake_openai", *scenario.fake_options)
    assert fake.stdout is not None
    upstream, port = f"http://127.0.0.1:{int(fake.stdout.readline())}", free_port()
    save_policy(directory / "policy")
    config = CONFIG.format(base_url=f"{upstream}/v1", port=port, cap=scenario.cap)
    (directory / "gateway.toml").write_text(config)
    counts = scenario.counts
    known = Capabilities(n="native", usage=counts, stream_usage="returned", chat="available")
    save_cached(directory / "cache" / "adacompute", f"{upstream}/v1", "fake", known)
    serve = ("adacompute", "serve", "--config", str(directory / "gateway.toml"))
    gateway = start_module(*serve, XDG_CACHE_HOME=str(directory / "cache"))
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        start = time.perf_counter()
        url = f"http://127.0.0.1:{port}/v1"
        outcomes, n_killed = asyncio.run(load(url, directory / "state", gateway.pid, scenario))
        rate = scenario.n_requests / (time.perf_counter() - start)
        print(f"{scenario.name}: {rate:.0f}/s", dict(outcomes))
        print(f"{n_killed} workers killed")
        time.sleep(5)  # audits and retries end
        served = json.loads(fetch(f"{upstream}/calls"))["calls"]
    finally:
        gateway.terminate()
        gateway.wait(timeout=60)
        fake.terminate()
        fake.wait(timeout=10)
    assert not outcomes["HUNG"]
    rows = list(read_calls(directory / "state"))
    for total in sum_calls(rows):
        print(total)
    return compare_spend(rows, served)


def main() -> None:
    """Print the comparison; fail if it is not right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requests", type=int, nargs="?", default=20_000)
    parser.add_argument("--kill-every-s", type=float, default=5.0, help="pause between kills")
    given = parser.parse_args()
    n, every_s = given.requests, given.kill_every_s
    scenarios = (
        Scenario("faults", n, every_s),
        Scenario("faults, one choice counted", n // 5, every_s, counts="one"),
        Scenario("no faults", n // 5, every_s, is_faulty=False),
    )
    for scenario in scenarios:
        with TemporaryDirectory() as directory:
            found = run(Path(directory), scenario)
        print(f"cap {scenario.cap}:", found)
        assert found.is_right
        assert found.served_tokens <= found.charged_tokens <= scenario.cap
    assert found.charged_tokens <= MAX_RATIO * found.served_tokens


if __name__ == "__main__":
    main()
