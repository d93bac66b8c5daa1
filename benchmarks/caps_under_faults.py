"""Caps under faults: whether a cap holds while gateways are killed and Redis loses its data.

``python -m benchmarks.caps_under_faults BACKEND [RUNS] [REQUESTS]`` sends REQUESTS voted requests
of 1 to 4 samples each from 64 concurrent clients, under a cap of 60 % to 70 % of the samples that
they ask for. BACKEND is where the gateways share what was spent:

    redis     8 gateways, each with a directory of its own, and a Redis server. Redis is killed and
              restarted three times: with all its data, empty, and from an old snapshot
    sqlite    4 workers of one gateway, with one directory and a SQLite file

Every 5 seconds one of the processes is killed with SIGKILL and started again. Clients send a
request again if its process died, if the cap could not be checked, or if the upstream failed, which
it does with ``--fault-rates``. The upstream is a fake one that counts the samples that it was asked
for. Each run has a seed, on which the requests, the faults and the cap depend, and prints a row:

    upstream      samples that the upstream was asked for; at most the cap
    account       samples spent according to the account of the cap; at least the upstream's
    calls         samples according to the files of calls; at least the upstream's
    200, 429      requests by their last reply; all requests must have one
    retried       requests sent again after a lost connection and after the cap was unavailable

The exit code is 1 if a run fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aiohttp

from adacompute.core.types import make_levels
from adacompute.gateway.app import build
from adacompute.gateway.connection.http_server import HttpServer, run_in_fast_loop
from adacompute.gateway.processes.logs import set_up_logging
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.spending.caps.accounts import CapAccount
from adacompute.spending.caps.peers import CAPS, RECOVERY, Recovery
from adacompute.spending.registers import Reading, RegisterError
from adacompute.storage.calls import FILES, read_calls
from test_support.gateways import fetch, free_port
from test_support.redis_server import Data, RedisServer, serve_redis

N_CLIENTS, N_GATEWAYS, N_WORKERS = 64, 8, 4
MAX_SAMPLES, SAMPLE_TOKENS = 4, 4
ANSWER_TIMEOUT_S, RECOVERY_TIMEOUT_S = 90.0, 30.0
RESTARTS: tuple[Data, ...] = ("kept", "empty", "snapshot")
TIMES = ((0.08, 0.2), (0.28, 0.42), (0.5, 0.8))
"""When Redis is restarted, as shares of the requests that are answered."""

UPSTREAM_FAILURES = (429, 502, 503, 504)
CAP, UPSTREAM_MODEL = "total/samples/all", "fake"
START_TIMEOUT_S, STOP_TIMEOUT_S = 60.0, 20.0
PRELOADED = (
    "aiohttp",
    "adacompute.gateway.processes.worker",
    "msgspec",
    "prometheus_client.multiprocess",
    "redis.asyncio.cluster",
    "starlette.applications",
    "test_support.redis_server",
    "uvloop",
)
"""What workers import, and the main module, which every worker imports again."""


def serve_worker(settings: Mapping[str, Any], log: Path) -> None:
    """Serve in this process until a signal stops it; ``log`` is the file of its messages."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stderr.fileno())
    config = make_config(settings)
    set_up_logging(config.log_format, config.log_level)
    listener = socket.create_server(("127.0.0.1", config.port), backlog=4096)
    application = build(config, load_models(config), register=config.open_register())
    run_in_fast_loop(HttpServer(application, listener).run_until_stopped())


class GatewayWorker:
    """A process that serves like a worker of a gateway; ``start`` starts it again when killed."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        self.port: int = settings["port"]
        self.log = log
        self._settings = settings
        self._context = multiprocessing.get_context("forkserver")
        self._process: Any = None

    def start(self) -> None:
        """Start the process; ``wait_ready`` waits until it serves."""
        self._process = self._context.Process(target=serve_worker, args=(self._settings, self.log))
        self._process.start()

    def wait_ready(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                fetch(f"http://127.0.0.1:{self.port}/health")
            except OSError:
                if time.monotonic() > deadline or not self._process.is_alive():
                    raise SystemExit(f"a worker does not start: see {self.log}") from None
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """Ask the process to end; ``join`` waits for it."""
        self._process.terminate()

    def join(self) -> bool:
        """Wait until the process has ended, and return whether it did so in time."""
        self._process.join(STOP_TIMEOUT_S)
        has_ended = self._process.exitcode is not None
        if not has_ended:
            self.kill()
        return has_ended


@contextmanager
def start_workers(workers: Sequence[GatewayWorker]) -> Iterator[None]:
    """Start workers and wait until they serve; at the end of the block, those left are killed."""
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield
    finally:
        for worker in workers:
            worker.kill()


@dataclass(frozen=True)
class Plan:
    """Everything that is random in a run, from its seed."""

    backend: str
    samples: tuple[int, ...]
    cap: int
    is_native: bool
    kill_every_s: float
    restarts: tuple[tuple[float, Data], ...]
    fault_rates: str = ""

    @staticmethod
    def make(backend: str, n_requests: int, seed: int, options: argparse.Namespace) -> Plan:
        """Draw a plan."""
        rng = random.Random(seed)  # noqa: S311 - no secrets
        samples = tuple(rng.randint(1, MAX_SAMPLES) for _ in range(n_requests))
        kinds = [one for one in RESTARTS if one in options.restarts.split(",")]
        rng.shuffle(kinds)
        times = sorted(rng.sample(TIMES, len(kinds)))
        restarts = [(rng.uniform(*time), kind) for time, kind in zip(times, kinds, strict=True)]
        return Plan(
            backend,
            samples,
            int(rng.uniform(0.6, 0.7) * sum(samples)),
            rng.random() < 0.5,
            options.kill_every_s,
            tuple(restarts) if backend == "redis" else (),
            options.fault_rates,
        )


@dataclass
class Progress:
    """What has happened in a run so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    n_kills: int = 0
    n_restarts: int = 0
    is_done: bool = False

    @property
    def n_answered(self) -> int:
        """Requests that have their last reply."""
        return self.outcomes["200"] + self.outcomes["429"]


@dataclass(frozen=True)
class Result:
    """A run: what was spent, by each way of counting, and what went wrong."""

    cap: int
    upstream: int
    account: CapAccount
    calls: int
    progress: Progress
    n_requests: int
    messages: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """What must not happen."""
        checks = {
            "the upstream was asked for more than the cap": self.upstream > self.cap,
            "the account is below the upstream's count": self.account.spent < self.upstream,
            "the account holds more than the cap": self.account.held > self.cap,
            "the files of calls are below the upstream's count": self.calls < self.upstream,
            "a request has no answer": self.progress.n_answered != self.n_requests,
        }
        return [*(text for text, is_wrong in checks.items() if is_wrong), *self.messages]


def save_policy(path: Path) -> None:
    """Save a bundle that draws as many samples as the budget says."""
    counts = range(1, MAX_SAMPLES + 1)
    prices = tuple(0.1 * (MAX_SAMPLES + 1 - n) for n in counts)
    rules = tuple(FixedRule(n) for n in counts)
    policy = RulePolicy("fixed", make_levels(tuple(counts)), rules, PriceSchedule(prices), "none")
    points = [
        FrontierPoint(float(n), price, n, n, n, 0.5, 0.4, 0.6, 1.0)
        for n, price in zip(counts, prices, strict=True)
    ]
    save_bundle(Bundle(policy, frontier=tuple(points)), path)


def make_settings(
    folder: Path, plan: Plan, upstream: str, store: str | None
) -> list[dict[str, Any]]:
    """Return the settings of each process."""
    is_shared = plan.backend == "sqlite"
    return [
        {
            "base_url": f"{upstream}/v1",
            "port": free_port(),
            "probe": False,
            "models": {
                "voted": {
                    "bundle": str(folder / "policy"),
                    "budget": 2.0,
                    "max_budget": MAX_SAMPLES,
                    "grader": "numeric",
                    "model": UPSTREAM_MODEL,
                }
            },
            "caps": [{"amount": plan.cap, "unit": "samples", "period": "all"}],
            "account_store": store,
            "state_directory": str(folder / ("state-0" if is_shared else f"state-{i}")),
            "log_level": "warning",
        }
        for i in range(N_WORKERS if is_shared else N_GATEWAYS)
    ]


class Clients:
    """Concurrent clients that send each request until it is answered."""

    def __init__(self, plan: Plan, ports: list[int], progress: Progress, seed: int) -> None:
        self._plan = plan
        self._ports = ports
        self._progress = progress
        self._rng = random.Random(seed)  # noqa: S311 - no secrets

    async def run(self) -> None:
        """Send all requests."""
        numbers = iter(range(len(self._plan.samples)))
        limits = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:

            async def work() -> None:
                for number in numbers:
                    await self._answer(session, number)

            await asyncio.gather(*(work() for _ in range(N_CLIENTS)))

    async def _answer(self, session: aiohttp.ClientSession, number: int) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                outcome, wait_s = await self._send(session, number)
            except (aiohttp.ClientError, OSError, TimeoutError):
                outcome, wait_s = "lost", 0.05
            self._progress.outcomes[outcome] += 1
            if wait_s == 0:
                return
            await asyncio.sleep(wait_s)
        self._progress.outcomes["unanswered"] += 1

    async def _send(self, session: aiohttp.ClientSession, number: int) -> tuple[str, float]:
        """Send a request to any of the gateways; return its outcome, and when to try again."""
        body = {
            "model": "voted",
            "adacompute": {"budget": self._plan.samples[number]},
            "messages": [{"role": "user", "content": f"What is {number} + 1?"}],
            "max_tokens": SAMPLE_TOKENS,
        }
        url = f"http://127.0.0.1:{self._rng.choice(self._ports)}/v1/chat/completions"
        async with session.post(url, json=body) as reply:
            document = await reply.json()
        if reply.status == 200:
            return "200", 0
        code = document["error"].get("code")
        if reply.status == 429 and code == "cap_reached":
            assert reply.headers["x-should-retry"] == "false"
            return "429", 0
        if reply.status == 429 and code == "cap_unavailable":
            return "unavailable", float(reply.headers["retry-after"])
        if self._plan.fault_rates and reply.status in UPSTREAM_FAILURES:
            return "failed", 0.05
        return f"{reply.status} {code}", 0


async def kill_workers(
    workers: list[GatewayWorker], plan: Plan, progress: Progress, seed: int
) -> None:
    """Kill one of the workers every few seconds and start it again, until all are answered."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    next_at = time.monotonic() + rng.uniform(0.2, 1) * plan.kill_every_s
    while not progress.is_done:
        await asyncio.sleep(0.02)
        if time.monotonic() >= next_at:
            worker = rng.choice(workers)
            await asyncio.to_thread(worker.kill)
            progress.n_kills += 1
            next_at += plan.kill_every_s
            await asyncio.sleep(rng.uniform(0, 0.5))
            worker.start()


async def restart_redis(server: RedisServer, plan: Plan, progress: Progress) -> None:
    """Restart Redis when as many requests are answered as the plan says."""
    actions: list[tuple[float, Callable[[], None]]] = []
    for when, data in plan.restarts:
        actions.append((when, partial(server.restart, data)))
        if data == "snapshot":
            actions.append((when - 0.07, server.save_snapshot))
    for when, action in sorted(actions, key=lambda one: one[0]):
        target = when * len(plan.samples)
        while progress.n_answered < target and not progress.is_done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.to_thread(action)
        progress.n_restarts += action != server.save_snapshot


async def load(
    plan: Plan, workers: list[GatewayWorker], server: RedisServer | None, seed: int
) -> Progress:
    """Send all requests while processes are killed."""
    progress = Progress()
    clients = Clients(plan, [worker.port for worker in workers], progress, seed)
    async with asyncio.TaskGroup() as group:
        group.create_task(kill_workers(workers, plan, progress, seed))
        if server is not None:
            group.create_task(restart_redis(server, plan, progress))
        await clients.run()
        progress.is_done = True
    return progress


def has_recovered(reading: Reading) -> bool:
    """Whether all replicas have reported to the server."""
    if reading.value is None:
        return False
    recovery = Recovery(*json.loads(reading.value))
    return recovery.is_complete and recovery.server == reading.server


async def read_account(settings: dict[str, Any]) -> tuple[CapAccount, bool]:
    """Return the account of the cap and True, once no recovery is under way; False if it lasts."""
    register = make_config(settings).open_register()
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while True:
        try:
            is_complete = has_recovered(await register.read(RECOVERY))
            if is_complete or time.monotonic() > deadline:
                account = CapAccount.from_json((await register.read(CAPS + CAP)).value)
                await register.close()
                return account, is_complete
        except RegisterError:
            assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


def count_calls(folder: Path) -> int:
    """Return the samples of all calls in the files of calls."""
    directories = [one for one in folder.glob("state-*") if list(one.glob(FILES))]
    tokens = sum(int(row["completion_tokens"]) for one in directories for row in read_calls(one))
    return math.ceil(tokens / SAMPLE_TOKENS)


def start_upstream(stack: ExitStack, fault_rates: str) -> str:
    """Start a fake upstream that counts its calls, and return its address."""
    options = ["--latency-s", "0.004", "--completion-tokens", str(SAMPLE_TOKENS)]
    options += ["--fault-rates", fault_rates] if fault_rates else []
    command = [sys.executable, "-m", "adacompute.testing.fake_openai", *options]
    fake = subprocess.Popen(  # noqa: S603 - no input of others
        [*command, "--record-calls", "true"], stdout=subprocess.PIPE, text=True
    )
    stack.callback(fake.wait)
    stack.callback(fake.kill)
    assert fake.stdout is not None
    return f"http://127.0.0.1:{int(fake.stdout.readline())}"


def count_upstream(upstream: str) -> int:
    """Return how many samples the upstream was asked for, answered or not."""
    calls = json.loads(fetch(f"{upstream}/calls"))["calls"]
    return sum(int(call["completion_tokens"]) for call in calls) // SAMPLE_TOKENS


def run(folder: Path, plan: Plan, seed: int) -> Result:
    """Make one run in an empty folder."""
    save_policy(folder / "policy")
    with ExitStack() as stack:
        server = store = None
        if plan.backend == "redis":
            server = stack.enter_context(serve_redis())
            store = server.url
        upstream = start_upstream(stack, plan.fault_rates)
        if plan.is_native:
            known = Capabilities(n="native", usage="all", chat="available")
            cache = Path(os.environ["XDG_CACHE_HOME"]) / "adacompute"
            save_cached(cache, f"{upstream}/v1", UPSTREAM_MODEL, known)
        settings = make_settings(folder, plan, upstream, store)
        workers = [GatewayWorker(one, folder / f"worker-{i}.log") for i, one in enumerate(settings)]
        with start_workers(workers):
            progress = asyncio.run(load(plan, workers, server, seed))
            for worker in workers:
                worker.wait_ready()
            asyncio.run(read_account(settings[0]))
            for worker in workers:
                worker.stop()
            has_ended = [worker.join() for worker in workers]
            account, is_complete = asyncio.run(read_account(settings[0]))
        messages = [] if all(has_ended) else ["a worker did not stop"]
        if not is_complete:
            messages.append("the recovery of the accounts did not end")
        counts = (count_upstream(upstream), account, count_calls(folder))
        return Result(plan.cap, *counts, progress, len(plan.samples), tuple(messages))


def main() -> None:
    """Print a row per run; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("backend", choices=("redis", "sqlite"))
    parser.add_argument("runs", type=int, nargs="?", default=50)
    parser.add_argument("requests", type=int, nargs="?", default=2_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kill-every-s", type=float, default=5.0)
    parser.add_argument("--fault-rates", default="", help="such as 502=0.06,reset=0.05")
    parser.add_argument("--restarts", default=",".join(RESTARTS), help="what Redis finds")
    parser.add_argument("--max-s", type=float, default=math.inf, help="start no run after so long")
    options = parser.parse_args()
    cache = mkdtemp(prefix="adacompute-cache-")
    os.environ["XDG_CACHE_HOME"] = cache
    print("seed seconds    cap upstream account  calls   200   429  retried    kills restarts")
    n_failed, begin = 0, time.monotonic()
    for seed in range(options.first_seed, options.first_seed + options.runs):
        if time.monotonic() - begin > options.max_s:
            break
        start, folder = time.monotonic(), Path(mkdtemp(prefix="adacompute-caps-"))
        plan = Plan.make(options.backend, options.requests, seed, options)
        found = run(folder, plan, seed)
        seen = found.progress.outcomes
        kinds = ",".join(kind for _, kind in plan.restarts[: found.progress.n_restarts])
        print(
            f"{seed:4d} {time.monotonic() - start:7.1f} {found.cap:6d} {found.upstream:8d} "
            f"{found.account.spent:7d} {found.calls:6d} {seen['200']:5d} {seen['429']:5d} "
            f"{seen['lost']:4d} {seen['unavailable']:4d} {found.progress.n_kills:5d}  {kinds}",
            flush=True,
        )
        if found.failures:
            n_failed += 1
            print(f"     FAILED: {'; '.join(found.failures)}; {dict(seen)}; see {folder}")
        else:
            shutil.rmtree(folder)
    shutil.rmtree(cache)
    print(f"{n_failed} runs failed")
    sys.exit(n_failed > 0)


if __name__ == "__main__":
    main()
