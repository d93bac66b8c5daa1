"""A failing upstream: the gateway is not ready, spares the upstream, and recovers with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.forwarding.upstream_health import CHECK_INTERVAL_S, UpstreamHealth
from test_support.gateways import send
from test_support.scripted import ScriptedReply, ScriptedServer

MAX_FAILURES = 5
Launch = Callable[..., AbstractContextManager[int]]
BODY = b'{"model": "%s", "messages": [{"role": "user", "content": "2 + 2?"}]}'
FAILURE = ScriptedReply(500, [("Content-Type", "application/json")], [b'{"error": {}}'])
SUCCESS = ScriptedReply(
    200,
    [("Content-Type", "application/json")],
    [b'{"choices": [{"index": 0, "message": {"content": "4"}, "finish_reason": "stop"}]}'],
)


def state(port: int) -> tuple[int, str]:
    reply = send(port + 1, "GET", "/ready")
    return reply.status, json.loads(reply.body)["status"]


def wait_for(port: int, expected: tuple[int, str]) -> None:
    end = time.monotonic() + 60
    while state(port) != expected:
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("model", [b"thrifty", b"other"])
def test_ready_follows_the_upstream(model: bytes, launch: Launch, upstream: ScriptedServer) -> None:
    with launch(max_upstream_failures=MAX_FAILURES) as port:

        def ask(n: int) -> None:
            for _ in range(n):
                send(port, "POST", "/v1/chat/completions", body=BODY % model)

        upstream.answer(FAILURE)
        ask(MAX_FAILURES - 1)
        upstream.answer(SUCCESS)
        ask(1)
        upstream.answer(FAILURE)
        ask(MAX_FAILURES - 1)
        time.sleep(1.5)  # workers report twice per second
        assert state(port) == (200, "ready")
        ask(1)
        wait_for(port, (503, "upstream failing"))
        upstream.answer(SUCCESS)
        wait_for(port, (200, "ready"))


def test_an_upstream_that_answers_nothing_is_not_asked_for_every_request(
    launch: Launch, upstream: ScriptedServer
) -> None:
    with launch(max_upstream_failures=MAX_FAILURES) as port:
        upstream.answer(FAILURE)
        for _ in range(MAX_FAILURES):
            send(port, "POST", "/v1/chat/completions", body=BODY % b"other")
        wait_for(port, (503, "upstream failing"))
        upstream.received.clear()
        begun = time.monotonic()
        replies = [
            send(port, "POST", "/v1/chat/completions", body=BODY % b"other") for _ in range(50)
        ]
        # One request and one check every two seconds, and a request for each of both at once.
        allowed = 2 * (2 + (time.monotonic() - begun) / CHECK_INTERVAL_S)
        assert len(upstream.received) <= allowed
        codes = [json.loads(reply.body)["error"].get("code") for reply in replies]
        assert codes.count("upstream_failing") >= 50 - allowed
        rejected = replies[codes.index("upstream_failing")]
        assert (rejected.status, rejected.values("retry-after")) == (503, ["1"])
        upstream.answer(SUCCESS)
        wait_for(port, (200, "ready"))
        assert send(port, "POST", "/v1/chat/completions", body=BODY % b"other").status == 200


def test_a_client_whose_requests_fail_does_not_keep_others_out() -> None:
    async def main() -> tuple[bool, bool]:
        checks: list[bool] = []

        async def check() -> bool:
            checks.append(True)
            return True

        health = UpstreamHealth(check, MAX_FAILURES)
        for _ in range(3 * MAX_FAILURES):
            health.record(is_failure=True)
            await asyncio.sleep(0)
        found = health.admits() and health.admits(), bool(checks)
        await health.close()
        return found

    assert asyncio.run(main()) == (True, True)


def test_a_request_that_succeeds_admits_all_others() -> None:
    async def main() -> list[bool]:
        async def check() -> bool:
            return False

        health = UpstreamHealth(check, MAX_FAILURES)
        for _ in range(MAX_FAILURES):
            health.record(is_failure=True)
        await asyncio.sleep(0)
        found = [health.admits()]
        health.record(is_failure=False)
        found.append(health.admits())
        await health.close()
        return found

    assert asyncio.run(main()) == [False, True]
