"""Capped load: gateways that share a Redis server, and clients that send requests under caps.

The gateways are processes of ``adacompute serve``, each with a directory of its own. The upstream
is a fake one, also a process, which lists every call: what was spent is its count, never that of a
gateway. The id of a request names its client. This module knows no faults and no goals.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from benchmarks.clients import start_upstream
from benchmarks.watched_pages import WatchedPages
from test_support.gateways import fetch, free_port, wait_for
from test_support.killed import kill_tree, start_command
from test_support.redis_server import RedisServer, serve_redis

LATENCY_S, COMPLETION_TOKENS, MAX_TOKENS = 0.05, 40, 48
BODY = json.dumps(
    {
        "model": "fake",
        "messages": [{"role": "user", "content": "What is 7 + 1?"}],
        "max_tokens": MAX_TOKENS,
    }
).encode()
MAX_CALL = len(BODY) + MAX_TOKENS
"""The most tokens that a call can use, as the gateway reserves them."""

REFUSED, LOST = ("cap_reached", "cap_unavailable"), "lost"
CLIENTS = {"a": 4.0, "b": 2.0, "c": 2.0, "d": 1.0, "e": 1.0}
"""Clients that send requests to all gateways, and how often relative to each other."""

N_SLOW, N_NEW = 2, 300
QUIET_S, N_PARALLEL = 3.0, 16
TIMEOUT_S, START_TIMEOUT_S, STOP_TIMEOUT_S = 30.0, 60.0, 20.0
CONFIG = """
[serve]
base_url = "{base_url}"
port = {port}
workers = {workers}
account_store = "{store}"
max_output_tokens = {max_tokens}
probe = false
log_level = "warning"
state_directory = "state"
[[serve.caps]]
amount = {total}
unit = "tokens"
period = "all"
[[serve.caps]]
amount = {per_client}
unit = "tokens"
period = "all"
client = "*"
[serve.client_keys]
"""


@dataclass(frozen=True)
class Amounts:
    """Caps in tokens: of all clients together, and of each."""

    total: int
    per_client: int


class GatewayProcess:
    """A gateway that can be stopped, killed and started again; it is killed with the stack."""

    def __init__(self, stack: ExitStack, folder: Path, settings: dict[str, Any]) -> None:
        self.port = free_port()
        self._stack, self._folder, self._settings = stack, folder, settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def admin_address(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.port + 1}"

    def start(self, workers: int) -> None:
        """Start the process; ``wait_ready`` waits until it serves."""
        self._folder.mkdir(exist_ok=True)
        keys = "".join(f'"{one}" = "{_digest(one)}"\n' for one in list_clients())
        settings = {**self._settings, "port": self.port, "workers": workers}
        (self._folder / "gateway.toml").write_text(CONFIG.format(**settings) + keys)
        command = start_command("serve", "--config", "gateway.toml", folder=self._folder)
        self._process = self._stack.enter_context(command)

    def wait_ready(self) -> None:
        """Wait until it serves."""
        try:
            wait_for(f"{self.admin_address}/ready", START_TIMEOUT_S)
        except OSError as error:
            log = (self._folder / "errors.txt").read_text()
            raise SystemExit(f"a gateway does not start ({error}):\n{log}") from None

    def stop(self) -> None:
        """Ask the process to end, and wait for it."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the process and its workers at once."""
        assert self._process is not None
        kill_tree(self._process)

    def delete(self) -> None:
        """Delete the directory of a gateway that has ended."""
        shutil.rmtree(self._folder)


@dataclass
class Request:
    """A request, and its outcome: the status, or the code of the error."""

    number: int
    client: str
    port: int
    sent_at: float
    ended_at: float = math.inf
    outcome: str = ""

    @property
    def name(self) -> str:
        """The id, by which the upstream lists the call."""
        return f"{self.client}.{self.number}"

    @property
    def is_refused(self) -> bool:
        """Whether a cap was the reason for an error."""
        return self.outcome in REFUSED


@dataclass
class Pace:
    """Requests per second, which may change."""

    rate: float


class Load:
    """Requests under caps: ``gateways`` are those that get some, which may change meanwhile."""

    def __init__(
        self, session: aiohttp.ClientSession, gateways: Sequence[GatewayProcess], seed: int
    ) -> None:
        self.gateways = list(gateways)
        self.requests: list[Request] = []
        self.rng = random.Random(seed)  # noqa: S311 - no secrets
        self._session = session
        self._homes = {home_client(i): one for i, one in enumerate(gateways)}

    def admin_addresses(self) -> list[str]:
        """Return the addresses of the pages of all gateways that get requests."""
        return [gateway.admin_address for gateway in self.gateways]

    def pick(self) -> tuple[str, GatewayProcess]:
        """Choose a client and a gateway; some clients use one gateway only, while it is there."""
        weights = {**CLIENTS, **dict.fromkeys(self._homes, 1.0)}
        client = self.rng.choices(list(weights), list(weights.values()))[0]
        return client, self.route(client)

    def route(self, client: str) -> GatewayProcess:
        """Choose a gateway for a client."""
        home = self._homes.get(client)
        return home if home in self.gateways else self.rng.choice(self.gateways)

    async def send(self, client: str, gateway: GatewayProcess) -> Request:
        """Send a request and return it with its outcome."""
        request = Request(len(self.requests), client, gateway.port, time.monotonic())
        self.requests.append(request)
        headers = {
            "authorization": f"Bearer {_key(client)}",
            "content-type": "application/json",
            "x-request-id": request.name,
        }
        url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        try:
            async with self._session.post(url, data=BODY, headers=headers) as reply:
                document = await reply.json()
            code = "" if reply.status == 200 else document["error"].get("code")
            request.outcome = str(code or reply.status)
        except (aiohttp.ClientError, OSError, TimeoutError):
            request.outcome = LOST
        request.ended_at = time.monotonic()
        return request

    @asynccontextmanager
    async def steady(
        self, rate: float, pick: Callable[[], tuple[str, GatewayProcess]] | None = None
    ) -> AsyncIterator[Pace]:
        """Send so many requests per second while the block is open, then wait for their replies."""
        pace, is_open = Pace(rate), True

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                while is_open:
                    group.create_task(self.send(*(pick or self.pick)()))
                    await asyncio.sleep(self.rng.expovariate(pace.rate))

        task = asyncio.create_task(run())
        try:
            yield pace
        finally:
            is_open = False
            await task

    async def exhaust(self, clients: Sequence[str]) -> None:
        """Send requests of these clients in parallel until none is answered for a while."""
        answered_at = time.monotonic()

        async def work() -> None:
            nonlocal answered_at
            while time.monotonic() < answered_at + QUIET_S:
                client = self.rng.choice(clients)
                request = await self.send(client, self.route(client))
                if request.outcome == "200":
                    answered_at = request.ended_at
                else:
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(work() for _ in range(N_PARALLEL)))

    def refused(self, after: float, clients: Iterable[str] | None = None) -> list[Request]:
        """Return the requests that were refused after a time, of some clients."""
        chosen = None if clients is None else set(clients)
        return [
            one
            for one in self.requests
            if one.is_refused and one.ended_at > after and (chosen is None or one.client in chosen)
        ]

    def describe(self, event_at: float) -> dict[str, Any]:
        """Count requests by outcome, and refused ones by the time since an event.

        ``slowest_s`` is the longest time that a request took which was not lost.
        """
        refused: dict[str, Any] = {}
        for code in REFUSED:
            times = sorted(one.ended_at - event_at for one in self.requests if one.outcome == code)
            if times:
                seconds = Counter(math.floor(one) for one in times)
                limits = {"first_s": round(times[0], 2), "last_s": round(times[-1], 2)}
                refused[code] = {"n": len(times), **limits, "by_second": dict(seconds)}
        ended = [one.ended_at - one.sent_at for one in self.requests if one.outcome != LOST]
        return {
            "outcomes": Counter(one.outcome for one in self.requests),
            "slowest_s": round(max(ended, default=0.0), 2),
            "refused": refused,
        }


@dataclass
class Setup:
    """Everything that runs, until ``open_setup`` ends."""

    server: RedisServer
    upstream: str
    gateways: Sequence[GatewayProcess]
    load: Load
    pages: WatchedPages
    amounts: Amounts

    def count_tokens(self) -> Counter[str]:
        """Return the tokens of every request by the count of the upstream."""
        calls = json.loads(fetch(self.upstream.removesuffix("/v1") + "/calls"))["calls"]
        found: Counter[str] = Counter()
        for call in calls:
            found[call["request"]] += call["prompt_tokens"] + call["completion_tokens"]
        return found

    def describe(self, event_at: float) -> dict[str, Any]:
        """Return what happened: requests, pages, and what was spent above caps."""
        tokens = self.count_tokens()
        by_client: Counter[str] = Counter()
        for name, amount in tokens.items():
            by_client[name.partition(".")[0]] += amount
        limit = self.amounts.per_client
        above = {name: amount - limit for name, amount in by_client.items() if amount > limit}
        if tokens.total() > self.amounts.total:
            above["total"] = tokens.total() - self.amounts.total
        caps = {"total": self.amounts.total, "per_client": limit}
        spent = {"total": tokens.total(), "client": max(by_client.values(), default=0)}
        return {
            **self.load.describe(event_at),
            **self.pages.describe(event_at),
            "caps": caps,
            "spent": spent,
            "above_cap": above,
        }


@asynccontextmanager
async def open_setup(
    seed: int, amounts: Amounts, n_gateways: int = 3, workers: int = 1
) -> AsyncIterator[Setup]:
    """Start Redis, an upstream and gateways, and wait until they serve."""
    options = ["--completion-tokens", str(COMPLETION_TOKENS), "--record-calls", "true"]
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # reach every worker
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="adacompute-outages-")))
        server = stack.enter_context(serve_redis())
        upstream = stack.enter_context(start_upstream(LATENCY_S, *options))
        settings = {
            "base_url": upstream,
            "store": server.url,
            "max_tokens": MAX_TOKENS,
            "total": amounts.total,
            "per_client": amounts.per_client,
        }
        paths = [folder / f"gateway-{i}" for i in range(n_gateways)]
        gateways = [GatewayProcess(stack, path, settings) for path in paths]
        for gateway in gateways:
            gateway.start(workers)
        for gateway in gateways:
            gateway.wait_ready()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            load, pages = Load(session, gateways, seed), WatchedPages()
            task = asyncio.create_task(pages.watch(session, load.admin_addresses))
            try:
                yield Setup(server, upstream, gateways, load, pages, amounts)
            finally:
                task.cancel()
                await asyncio.wait({task})


def home_client(index: int) -> str:
    """Return the name of the client that uses one gateway only."""
    return f"home-{index}"


def slow_client(index: int) -> str:
    """Return the name of a client that is silent for longer than others."""
    return f"slow-{index}"


def new_client(index: int) -> str:
    """Return the name of a client that gateways know, and that has sent nothing yet."""
    return f"new-{index}"


def list_clients() -> list[str]:
    """Return the names of all clients that have a key."""
    homes = [home_client(i) for i in range(3)]
    slow = [slow_client(i) for i in range(N_SLOW)]
    return [*CLIENTS, *homes, *slow, *(new_client(i) for i in range(N_NEW))]


def _key(client: str) -> str:
    return f"key-of-{client}".ljust(32, "x")


def _digest(client: str) -> str:
    return hashlib.sha256(_key(client).encode()).hexdigest()
