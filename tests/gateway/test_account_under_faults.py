"""The account of calls beside the upstream's own count, while calls fail and workers are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.types import make_levels
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.storage.calls import FILES, read_calls
from adacompute.testing.fake_usage import BROKEN_USAGE
from test_support.gateways import fetch, free_port, wait_for
from test_support.spend import compare_spend

N_REQUESTS, CONCURRENCY, KILL_EVERY_S, DISCONNECT_RATE = 300, 32, 2.0, 0.1
CAP = N_REQUESTS * 120
"""Enough tokens for most of the requests, and not for all."""

FAULTS = (
    "429=0.03,500=0.02,502=0.02,503=0.02,reset=0.03,half=0.02,garbled=0.02,shape=0.015,type=0.01,"
    "stall=0.005,hang=0.005,few=0.005"
)
BROKEN_RATES = ",".join(f"{kind}=0.045" for kind in BROKEN_USAGE)
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
[[serve.caps]]
amount = {cap}
unit = "tokens"
period = "all"
"""
USAGE = {"stream_options": {"include_usage": True}}
PROMPT = {"prompt": "What is 1 + 1?", "max_tokens": 60}
CHAT = {"messages": [{"role": "user", "content": "What is 1 + 1?"}], "max_tokens": 60}
INPUT = {"input": "What is 1 + 1?", "max_output_tokens": 60}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"model": "voted", **CHAT}),
    ("chat/completions", {"model": "voted", **CHAT, "stream": True}),
    ("completions", {"model": "voted", **PROMPT}),
    ("responses", {"model": "voted", **INPUT}),
    ("chat/completions", {"model": "other", **CHAT, "n": 2}),
    ("chat/completions", {"model": "other", **CHAT, "stream": True, **USAGE}),
    ("chat/completions", {"model": "other", **CHAT, "stream": True}),
    ("completions", {"model": "other", **PROMPT, "stream": True, **USAGE}),
    ("responses", {"model": "other", **INPUT}),
    ("responses", {"model": "other", **INPUT, "stream": True}),
    ("embeddings", {"model": "other", "input": "What is 1 + 1?"}),
]


async def send(session: aiohttp.ClientSession, url: str, number: int) -> str:
    rng = random.Random(number)
    path, body = KINDS[number % len(KINDS)]
    disconnects = rng.random() < DISCONNECT_RATE
    limit = aiohttp.ClientTimeout(total=rng.uniform(0.005, 0.08) if disconnects else 60)
    headers = {"x-request-id": f"r{number}"}
    try:
        async with session.post(f"{url}/{path}", json=body, headers=headers, timeout=limit) as got:
            await got.read()
    except TimeoutError:
        return "disconnected" if disconnects else "hung"
    except aiohttp.ClientError:
        await asyncio.sleep(0.2)
        return "lost"  # its worker was killed
    return str(got.status)


async def send_all(url: str) -> set[str]:
    numbers, outcomes = iter(range(N_REQUESTS)), set[str]()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # reach every worker
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                outcomes.add(await send(session, url, number))

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return outcomes


def list_workers(calls: Path, parent: int) -> list[int]:
    workers = []
    for pid in {int(path.stem.rpartition("-")[2]) for path in calls.glob(FILES)}:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if int(status.split("PPid:")[1].split()[0]) == parent and "State:\tZ" not in status:
            workers.append(pid)
    return workers


async def load(url: str, calls: Path, gateway: int) -> set[str]:
    """Send all requests; a worker is killed every few seconds while another one serves."""

    async def kill_workers() -> None:
        while True:
            await asyncio.sleep(KILL_EVERY_S)
            workers = list_workers(calls, gateway)
            if len(workers) > 1:  # another one serves
                os.kill(random.choice(workers), signal.SIGKILL)

    killer = asyncio.create_task(kill_workers())
    outcomes = await send_all(url)
    killer.cancel()
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("counts", ["all", "one"])
def test_faults_disconnects_and_killed_workers_leave_the_account_right(
    counts: Any, tmp_path: Path
) -> None:
    options = ["--latency-s", "0.02", "--completion-tokens", "50", "--usage", counts]
    options += ["--vary-tokens", "true", "--record-calls", "true"]
    options += ["--fault-rates", FAULTS, "--usage-rates", BROKEN_RATES]
    command = [sys.executable, "-m", "adacompute.testing.fake_openai", *options]
    fake, port = subprocess.Popen(command, text=True, stdout=subprocess.PIPE), free_port()
    assert fake.stdout is not None
    upstream = f"http://127.0.0.1:{int(fake.stdout.readline())}"
    policy = RulePolicy("fixed", make_levels((1, 2, 4)), (FixedRule(2),), PriceSchedule((0.1,)))
    point = FrontierPoint(2.0, 0.1, 2.0, 2.0, 2.0, 0.5, 0.4, 0.6, 1.0)
    save_bundle(Bundle(policy, frontier=(point,)), tmp_path / "policy")
    config = CONFIG.format(base_url=f"{upstream}/v1", port=port, cap=CAP)
    (tmp_path / "gateway.toml").write_text(config)
    known = Capabilities(n="native", usage=counts, stream_usage="returned", chat="available")
    save_cached(tmp_path / "cache" / "adacompute", f"{upstream}/v1", "fake", known)
    command = [sys.executable, "-m", "adacompute", "serve"]
    command += ["--config", str(tmp_path / "gateway.toml")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    gateway = subprocess.Popen(command, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        outcomes = asyncio.run(load(f"http://127.0.0.1:{port}/v1", tmp_path / "state", gateway.pid))
        time.sleep(5)  # retries end
        served = json.loads(fetch(f"{upstream}/calls"))["calls"]
    finally:
        gateway.terminate()
        gateway.wait(timeout=60)
        fake.terminate()
        fake.wait(timeout=10)
        fake.stdout.close()
    assert "hung" not in outcomes
    found = compare_spend(read_calls(tmp_path / "state"), served)
    assert found.is_right
    assert found.served_tokens <= found.charged_tokens <= CAP
