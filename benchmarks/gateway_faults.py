"""Gateway under faults: many requests while a fifth of everything goes wrong, then the account.

``python benchmarks/gateway_faults.py [REQUESTS]``. The upstream is busy, fails, resets, stalls,
sends halves and garbage; clients leave midway. Every client must get a well-formed answer or error;
the tokens accounted must equal those served where replies were complete and be no fewer in all; and
nothing may be left behind. What passes through is the upstream's own, garbage included, so
requests that pass meet no garbage here.
"""

from __future__ import annotations

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

from adacompute.testing.gateways import free_port, process_usage, save_example_bundle

AT_ONCE = 64
FAULTS = "429=0.03,500=0.03,reset=0.03,half=0.02,garbled=0.02,shape=0.01,stall=0.005,hang=0.005"
MILD = "429=0.05,500=0.05,reset=0.03,half=0.02,stall=0.005"
LEAVING = 0.04
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
probe = false
first_byte_timeout_s = 1.0
timeout_s = 3.0
max_attempts = 3
[serve.models.fake]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
[serve.log]
directory = "decisions"
"""


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a Python module as a process."""
    whole = [sys.executable, "-m", *command]
    return subprocess.Popen(whole, text=True, stdout=subprocess.PIPE)  # noqa: S603


def start_fake(faults: str) -> tuple[subprocess.Popen[str], int]:
    """Start a fake upstream and learn its port."""
    options = ["--latency-s", "0.02", "--completion-tokens", "50", "--fault-rates", faults]
    fake = start(["adacompute.testing.fake_openai", *options])
    assert fake.stdout is not None
    return fake, int(fake.stdout.readline())


async def ask(session: aiohttp.ClientSession, url: str, number: int, *, voted: bool) -> str:
    """Send one request and say what became of it."""
    dice = random.Random(number)  # noqa: S311 - no secrets
    stream = dice.random() < 0.3
    body: dict[str, Any] = {
        "model": "fake" if voted else "other",
        "messages": [{"role": "user", "content": f"What is {number} + 1?"}],
        "max_tokens": 50,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    leaves = dice.random() < LEAVING
    limit = aiohttp.ClientTimeout(total=0.03 if leaves else 60)
    try:
        async with session.post(f"{url}/chat/completions", json=body, timeout=limit) as reply:
            data = await reply.read()
    except TimeoutError:
        return "left" if leaves else "HUNG"
    except aiohttp.ClientError as error:
        return f"BROKEN {type(error).__name__}"
    if reply.status != 200:
        return f"error {reply.status}" if "error" in json.loads(data) else "MALFORMED error"
    return judge_events(data) if stream else judge_document(data)


def judge_document(data: bytes) -> str:
    """Whether a reply is a completion."""
    document = json.loads(data)
    content = document["choices"][0]["message"]["content"]
    return "answered" if isinstance(content, str) and "usage" in document else "MALFORMED"


def judge_events(data: bytes) -> str:
    """Whether a stream is complete, or ends in an error."""
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    documents = [json.loads(event) for event in events if event != b"[DONE]"]
    if documents and "error" in documents[-1]:
        return "error event"
    return "streamed" if events[-1:] == [b"[DONE]"] else "MALFORMED stream"


async def drive(url: str, requests: int, *, voted: bool) -> Counter[str]:
    """Send all requests, some at once."""
    found: Counter[str] = Counter()
    numbers = iter(range(requests))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def work() -> None:
            for number in numbers:
                found[await ask(session, url, number, voted=voted)] += 1

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return found


async def read(url: str) -> str:
    """Read a page of a server."""
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return await reply.text()


def total(page: str, name: str, kind: str) -> int:
    """Sum a counter over models."""
    found = re.findall(rf'^{name}{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return int(sum(float(value) for value in found))


def run(faults: str, requests: int, *, voted: bool) -> None:
    """Run one kind of requests and print its account."""
    with TemporaryDirectory() as place:
        save_example_bundle(Path(place) / "policy")
        fake, upstream = start_fake(faults)
        port = free_port()
        config = CONFIG.format(base_url=f"http://127.0.0.1:{upstream}/v1", port=port)
        Path(place, "gateway.toml").write_text(config)
        gateway = start(["adacompute", "serve", "--config", f"{place}/gateway.toml"])
        url = f"http://127.0.0.1:{port}"
        try:
            time.sleep(4)
            asyncio.run(drive(f"{url}/v1", 200, voted=voted))
            time.sleep(2)
            before = process_usage(gateway.pid)
            begin = time.perf_counter()
            found = asyncio.run(drive(f"{url}/v1", requests, voted=voted))
            took = time.perf_counter() - begin
            time.sleep(5)
            after = process_usage(gateway.pid)
            page = asyncio.run(read(f"{url}/metrics"))
            served = json.loads(asyncio.run(read(f"http://127.0.0.1:{upstream}/stats")))
        finally:
            gateway.terminate()
            gateway.wait(timeout=60)
            fake.terminate()
            fake.wait(timeout=10)
    billed = total(page, "adacompute_tokens_total", "completion")
    estimated = total(page, "adacompute_estimated_tokens_total", "completion")
    print("voted" if voted else "passed", f"{requests / took:.0f}/s", dict(found))
    print(f"  served {served['tokens']}, accounted {billed}, exactly {billed - estimated}")
    print(
        f"  under way {re.findall('adacompute_requests_in_flight (.*)', page)}, {before} -> {after}"
    )
    assert not [what for what in found if what.isupper() or what.split()[0].isupper()]
    assert billed - estimated <= served["tokens"] <= billed


def main() -> None:
    """Run both kinds."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    run(FAULTS, requests * 3 // 4, voted=True)
    run(MILD, requests // 4, voted=False)


if __name__ == "__main__":
    main()
