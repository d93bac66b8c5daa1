"""/ready follows the upstream: not ready after repeated failures, ready when it answers again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.upstream_health import MAX_FAILURES
from adacompute.testing.gateways import send
from adacompute.testing.scripted import ScriptedReply, ScriptedServer

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
    with launch() as port:

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
