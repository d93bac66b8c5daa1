"""Fake upstream: an OpenAI-compatible server that misbehaves on request, for faults and load.

It speaks the format over real sockets, counts what it served and shows it at /stats. What it does
with n, seeds, usage, limits and lost connections is a setting, and so is how often a call fails and
how. It also gives scores, at /v1/score. It is no model: nothing that needs real answers should be
tested on it. In a thread of a test:

    with serve(FakeSettings(latency_s=0.02, faults={"429": 0.1})) as fake: ...

or as a process of its own, which prints its port:

    python -m adacompute.testing.fake_openai --latency-s 0.02 --faults 429=0.1,reset=0.05
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError, require
from adacompute.testing.fake_answers import FAULTS, Ask, FakeSettings, read_ask, read_rating

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["FAULTS", "Fake", "FakeSettings", "main", "serve"]

_FOREVER_S = 3600.0
_STATUSES = {"429": 429, "500": 500, "502": 502, "503": 503}
_COUNTS = ("calls", "answered", "refused", "choices", "tokens", "cancelled", "open", "peak")


class Fake:
    """One fake server: its settings and what it has counted, all of it in its own loop."""

    def __init__(self, settings: FakeSettings) -> None:
        self.settings = settings
        self.port = 0
        self._web: Any = require("aiohttp.web", extra="serve")
        self._counts: Counter[str] = Counter()
        self._met: Counter[str] = Counter()
        self._script = iter(settings.script)
        self._random = random.Random(settings.seed)  # noqa: S311 - no secrets
        self._fresh = itertools.count((settings.seed + 1) << 32)
        self._slots = asyncio.Semaphore(settings.slots or 1_000_000)

    @property
    def base_url(self) -> str:
        """Where a client finds it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> dict[str, Any]:
        """What was served until now.

        Calls are all that arrived; those answered in full gave the choices and tokens; cancelled
        ones lost their client first; open ones are under way, and peak is the most there were.
        """
        return {**{name: self._counts[name] for name in _COUNTS}, "faults": dict(self._met)}

    async def run(self, port: int, ready: Callable[[], None], done: asyncio.Event) -> None:
        """Serve on the loopback interface until `done`; port 0 takes a free one."""
        server = self._web.Server(self._handle, handler_cancellation=True)
        runner = self._web.ServerRunner(server, shutdown_timeout=0.05, access_log=None)
        await runner.setup()
        try:
            await self._web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
            self.port = runner.addresses[0][1]
            ready()
            await done.wait()
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix("/v1/")
        if request.method == "POST" and path in self.settings.endpoints:
            counts = self._counts
            counts["calls"] += 1
            counts["open"] += 1
            counts["peak"] = max(counts["peak"], counts["open"])
            try:
                return await self._serve(request, path)
            finally:
                counts["open"] -= 1
        known: dict[str, dict[str, Any]] = {
            "/stats": self.stats(),
            "/health": {"status": "ok"},
            "models": {"object": "list", "data": [{"id": "fake", "object": "model"}]},
        }
        if path in known:
            return self._json(known[path])
        return self._error(404, f"there is no {request.path}")

    async def _serve(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        fault = self._next_fault()
        try:
            body = json.loads(await request.read())
            ask = self._understand(body, path)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._counts["refused"] += 1
            return self._error(400, str(error))
        if fault is not None:
            self._met[fault] += 1
        if fault in _STATUSES:
            return self._error(_STATUSES[fault], f"the fake {FAULTS[fault]}")
        if fault == "stall":
            async with self._place(_FOREVER_S):
                await asyncio.sleep(_FOREVER_S)
        if fault == "reset":
            return self._reset(request)
        if fault == "few":
            del ask.seeds[max(1, len(ask.seeds) // 2) :]
        if body.get("stream"):
            return await self._stream(request, ask)
        needed_s = self.settings.latency_s + self.settings.token_s * ask.tokens
        if needed_s or self.settings.slots:
            async with self._place(needed_s):
                await asyncio.sleep(needed_s)
        return await self._reply(request, ask, fault)

    def _understand(self, body: Mapping[str, Any], path: str) -> Ask:
        if path == "score":
            return read_rating(body)
        return read_ask(body, self.settings, self._fresh, chat=path == "chat/completions")

    def _next_fault(self) -> str | None:
        scripted = next(self._script, None)
        if scripted is not None:
            return None if scripted == "ok" else scripted
        if not self.settings.faults:
            return None
        point = self._random.random()
        for name, chance in self.settings.faults.items():
            point -= chance
            if point < 0:
                return name
        return None

    async def _reply(
        self, request: web.BaseRequest, ask: Ask, fault: str | None
    ) -> web.StreamResponse:
        if fault == "type":
            return self._bytes(b"<html>busy</html>", "text/html")
        if fault == "shape":
            return self._json({"ok": True})
        data = json.dumps(ask.document(self.settings.usage)).encode()
        if fault == "garbled":
            return self._bytes(data[: len(data) // 2])
        if fault in {"half", "hang"}:
            return await self._half(request, data, hang=fault == "hang")
        self._answered(ask)
        return self._bytes(data)

    def _answered(self, ask: Ask) -> None:
        self._counts["answered"] += 1
        self._counts["choices"] += len(ask.seeds)
        self._counts["tokens"] += len(ask.seeds) * ask.tokens

    async def _half(
        self, request: web.BaseRequest, data: bytes, *, hang: bool
    ) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        response: web.StreamResponse = self._web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        if hang:
            async with self._place(_FOREVER_S):
                await asyncio.sleep(_FOREVER_S)
        if request.transport is not None:
            request.transport.close()
        return response

    def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            plug = request.transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        return self._bytes(b"")

    async def _stream(self, request: web.BaseRequest, ask: Ask) -> web.StreamResponse:
        own = self.settings
        headers = {"Content-Type": "text/event-stream"}
        response: web.StreamResponse = self._web.StreamResponse(headers=headers)
        with contextlib.suppress(ConnectionError):  # whoever asked has left
            async with self._place(own.latency_s + own.token_s * ask.tokens * len(ask.seeds)):
                await asyncio.sleep(own.latency_s)
                await response.prepare(request)
                for timed, event in ask.events(own.usage if own.stream_usage else "none"):
                    await asyncio.sleep(own.token_s if timed else 0)
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await response.write(b"data: [DONE]\n\n")
            self._answered(ask)
        return response

    @asynccontextmanager
    async def _place(self, needed_s: float) -> AsyncIterator[None]:
        """Hold a slot; after a lost connection, for as long as this server would work on."""
        loop = asyncio.get_running_loop()
        left_s = needed_s
        held = False
        try:
            await self._slots.acquire()
            held = True
            end = loop.time() + needed_s
            yield
            left_s = 0.0
        except (asyncio.CancelledError, ConnectionError):
            self._counts["cancelled"] += 1
            left_s = end - loop.time() if held and self.settings.cancel == "ignored" else 0.0
            raise
        finally:
            if held:
                loop.call_later(max(0.0, left_s), self._slots.release)

    def _bytes(self, data: bytes, kind: str = "application/json") -> web.StreamResponse:
        response: web.StreamResponse = self._web.Response(body=data, content_type=kind)
        return response

    def _json(self, document: object) -> web.StreamResponse:
        return self._bytes(json.dumps(document).encode())

    def _error(self, status: int, message: str) -> web.StreamResponse:
        response = self._json({"error": {"message": message, "code": status}})
        response.set_status(status)
        after_s = self.settings.retry_after_s
        if after_s is not None:
            date = formatdate(time.time() + after_s, usegmt=True)
            response.headers["Retry-After"] = (
                date if self.settings.retry_after_date else f"{after_s:g}"
            )
        return response


@contextmanager
def serve(settings: FakeSettings | None = None) -> Iterator[Fake]:
    """Run a fake in a thread of its own, for as long as the context lasts."""
    require("aiohttp.web", extra="serve")  # here, where it can be said
    started = threading.Event()
    stop: list[Callable[[], object]] = []
    fakes: list[Fake] = []

    async def main() -> None:
        fake = Fake(settings or FakeSettings())
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        fakes.append(fake)
        await fake.run(0, started.set, done)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake-openai", daemon=True)
    thread.start()
    if not started.wait(timeout=10):
        raise ConfigError("the fake upstream did not start within 10 s")
    try:
        yield fakes[0]
    finally:
        stop[0]()
        thread.join(timeout=10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve in this process until it is stopped; prints the port once it listens."""
    parser = argparse.ArgumentParser(description="A fake OpenAI-compatible upstream.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    for item in dataclasses.fields(FakeSettings):
        parser.add_argument(f"--{item.name.replace('_', '-')}", help=f"{item.type}")
    given = vars(parser.parse_args(arguments))
    port = given.pop("port")
    options = {name: _parse(name, text) for name, text in given.items() if text is not None}

    async def run() -> None:
        fake = Fake(FakeSettings(**options))

        def ready() -> None:
            sys.stdout.write(f"{fake.port}\n")
            sys.stdout.flush()

        await fake.run(port, ready, asyncio.Event())

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def _parse(name: str, text: str) -> Any:  # noqa: ANN401 - the type of the field
    if name == "faults":
        pairs = (pair.partition("=") for pair in text.split(","))
        return {fault: float(chance) for fault, _, chance in pairs}
    kind = {item.name: str(item.type) for item in dataclasses.fields(FakeSettings)}[name]
    if kind.startswith("tuple"):
        return tuple(text.split(","))
    if kind == "bool":
        return text.lower() in {"1", "true", "yes", "on"}
    if kind.startswith("float"):
        return float(text)
    return int(text) if kind.startswith("int") else text


if __name__ == "__main__":
    main()
