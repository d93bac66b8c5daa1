"""Gateway speed: our gateway against a bare proxy, nginx and its peers, on one machine.

``python -m benchmarks.gateway_speed [PEERS] [--before SRC]``. A fake upstream answers with 50
tokens after 20 ms; each proxy has one worker. wrk sends 64 requests in parallel to measure requests
per second, and one at a time to measure the added latency. PEERS is a directory of virtual
environments (``litellm``, ``optillm``, ``its``); missing ones are skipped. SRC is the folder
``src`` of another commit, whose gateway is measured too. Calls of voted requests are compared with
those of a bare loop around aiohttp. Then one worker serves 5,000 slow streams. It needs wrk, and
nginx for that row.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002 - Starlette reads the annotation
from starlette.responses import StreamingResponse
from starlette.routing import Route

from test_support.gateways import fetch, free_port, process_usage, save_example_bundle

DURATION_S, CONCURRENCY, TURNS, N_STREAMS = 5, 64, 2, 5000
OURS, BEFORE = "(c) ours", "(C) ours, another commit"
SAVE_BUNDLE = "from pathlib import Path; from test_support.gateways import save_example_bundle; "
LUA = """
wrk.method = "POST"
wrk.body = '{"model":"%s","messages":[{"role":"user","content":"What is 7 + 6?"}],"max_tokens":50}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer sk-none"
"""
NGINX = """
worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 8192; }}
http {{ access_log off; upstream u {{ server 127.0.0.1:{upstream}; keepalive 256; }}
 server {{ listen 127.0.0.1:{port}; location / {{
   proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}
"""
GATEWAY = """
[serve]
base_url = "http://127.0.0.1:{upstream}/v1"
port = {port}
probe = false
[serve.models.fake]
bundle = "policy"
budget = 2
grader = "numeric"
model = "fake"
"""
LITELLM = """
model_list:
  - model_name: other
    litellm_params:
      {{model: openai/fake, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


def make_bare_proxy(upstream: str) -> Starlette:
    """Return a minimal application that forwards every request to an upstream."""
    sessions: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            sessions.append(session)
            yield

    async def forward(request: Request) -> StreamingResponse:
        body = await request.body()
        skip = {"host", "content-length"}
        headers = {name: value for name, value in request.headers.items() if name not in skip}
        reply = await sessions[0].request(
            request.method, upstream + request.url.path, headers=headers, data=body
        )
        kept = {n: v for n, v in reply.headers.items() if n.lower() != "transfer-encoding"}
        return StreamingResponse(reply.content.iter_any(), reply.status, kept)

    route = Route("/v1/{path:path}", forward, methods=["GET", "POST"])
    return Starlette(routes=[route], lifespan=lifespan)


@contextmanager
def start_process(*command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends."""
    null, env = subprocess.DEVNULL, {**os.environ, **variables}
    running = subprocess.Popen(command, stdout=null, stderr=null, env=env)  # noqa: S603
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(timeout=20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(port: int, path: str = "/v1/models", timeout_s: float = 90) -> bool:
    """Wait until a port answers; return whether it does."""

    async def poll() -> bool:
        async with aiohttp.ClientSession() as session:
            end = time.monotonic() + timeout_s
            while time.monotonic() < end:
                try:
                    async with session.get(f"http://127.0.0.1:{port}{path}"):
                        return True
                except aiohttp.ClientError:
                    await asyncio.sleep(0.3)
        return False

    return asyncio.run(poll())


def measure(port: int, script: Path, *, concurrency: int) -> tuple[float, str, str]:
    """Return requests per second, and the median and 99th percentile of their latency.

    The rate is negative if any request fails.
    """
    target = f"http://127.0.0.1:{port}/v1/chat/completions"
    flags = ["-t1", f"-c{concurrency}", f"-d{DURATION_S}", "--latency", "--timeout", "30s"]
    command = ["wrk", *flags, "-s", str(script), target]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])  # type: ignore[index]
    p50, p99 = (re.search(rf"\s{p}%\s+(\d\S*)", output)[1] for p in (50, 99))  # type: ignore[index]
    return (-rate if failed else rate), p50, p99


def start_proxies(
    stack: ExitStack, directory: Path, upstream: int, peers: Path | None, before: Path | None
) -> dict[str, int]:
    """Start every proxy and return their ports by name."""
    python = sys.executable
    ports = {"no proxy": upstream}

    def add(name: str, *command: str, port: int, **variables: str) -> None:
        stack.enter_context(start_process(*command, **variables))
        if wait_for(port):
            ports[name] = port
        else:
            print(f"{name} did not start", flush=True)

    port = free_port()
    bare = ("--bare", f"http://127.0.0.1:{upstream}", str(port))
    command = (python, "-m", "benchmarks.gateway_speed", *bare)
    add("(a) bare Starlette + aiohttp", *command, port=port)
    port = free_port()
    config = NGINX.format(directory=directory, upstream=upstream, port=port)
    (directory / "nginx.conf").write_text(config)
    if nginx := shutil.which("nginx"):
        add("(b) nginx", nginx, "-c", str(directory / "nginx.conf"), port=port)
    for name, source in ((OURS, None), (BEFORE, before)):
        if source is None and name == BEFORE:
            continue
        port, place = free_port(), directory / name[1]
        place.mkdir()
        (place / "gateway.toml").write_text(GATEWAY.format(upstream=upstream, port=port))
        variables = {} if source is None else {"PYTHONPATH": str(source)}
        save = f"{SAVE_BUNDLE}save_example_bundle(Path({str(place / 'policy')!r}))"
        subprocess.run([python, "-c", save], check=True, env={**os.environ, **variables})  # noqa: S603
        command = (python, "-m", "adacompute", "serve", "--config", str(place / "gateway.toml"))
        add(name, *command, port=port, **variables)
    if peers is not None:
        add_peers(add, directory, upstream, peers)
    return ports


def add_peers(add: Callable[..., None], directory: Path, upstream: int, peers: Path) -> None:
    """Start the peers that are installed."""
    if (peers / "litellm/bin/litellm").exists():
        port = free_port()
        (directory / "litellm.yaml").write_text(LITELLM.format(upstream=upstream))
        command = [str(peers / "litellm/bin/litellm"), "--config", str(directory / "litellm.yaml")]
        add("(e) litellm proxy", *command, "--port", str(port), "--host", "127.0.0.1", port=port)
    if (peers / "optillm/bin/optillm").exists():
        port = free_port()
        command = [str(peers / "optillm/bin/optillm"), "--approach", "none", "--port", str(port)]
        add("(e) optillm", *command, "--base-url", f"http://127.0.0.1:{upstream}/v1", port=port)
    if (peers / "its/bin/its-iaas").exists():
        port = free_port()
        add("(e) its_hub", str(peers / "its/bin/its-iaas"), "--port", str(port), port=port)
        asyncio.run(configure_its(port, upstream))


async def configure_its(port: int, upstream: int) -> None:
    """Configure its_hub with the upstream and a budget of one sample."""
    settings = {
        "endpoint": f"http://127.0.0.1:{upstream}/v1",
        "api_key": "none",
        "model": "other",
        "alg": "self-consistency",
        "regex_patterns": ["([0-9]+)"],
        "budget": 1,
    }
    url = f"http://127.0.0.1:{port}/configure"
    async with aiohttp.ClientSession() as session, session.post(url, json=settings) as reply:
        print("its_hub configured:", reply.status, flush=True)


async def call_in_a_loop(port: int) -> float:
    """Return the calls per second of a bare loop that posts and parses, like one worker does."""
    end, n_calls = time.monotonic() + DURATION_S, 0
    body = re.search(r"wrk.body = '(.*)'", LUA % "other")[1].encode()  # type: ignore[index]
    headers = {"Content-Type": "application/json"}

    async def call(session: aiohttp.ClientSession) -> None:
        nonlocal n_calls
        while time.monotonic() < end:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, data=body, headers=headers) as reply:
                json.loads(await reply.read())
            n_calls += 1

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(call(session) for _ in range(CONCURRENCY)))
    return n_calls / DURATION_S


def count_calls(upstream: int) -> int:
    """Return the number of calls that the fake upstream has answered."""
    return int(json.loads(fetch(f"http://127.0.0.1:{upstream}/stats"))["calls"])


def compare_calls(ports: dict[str, int], upstream: int, script: Path) -> None:
    """Print the upstream's calls per second of voted requests, and of a bare loop."""
    for turn in range(TURNS):
        bare = asyncio.run(call_in_a_loop(upstream))
        print(f"{turn} {'bare loop of calls':30s} {bare:8.0f} calls/s", flush=True)
        for name in (OURS, BEFORE):
            if name in ports:
                n_before = count_calls(upstream)
                measure(ports[name], script, concurrency=CONCURRENCY)
                rate = (count_calls(upstream) - n_before) / DURATION_S
                shown = f"{rate:8.0f} calls/s, {rate / bare:.2f} of the bare loop"
                print(f"{turn} {name + ', voted':30s} {shown}", flush=True)


def compare(peers: Path | None, before: Path | None) -> None:
    """Print one row per proxy and turn."""
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        directory = Path(temporary)
        upstream = free_port()
        options = ["--latency-s", "0.02", "--completion-tokens", "50", "--port", str(upstream)]
        fake = (sys.executable, "-m", "adacompute.testing.fake_openai", *options)
        stack.enter_context(start_process(*fake))
        wait_for(upstream)
        for model in ("other", "fake"):
            (directory / f"{model}.lua").write_text(LUA % model)
        ports = start_proxies(stack, directory, upstream, peers, before)
        compare_calls(ports, upstream, directory / "fake.lua")
        cases = [(name, port, "other") for name, port in ports.items()]
        cases.append(("(d) ours, deciding", ports[OURS], "fake"))
        for turn in range(TURNS):
            for name, port, model in cases:
                script = directory / f"{model}.lua"
                rate, p50, p99 = measure(port, script, concurrency=CONCURRENCY)
                _, single_p50, single_p99 = measure(port, script, concurrency=1)
                times = f"{p50:>9} {p99:>9}   single {single_p50:>9} {single_p99:>9}"
                print(f"{turn} {name:30s} {rate:8.0f}/s {times}", flush=True)


async def read_streams(port: int) -> int:
    """Read many slow streams in parallel; return how many are complete."""
    body = {
        "model": "other",
        "messages": [{"role": "user", "content": "slow"}],
        "max_tokens": 10,
        "stream": True,
    }
    limit = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    complete = 0
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:

        async def read(number: int) -> None:
            nonlocal complete
            await asyncio.sleep(number / 1000)
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, json=body) as reply:
                data = await reply.read()
                complete += data.endswith(b"data: [DONE]\n\n")

        await asyncio.gather(*(read(i) for i in range(N_STREAMS)))
    return complete


def measure_streams() -> None:
    """Serve slow streams with one worker and print its peak memory."""
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        directory, upstream, port = Path(temporary), free_port(), free_port()
        options = ["--token-latency-s", "2", "--completion-tokens", "10", "--port", str(upstream)]
        fake = (sys.executable, "-m", "adacompute.testing.fake_openai", *options)
        stack.enter_context(start_process(*fake))
        save_example_bundle(directory / "policy")
        (directory / "gateway.toml").write_text(GATEWAY.format(upstream=upstream, port=port))
        serve = ("-m", "adacompute", "serve", "--config", str(directory / "gateway.toml"))
        gateway = stack.enter_context(start_process(sys.executable, *serve))
        wait_for(port)
        before = process_usage(gateway.pid)
        complete = asyncio.run(read_streams(port))
        status = Path(f"/proc/{gateway.pid}/status").read_text()
        peak_mb = int(status.split("VmHWM:")[1].split()[0]) // 1024
        print(f"{complete} of {N_STREAMS} streams complete; {before} before, peak {peak_mb} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("peers", type=Path, nargs="?", help="directory of virtual environments")
    parser.add_argument("--before", type=Path, help="the folder src of another commit")
    bare_help = "only serve the bare proxy of an upstream on a port, until stopped"
    parser.add_argument("--bare", nargs=2, metavar=("URL", "PORT"), help=bare_help)
    given = parser.parse_args()
    if given.bare:
        url, bare_port = given.bare
        uvicorn.run(make_bare_proxy(url), port=int(bare_port), log_level="error", access_log=False)
    else:
        compare(given.peers, given.before)
        measure_streams()
