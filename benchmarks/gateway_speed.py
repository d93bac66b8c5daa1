"""Gateway speed: ours beside a bare proxy, nginx and its peers, in one run on one machine.

``python benchmarks/gateway_speed.py [PEERS]``. A fake upstream answers 50 tokens after 20 ms; each
proxy is one worker. wrk asks 64 at once for requests a second, and one at a time for the latency
that is added. PEERS is a directory of virtual environments (``litellm``, ``optillm``, ``its``);
what is missing is left out. Then one worker holds 5,000 slow streams. It needs wrk and nginx.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from adacompute.testing.gateways import free_port, process_usage, save_example_bundle

SECONDS, AT_ONCE, TURNS, STREAMS = 8, 64, 2, 5000
LUA = """
wrk.method = "POST"
wrk.body = '{"model":"%s","messages":[{"role":"user","content":"What is 7 + 6?"}],"max_tokens":50}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer sk-none"
"""
NGINX = """
worker_processes 1; daemon off; pid {place}/nginx.pid; error_log {place}/error.log;
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


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and end it."""
    no_progress = subprocess.DEVNULL
    running = subprocess.Popen(command, stdout=no_progress, stderr=no_progress)  # noqa: S603
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(timeout=20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(port: int, path: str = "/v1/models", within_s: float = 90) -> bool:
    """Wait until something answers."""

    async def ask() -> bool:
        async with aiohttp.ClientSession() as session:
            end = time.monotonic() + within_s
            while time.monotonic() < end:
                try:
                    async with session.get(f"http://127.0.0.1:{port}{path}"):
                        return True
                except aiohttp.ClientError:
                    await asyncio.sleep(0.3)
        return False

    return asyncio.run(ask())


def load(port: int, script: Path, *, at_once: int) -> tuple[float, str, str]:
    """Requests a second, and the median and 99th percentile of their latency."""
    target = f"http://127.0.0.1:{port}/v1/chat/completions"
    flags = ["-t1", f"-c{at_once}", f"-d{SECONDS}", "--latency", "--timeout", "30s"]
    command = ["wrk", *flags, "-s", str(script), target]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])  # type: ignore[index]
    half, most = (re.search(rf"\s{p}%\s+(\d\S*)", said)[1] for p in (50, 99))  # type: ignore[index]
    return (-rate if wrong else rate), half, most


def proxies(stack: ExitStack, place: Path, upstream: int, peers: Path | None) -> dict[str, int]:
    """Start everything that is compared, and say at which port it listens."""
    python, here = sys.executable, Path(__file__).parent
    ports = {"upstream itself": upstream}

    def add(name: str, *command: str, port: int) -> None:
        stack.enter_context(process(*command))
        if wait_for(port):
            ports[name] = port
        else:
            print(f"{name} did not start", flush=True)

    port = free_port()
    bare = (python, str(here / "bare_proxy.py"), f"http://127.0.0.1:{upstream}", str(port))
    add("(a) bare Starlette + aiohttp", *bare, port=port)
    port = free_port()
    (place / "nginx.conf").write_text(NGINX.format(place=place, upstream=upstream, port=port))
    if nginx := shutil.which("nginx"):
        add("(b) nginx", nginx, "-c", str(place / "nginx.conf"), port=port)
    port = free_port()
    save_example_bundle(place / "policy")
    (place / "gateway.toml").write_text(GATEWAY.format(upstream=upstream, port=port))
    add(
        "(c) ours",
        python,
        "-m",
        "adacompute",
        "serve",
        "--config",
        str(place / "gateway.toml"),
        port=port,
    )
    if peers is not None:
        add_peers(add, place, upstream, peers)
    return ports


def add_peers(add, place: Path, upstream: int, peers: Path) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - the closure above
    """Start those peers that are installed."""
    if (peers / "litellm/bin/litellm").exists():
        port = free_port()
        (place / "litellm.yaml").write_text(LITELLM.format(upstream=upstream))
        command = [str(peers / "litellm/bin/litellm"), "--config", str(place / "litellm.yaml")]
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
    """Tell its_hub its upstream, and to draw once."""
    told = {
        "endpoint": f"http://127.0.0.1:{upstream}/v1",
        "api_key": "none",
        "model": "other",
        "alg": "self-consistency",
        "regex_patterns": ["([0-9]+)"],
        "budget": 1,
    }
    url = f"http://127.0.0.1:{port}/configure"
    async with aiohttp.ClientSession() as session, session.post(url, json=told) as reply:
        print("its_hub configured:", reply.status, flush=True)


def compare(peers: Path | None) -> None:
    """Print a row for each proxy."""
    with TemporaryDirectory() as held_place, ExitStack() as stack:
        place = Path(held_place)
        upstream = free_port()
        options = ["--latency-s", "0.02", "--completion-tokens", "50", "--port", str(upstream)]
        fake = (sys.executable, "-m", "adacompute.testing.fake_openai", *options)
        stack.enter_context(process(*fake))
        wait_for(upstream)
        for name in ("other", "fake"):
            (place / f"{name}.lua").write_text(LUA % name)
        ports = proxies(stack, place, upstream, peers)
        cases = [(name, port, "other") for name, port in ports.items()]
        cases.append(("(d) ours, deciding", ports["(c) ours"], "fake"))
        for turn in range(TURNS):
            for name, port, model in cases:
                script = place / f"{model}.lua"
                rate, half, most = load(port, script, at_once=AT_ONCE)
                _, alone, alone_most = load(port, script, at_once=1)
                shown = f"{rate:8.0f}/s {half:>9} {most:>9}   alone {alone:>9} {alone_most:>9}"
                print(f"{turn} {name:30s} {shown}", flush=True)


async def hold(port: int) -> int:
    """Open many slow streams at once and read them to their end."""
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

        async def one(number: int) -> None:
            nonlocal complete
            await asyncio.sleep(number / 1000)
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, json=body) as reply:
                data = await reply.read()
                complete += data.endswith(b"data: [DONE]\n\n")

        await asyncio.gather(*(one(i) for i in range(STREAMS)))
    return complete


def stream() -> None:
    """Hold slow streams with one worker, and say what memory that takes."""
    with TemporaryDirectory() as held_place, ExitStack() as stack:
        place, upstream, port = Path(held_place), free_port(), free_port()
        options = ["--token-latency-s", "2", "--completion-tokens", "10", "--port", str(upstream)]
        fake = (sys.executable, "-m", "adacompute.testing.fake_openai", *options)
        stack.enter_context(process(*fake))
        save_example_bundle(place / "policy")
        (place / "gateway.toml").write_text(GATEWAY.format(upstream=upstream, port=port))
        serve = ("-m", "adacompute", "serve", "--config", str(place / "gateway.toml"))
        gateway = stack.enter_context(process(sys.executable, *serve))
        wait_for(port)
        before = process_usage(gateway.pid)
        complete = asyncio.run(hold(port))
        status = Path(f"/proc/{gateway.pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
        print(f"{complete} of {STREAMS} streams complete; {before} before, at most {peak} MB")


if __name__ == "__main__":
    compare(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    stream()
