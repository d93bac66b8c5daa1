"""Gateway faults: many requests while a fifth of all calls fail.

``python -m benchmarks.gateway_faults [REQUESTS]``. The upstream is busy, fails, resets connections,
stalls, and sends truncated and invalid replies; some clients disconnect early. It checks that every
client gets a well-formed answer or error, that the tokens accounted exactly are at most those
served and all tokens accounted are at least those served, and that no request, file or memory
leaks. Forwarded requests get the upstream's replies unchanged, so their faults do not include
invalid replies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from test_support.gateways import (
    fetch,
    free_port,
    process_usage,
    save_example_bundle,
    wait_for,
)

CONCURRENCY = 64
FAULTS = "429=0.03,500=0.03,reset=0.03,half=0.02,garbled=0.02,shape=0.01,stall=0.005,hang=0.005"
FORWARDED_FAULTS = "429=0.05,500=0.05,reset=0.03,half=0.02,stall=0.005"
DISCONNECT_RATE = 0.04
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
probe = false
first_byte_timeout_s = 1.0
timeout_s = 3.0
max_attempts = 3
state_directory = "state"
decision_log = "answers"
[serve.models.fake]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
"""


def start_module(command: list[str]) -> subprocess.Popen[str]:
    """Start a Python module as a process."""
    full = [sys.executable, "-m", *command]
    return subprocess.Popen(full, text=True, stdout=subprocess.PIPE)  # noqa: S603


def start_fake(faults: str) -> tuple[subprocess.Popen[str], int]:
    """Start a fake upstream; return its process and its port."""
    options = ["--latency-s", "0.02", "--completion-tokens", "50", "--fault-rates", faults]
    fake = start_module(["adacompute.testing.fake_openai", *options])
    assert fake.stdout is not None
    return fake, int(fake.stdout.readline())


async def send(session: aiohttp.ClientSession, url: str, number: int, *, voted: bool) -> str:
    """Send one request and return its outcome; outcomes in capitals are failures."""
    rng = random.Random(number)  # noqa: S311 - no secrets
    stream = rng.random() < 0.3
    body: dict[str, Any] = {
        "model": "fake" if voted else "other",
        "messages": [{"role": "user", "content": f"What is {number} + 1?"}],
        "max_tokens": 50,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    disconnects = rng.random() < DISCONNECT_RATE
    limit = aiohttp.ClientTimeout(total=0.03 if disconnects else 60)
    try:
        async with session.post(f"{url}/chat/completions", json=body, timeout=limit) as reply:
            data = await reply.read()
    except TimeoutError:
        return "disconnected" if disconnects else "HUNG"
    except aiohttp.ClientError as error:
        return f"BROKEN {type(error).__name__}"
    if reply.status != 200:
        return f"error {reply.status}" if "error" in json.loads(data) else "MALFORMED error"
    return check_events(data) if stream else check_document(data)


def check_document(data: bytes) -> str:
    """Check that a reply is a completion."""
    document = json.loads(data)
    content = document["choices"][0]["message"]["content"]
    return "answered" if isinstance(content, str) and "usage" in document else "MALFORMED"


def check_events(data: bytes) -> str:
    """Check that a stream is complete or ends in an error."""
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    documents = [json.loads(event) for event in events if event != b"[DONE]"]
    if documents and "error" in documents[-1]:
        return "error event"
    return "streamed" if events[-1:] == [b"[DONE]"] else "MALFORMED stream"


async def send_all(url: str, n_requests: int, *, voted: bool) -> Counter[str]:
    """Send all requests in parallel and count the outcomes."""
    outcomes: Counter[str] = Counter()
    numbers = iter(range(n_requests))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                outcomes[await send(session, url, number, voted=voted)] += 1

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    return outcomes


def sum_counter(page: str, name: str, kind: str) -> int:
    """Sum a counter of the metrics over models."""
    values = re.findall(rf'^{name}{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return int(sum(float(value) for value in values))


def run(faults: str, n_requests: int, *, voted: bool) -> None:
    """Send one kind of requests and print the outcomes and the tokens."""
    with TemporaryDirectory() as directory:
        save_example_bundle(Path(directory) / "policy")
        fake, upstream = start_fake(faults)
        port = free_port()
        config = CONFIG.format(base_url=f"http://127.0.0.1:{upstream}/v1", port=port)
        Path(directory, "gateway.toml").write_text(config)
        gateway = start_module(["adacompute", "serve", "--config", f"{directory}/gateway.toml"])
        url, admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
        try:
            wait_for(f"{admin_url}/ready")
            asyncio.run(send_all(f"{url}/v1", 200, voted=voted))  # warm up
            time.sleep(2)
            before = process_usage(gateway.pid)
            start = time.perf_counter()
            outcomes = asyncio.run(send_all(f"{url}/v1", n_requests, voted=voted))
            elapsed_s = time.perf_counter() - start
            time.sleep(5)
            after = process_usage(gateway.pid)
            page = fetch(f"{admin_url}/metrics")
            served = json.loads(fetch(f"http://127.0.0.1:{upstream}/stats"))
        finally:
            gateway.terminate()
            gateway.wait(timeout=60)
            fake.terminate()
            fake.wait(timeout=10)
    accounted = sum_counter(page, "adacompute_tokens_total", "completion")
    estimated = sum_counter(page, "adacompute_estimated_tokens_total", "completion")
    kind = "voted" if voted else "forwarded"
    (in_flight,) = re.findall(r"^adacompute_requests_in_flight (\S+)$", page, re.MULTILINE)
    print(kind, f"{n_requests / elapsed_s:.0f}/s", dict(outcomes))
    exact = accounted - estimated
    print(f"  tokens: served {served['tokens']}, accounted {accounted}, exactly {exact}")
    print(f"  in flight {in_flight}, {before} -> {after}")
    assert not [outcome for outcome in outcomes if outcome.split()[0].isupper()]
    assert exact <= served["tokens"] <= accounted


def main() -> None:
    """Send voted requests, then forwarded ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requests", type=int, nargs="?", default=20_000)
    n_requests = parser.parse_args().requests
    run(FAULTS, n_requests * 3 // 4, voted=True)
    run(FORWARDED_FAULTS, n_requests // 4, voted=False)


if __name__ == "__main__":
    main()
