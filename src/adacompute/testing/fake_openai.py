"""Fake upstream: an OpenAI-compatible server with configurable behaviour and injected faults.

It serves real sockets, counts what it served and returns the counts at /stats. ``FakeSettings``
says how it treats n, seeds, usage, token limits and disconnects, and which faults it injects how
often. It also has a scorer, at /v1/score. It is not a model: use it to test protocols, faults and
load, not answers. In a thread of a test:

    with serve_fake(FakeSettings(latency_s=0.02, fault_rates={"429": 0.1})) as fake: ...

or as a process, which prints its port:

    python -m adacompute.testing.fake_openai --latency-s 0.02 --fault-rates 429=0.1,reset=0.05
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

from adacompute.core.errors import ConfigError, MissingExtra, needs_extra
from adacompute.testing.fake_answers import (
    FAULTS,
    FakeRequest,
    FakeSettings,
    UnknownQuestionError,
    parse_embedding_request,
    parse_fake_request,
    parse_score_request,
)
from adacompute.testing.fake_responses import FakeResponseRequest, chat_members
from adacompute.testing.lockstep import Lockstep

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["FAULTS", "FakeSettings", "FakeUpstream", "main", "serve_fake"]

_FOREVER_S = 3600.0
_STATUSES = {"429": 429, "500": 500, "502": 502, "503": 503}
_COUNTS = ("calls", "answered", "rejected", "choices", "tokens", "cancelled", "open", "peak")


class FakeUpstream:
    """A fake server with its settings and counters; everything runs in its own event loop."""

    def __init__(self, settings: FakeSettings) -> None:
        self.settings = settings
        self.port = 0
        with needs_extra("serve"):
            from aiohttp import web

        self._web = web
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._calls: list[dict[str, Any]] = []
        self._script = iter(settings.fault_script)
        self._random = random.Random(settings.seed)  # noqa: S311 - no secrets
        self._new_seeds = itertools.count((settings.seed + 1) << 32)
        self._slots = asyncio.Semaphore(settings.max_concurrency or 1_000_000)
        self._lockstep = Lockstep(settings.lockstep, settings.lockstep_s)

    @property
    def base_url(self) -> str:
        """URL to give to a client."""
        return f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> dict[str, Any]:
        """Counts of everything served so far.

        ``calls`` counts all requests, ``answered`` those answered in full; ``choices`` and
        ``tokens`` belong to the latter. ``cancelled`` requests lost their client. ``open`` is the
        number of requests in progress and ``peak`` its maximum.
        """
        return {**{name: self._counts[name] for name in _COUNTS}, "faults": dict(self._faults)}

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls so far, which /calls lists, if they are recorded."""
        return list(self._calls)

    async def run(self, port: int, ready: Callable[[], None], done: asyncio.Event) -> None:
        """Serve on the loopback interface until `done`; port 0 picks a free one."""
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
        pages: dict[str, dict[str, Any]] = {
            "/stats": self.stats(),
            "/calls": {"calls": self.calls()},
            "/health": {"status": "ok"},
            "models": {"object": "list", "data": [{"id": "fake", "object": "model"}]},
        }
        if path in pages:
            return self._json(pages[path])
        return self._error(404, f"there is no {request.path}")

    async def _serve(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        fault, number = self._next_fault(), self._counts["calls"]
        try:
            body = json.loads(await request.read())
            fake_request = self._parse(body, path)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._counts["rejected"] += 1
            return self._error(404 if isinstance(error, UnknownQuestionError) else 400, str(error))
        if fault is not None:
            self._faults[fault] += 1
        if self.settings.record_calls:
            self._record(request, path, fake_request, fault)
        if number <= len(self.settings.fault_script):
            await self._lockstep.wait()
        if fault in _STATUSES:
            return self._error(_STATUSES[fault], f"the fake {FAULTS[fault]}")
        if fault == "stall":
            async with self._slot(_FOREVER_S):
                await asyncio.sleep(_FOREVER_S)
        if fault == "reset":
            return self._reset(request)
        if fault == "few":
            del fake_request.seeds[max(1, len(fake_request.seeds) // 2) :]
        if body.get("stream"):
            return await self._stream(request, fake_request)
        settings = self.settings
        duration_s = settings.latency_s + settings.token_latency_s * fake_request.tokens
        if duration_s or settings.max_concurrency:
            async with self._slot(duration_s):
                await asyncio.sleep(duration_s)
        return await self._reply(request, fake_request, fault)

    def _parse(self, body: Mapping[str, Any], path: str) -> FakeRequest:
        if path == "score":
            return parse_score_request(body)
        if path == "embeddings":
            return parse_embedding_request(body)
        if path == "responses":
            asked = parse_fake_request(
                chat_members(body), self.settings, self._new_seeds, chat=True
            )
            return FakeResponseRequest(**vars(asked))
        chat = path == "chat/completions"
        return parse_fake_request(body, self.settings, self._new_seeds, chat=chat)

    def _record(
        self, request: web.BaseRequest, path: str, fake_request: FakeRequest, fault: str | None
    ) -> None:
        """Record what a call costs: nothing if it is refused, else everything it asks for.

        A call that breaks off is recorded as if the rest were generated and charged.
        """
        is_refused = fault in _STATUSES
        n_choices = len(fake_request.seeds)
        n_choices = max(1, n_choices // 2) if fault == "few" else n_choices
        usage = (len(fake_request.prompt.split()), n_choices * fake_request.tokens)
        prompt_tokens, completion_tokens = (0, 0) if is_refused else usage
        self._calls.append(
            {
                "request": request.headers.get("x-request-id", ""),
                "path": path,
                "fault": fault,
                "is_refused": is_refused,
                "choices": 0 if is_refused else n_choices,
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
            }
        )

    def _next_fault(self) -> str | None:
        scripted = next(self._script, None)
        if scripted is not None:
            return None if scripted == "ok" else scripted
        return self._draw(self.settings.fault_rates)

    def _draw(self, rates: Mapping[str, float]) -> str | None:
        """Draw a name with its probability, or None with what is left."""
        uniform = self._random.random() if rates else 1.0
        for name, rate in rates.items():
            uniform -= rate
            if uniform < 0:
                return name
        return None

    async def _reply(
        self, request: web.BaseRequest, fake_request: FakeRequest, fault: str | None
    ) -> web.StreamResponse:
        if fault == "type":
            return self._bytes(b"<html>busy</html>", "text/html")
        if fault == "shape":
            return self._json({"ok": True})
        usage = self._draw(self.settings.usage_rates) or self.settings.usage
        data = json.dumps(fake_request.document(usage)).encode()
        if fault == "garbled":
            return self._bytes(data[: len(data) // 2])
        if fault in {"half", "hang"}:
            return await self._half(request, data, hang=fault == "hang")
        self._count_answer(fake_request)
        return self._bytes(data)

    def _count_answer(self, fake_request: FakeRequest) -> None:
        self._counts["answered"] += 1
        self._counts["choices"] += len(fake_request.seeds)
        self._counts["tokens"] += len(fake_request.seeds) * fake_request.tokens

    async def _half(
        self, request: web.BaseRequest, data: bytes, *, hang: bool
    ) -> web.StreamResponse:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        response: web.StreamResponse = self._web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        if hang:
            async with self._slot(_FOREVER_S):
                await asyncio.sleep(_FOREVER_S)
        if request.transport is not None:
            request.transport.close()
        return response

    def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            connection = request.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.transport.abort()
        return self._bytes(b"")

    async def _stream(
        self, request: web.BaseRequest, fake_request: FakeRequest
    ) -> web.StreamResponse:
        settings = self.settings
        headers = {"Content-Type": "text/event-stream"}
        response: web.StreamResponse = self._web.StreamResponse(headers=headers)
        n_tokens = fake_request.tokens * len(fake_request.seeds)
        usage = self._draw(settings.usage_rates) or settings.usage
        usage = usage if settings.stream_usage else "none"
        with contextlib.suppress(ConnectionError):  # the client disconnected
            async with self._slot(settings.latency_s + settings.token_latency_s * n_tokens):
                await asyncio.sleep(settings.latency_s)
                await response.prepare(request)
                for is_token, event in fake_request.events(usage):
                    await asyncio.sleep(settings.token_latency_s if is_token else 0)
                    await response.write(fake_request.encode_event(event))
                await response.write(fake_request.end)
            self._count_answer(fake_request)
        return response

    @asynccontextmanager
    async def _slot(self, duration_s: float) -> AsyncIterator[None]:
        """Occupy a slot; if the client disconnects and `cancel` is ignored, until the work ends."""
        loop = asyncio.get_running_loop()
        remaining_s = duration_s
        acquired = False
        try:
            await self._slots.acquire()
            acquired = True
            end = loop.time() + duration_s
            yield
            remaining_s = 0.0
        except (asyncio.CancelledError, ConnectionError):
            self._counts["cancelled"] += 1
            works_on = acquired and self.settings.cancel == "ignored"
            remaining_s = end - loop.time() if works_on else 0.0
            raise
        finally:
            if acquired:
                loop.call_later(max(0.0, remaining_s), self._slots.release)

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
def serve_fake(settings: FakeSettings | None = None) -> Iterator[FakeUpstream]:
    """Run a fake server in a background thread while the context is open."""
    with needs_extra("serve"):  # raise here rather than in the thread
        import aiohttp.web  # noqa: F401
    started = threading.Event()
    stop: list[Callable[[], object]] = []
    fakes: list[FakeUpstream] = []

    async def main() -> None:
        fake = FakeUpstream(settings or FakeSettings())
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
    """Serve in this process until it is stopped; prints the port when ready."""
    parser = argparse.ArgumentParser(description="A fake OpenAI-compatible upstream.")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    for item in dataclasses.fields(FakeSettings):
        parser.add_argument(f"--{item.name.replace('_', '-')}", help=f"{item.type}")
    given = vars(parser.parse_args(arguments))
    port = given.pop("port")
    options = {name: _parse(name, text) for name, text in given.items() if text is not None}

    async def run() -> None:
        fake = FakeUpstream(FakeSettings(**options))

        def ready() -> None:
            sys.stdout.write(f"{fake.port}\n")
            sys.stdout.flush()

        await fake.run(port, ready, asyncio.Event())

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())


def _parse(name: str, text: str) -> Any:  # noqa: ANN401 - the type of the field
    if name in {"fault_rates", "usage_rates"}:
        pairs = (pair.partition("=") for pair in text.split(","))
        return {fault: float(rate) for fault, _, rate in pairs}
    type_name = {item.name: str(item.type) for item in dataclasses.fields(FakeSettings)}[name]
    if type_name.startswith("tuple"):
        return tuple(text.split(","))
    if type_name == "bool":
        return text.lower() in {"1", "true", "yes", "on"}
    if type_name.startswith("float"):
        return float(text)
    return int(text) if type_name.startswith("int") else text


if __name__ == "__main__":
    try:
        main()
    except MissingExtra as error:
        sys.exit(f"{error}")
