"""Pacing, live: whether gateways hold the mean cost together while the traffic changes.

``python -m benchmarks.pacing_live SAMPLES.parquet --budget 2 --stream switch --length 20000`` sends
the streams of ``benchmarks/pacing.py`` from 64 concurrent clients to 8 gateways that share what was
spent in a Redis server. The upstream answers each request with the recorded samples of its
question, in the random order that the stream has for it. The gateways serve a policy that was
fitted to other questions. Each stream is sent twice: with pacing, and at the calibrated price.

The columns are those of ``benchmarks/pacing.py``. Windows are in the order in which replies
arrived, and after them come requests per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web

from adacompute.features.text import VERSION
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.storage.store import encode_samples
from benchmarks.gateway_workers import GatewayWorker, start_workers
from benchmarks.pacing import (
    LENGTH,
    STREAMS,
    Source,
    describe,
    draw_samples,
    judge,
    load,
    make_source,
    make_stream,
)
from test_support.gateways import fetch, free_port
from test_support.redis_server import serve_redis

if TYPE_CHECKING:
    from adacompute.core.types import IntArray

N_CLIENTS, N_GATEWAYS = 64, 8
LATENCY_S, TIMEOUT_S = 0.005, 120.0
MODEL, VIRTUAL = "recorded", "paced"
PRELOADED = ["aiohttp.web", "test_support.redis_server", "benchmarks.pacing"]


class RecordedUpstream:
    """Answers with recorded samples: those of the row that the header x-request-id names."""

    def __init__(self, answers: IntArray) -> None:
        self._texts = [[_write_answer(one) for one in row] for row in answers.tolist()]
        self._n_used = [0] * len(self._texts)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a chat completion with the next samples of its row."""
        if request.method != "POST":
            return web.json_response({"object": "list", "data": []})
        n = int(json.loads(await request.read()).get("n") or 1)
        row = int(request.headers["x-request-id"])
        first = self._n_used[row]
        self._n_used[row] += n
        await asyncio.sleep(LATENCY_S)
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate(self._texts[row][first : first + n])
        ]
        usage = {"prompt_tokens": 1, "completion_tokens": n, "total_tokens": n + 1}
        return web.json_response(
            {"id": "recorded", "object": "chat.completion", "choices": choices, "usage": usage}
        )


def _write_answer(answer: int) -> str:
    """Write an answer, by its number among those of its question, such that it can be parsed."""
    return f"The answer is {answer}." if answer >= 0 else "There is no answer."


def serve_recorded(path: Path, port: int) -> None:
    """Serve the samples of a file until the process is ended."""
    upstream = RecordedUpstream(np.load(path))

    async def main() -> None:
        runner = web.ServerRunner(web.Server(upstream.handle), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()

    asyncio.run(main())


def start_upstream(stack: ExitStack, path: Path) -> str:
    """Start the upstream as a process, and return its address."""
    port = free_port()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=serve_recorded, args=(path, port))
    process.start()
    stack.callback(process.join)
    stack.callback(process.kill)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            fetch(f"{address}/v1/models")
        except OSError:
            time.sleep(0.1)
        else:
            break
    return address


def read_texts(path: Path) -> list[str]:
    """Return the texts of the questions, in the order of ``pacing.load``."""
    table = pq.read_table(path)
    empty = pa.nulls(len(table), pa.string())
    return [str(text) for text in encode_samples(table.append_column("difficulty", empty)).text]


def save_policy(source: Source, path: Path) -> None:
    """Save the fitted policy of a source with its calibrated prices."""
    points = [
        FrontierPoint(budget, price, budget, budget, budget, 0.5, 0.4, 0.6, 1.0)
        for budget, price in zip(source.curve.budgets, source.curve.prices, strict=True)
    ]
    known = {"features": "words", "feature_version": VERSION, "notes": {"policy": "sequential"}}
    save_bundle(Bundle(source.policy, frontier=tuple(points), **known), path)  # type: ignore[arg-type]


def make_settings(
    folder: Path, upstream: str, store: str, budget: float, *, pacing: bool
) -> list[dict[str, Any]]:
    """Return the settings of each gateway."""
    model = {
        "bundle": str(folder / "policy"),
        "budget": budget,
        "grader": "numeric",
        "model": MODEL,
        "pacing": pacing,
    }
    name = f"state-{budget:g}-{'paced' if pacing else 'fixed'}"
    return [
        {
            "base_url": f"{upstream}/v1",
            "port": free_port(),
            "probe": False,
            "models": {VIRTUAL: model},
            "account_store": store,
            "state_directory": str(folder / f"{name}-{i}"),
            "log_level": "warning",
        }
        for i in range(N_GATEWAYS)
    ]


async def ask_all(ports: list[int], texts: list[str], seed: int) -> tuple[IntArray, IntArray]:
    """Ask all questions in turn; return what each cost, and the order in which they settled."""
    cost, order = np.zeros(len(texts), dtype=np.int64), list[int]()
    numbers, rng = iter(range(len(texts))), np.random.default_rng(seed)
    gateways = rng.choice(ports, len(texts)).tolist()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def work() -> None:
            for i in numbers:
                body = {"model": VIRTUAL, "messages": [{"role": "user", "content": texts[i]}]}
                url = f"http://127.0.0.1:{gateways[i]}/v1/chat/completions"
                async with session.post(url, json=body, headers={"x-request-id": str(i)}) as reply:
                    assert reply.status == 200, await reply.text()
                    cost[i] = int(reply.headers["x-adacompute-samples"])
                order.append(i)

        await asyncio.gather(*(work() for _ in range(N_CLIENTS)))
    return cost, np.array(order)


def run(
    folder: Path, upstream: str, texts: list[str], budget: float, seed: int, *, pacing: bool
) -> tuple[IntArray, IntArray]:
    """Send one stream through new gateways and a new Redis server."""
    with serve_redis() as server:
        settings = make_settings(folder, upstream, server.url, budget, pacing=pacing)
        workers = [GatewayWorker(one, folder / "workers.log") for one in settings]
        with start_workers(workers, PRELOADED):
            return asyncio.run(ask_all([worker.port for worker in workers], texts, seed))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("--budget", type=float, action="append", help="by default 2 and 4")
    parser.add_argument("--stream", choices=STREAMS, action="append", help="by default switch")
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pacing", choices=("both", "yes", "no"), default="both")
    parser.add_argument("--save", type=Path, help="directory to store the costs in")
    options = parser.parse_args()
    multiprocessing.set_forkserver_preload(PRELOADED)
    pool, exam = load(options.samples)
    questions = read_texts(options.samples)
    source = make_source(pool, exam, options.seed, "cost")
    modes = {"both": (True, False), "yes": (True,), "no": (False,)}[options.pacing]
    print(f"{'':36s} 1,000 (worst)  5,000 (worst)  mean %  holds  points          per s")
    for name in options.stream or ["switch"]:
        stream = make_stream(source, name, options.seed, options.length)
        parts = list(draw_samples(source, name, options.seed, options.length))
        chosen, samples = (np.concatenate(one) for one in zip(*parts, strict=True))
        texts = [questions[i] for i in source.rows[chosen]]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="adacompute-pacing-")))
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            save_policy(source, folder / "policy")
            np.save(folder / "answers.npy", source.pool.answers.answer[samples])
            for budget in options.budget or (2.0, 4.0):
                for pacing in modes:
                    with ExitStack() as running:  # samples are used once
                        upstream = start_upstream(running, folder / "answers.npy")
                        known = Capabilities(n="native", usage="all", chat="available")
                        save_cached(folder / "cache/adacompute", f"{upstream}/v1", MODEL, known)
                        start = time.perf_counter()
                        cost, order = run(
                            folder, upstream, texts, budget, options.seed, pacing=pacing
                        )
                    rate = options.length / (time.perf_counter() - start)
                    result = judge(stream, name, budget, cost, cost[order])
                    title = "pacing" if pacing else "fixed price"
                    line = describe([result])
                    print(f"B = {budget:g} {name:14s} {title:14s}{line} {rate:6.0f}", flush=True)
                    if options.save is not None:
                        options.save.mkdir(exist_ok=True)
                        np.savez(
                            options.save / f"{name}-{budget:g}-{title[:5]}", cost=cost, order=order
                        )


if __name__ == "__main__":
    main()
