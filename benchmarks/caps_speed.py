"""Caps speed: what caps and held budgets cost the gateway, in requests per second.

``python -m benchmarks.caps_speed [TURNS]``. One worker serves voted requests from 64 parallel
clients (wrk) to a fake upstream that answers after 20 ms. The same gateway runs without pacing and
caps, with pacing and a cap in SQLite, and with pacing and a cap in a real Redis. The cases
alternate. The ratio to the first case is printed, and the round trips to Redis per request.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gateway_speed import (
    CONCURRENCY,
    GATEWAY,
    LUA,
    measure,
    start_process,
    wait_for,
)
from test_support.gateways import free_port, save_example_bundle
from test_support.redis_server import RedisServer, serve_redis

CAPS = """
[[serve.caps]]
amount = 1_000_000_000
unit = "samples"
[[serve.caps]]
amount = 1_000_000_000
unit = "samples"
model = "fake"
"""


def start_gateways(
    stack: ExitStack, directory: Path, upstream: int, redis: RedisServer
) -> dict[str, int]:
    """Start a gateway of each case, and return their ports."""
    cases = {
        "no caps": "pacing = false\n",
        "SQLite": CAPS,
        "Redis": CAPS,
    }
    ports = {}
    for name, settings in cases.items():
        own = directory / name.replace(" ", "-")
        save_example_bundle(own / "policy")
        port = ports[name] = free_port()
        config = GATEWAY.format(upstream=upstream, port=port) + settings
        if name == "Redis":
            store = f'port = {port}\naccount_store = "{redis.url}"'
            config = config.replace(f"port = {port}", store, 1)
        (own / "gateway.toml").write_text(config)
        command = (sys.executable, "-m", "adacompute", "serve", "--config")
        variables = {"XDG_STATE_HOME": str(own)}
        stack.enter_context(start_process(*command, str(own / "gateway.toml"), **variables))
        if not wait_for(port):
            raise SystemExit(f"the gateway of {name!r} did not start")
    return ports


def count_round_trips(redis: RedisServer) -> int:
    """Return how many scripts Redis has run."""
    command = ["redis-cli", "-p", str(redis.port), "info", "commandstats"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    rows = [line for line in shown.splitlines() if line.startswith("cmdstat_eval")]
    return sum(int(row.partition("calls=")[2].partition(",")[0]) for row in rows)


def main() -> None:
    """Print requests per second of each case and turn, and the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("turns", type=int, nargs="?", default=4)
    turns = parser.parse_args().turns
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        directory, upstream = Path(temporary), free_port()
        options = ["--latency-s", "0.02", "--completion-tokens", "50", "--port", str(upstream)]
        fake = (sys.executable, "-m", "adacompute.testing.fake_openai", *options)
        stack.enter_context(start_process(*fake))
        wait_for(upstream)
        redis = stack.enter_context(serve_redis())
        ports = start_gateways(stack, directory, upstream, redis)
        (directory / "fake.lua").write_text(LUA % "fake")
        rates: dict[str, list[float]] = {name: [] for name in ports}
        n_before = count_round_trips(redis)
        for turn in range(turns):
            for name, port in ports.items():
                rate, p50, p99 = measure(port, directory / "fake.lua", concurrency=CONCURRENCY)
                rates[name].append(rate)
                print(f"{turn} {name:10s} {rate:8.0f}/s {p50:>9} {p99:>9}", flush=True)
        n_trips = count_round_trips(redis) - n_before
    base = statistics.median(rates["no caps"])
    for name, found in rates.items():
        print(f"{name:10s} {statistics.median(found) / base:.2f} of the rate without caps")
    n_requests = 5 * sum(rates["Redis"])
    print(f"Redis: {n_trips / n_requests:.3f} round trips per request")


if __name__ == "__main__":
    main()
