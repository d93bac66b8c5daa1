"""A failing upstream: the gateway is not ready, spares the upstream, and recovers with it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.gateway.forwarding import upstream_health
from adacompute.gateway.forwarding.upstream_health import (
    ADMIT_INTERVAL_S,
    CHECK_INTERVAL_S,
    MAX_FAILURES,
    WINDOW,
    UpstreamHealth,
)
from adacompute.gateway.settings.config import make_config
from adacompute.storage.calls import read_calls
from test_support.gateways import free_port, send, serve_gateway
from test_support.scripted import ReceivedRequest, ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
CHAT = "/v1/chat/completions"
BODY = b'{"model": "%s", "messages": [{"role": "user", "content": "2 + 2?"}]}'
FAILURE = ScriptedReply(500, JSON, [b'{"error": {}}'])
REJECTION = ScriptedReply(400, JSON, [b'{"error": {}}'])
ANSWER = (
    b'{"choices": [{"index": 0, "message": {"content": "4"}, "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 9, "completion_tokens": 1}}'
)
SUCCESS = ScriptedReply(200, JSON, [ANSWER])


def fail_completions(request: ReceivedRequest) -> ScriptedReply:
    """Answer everything but completions."""
    return FAILURE if request.method == "POST" else ScriptedReply(200, JSON, [b'{"data": []}'])


def fail_checks(request: ReceivedRequest) -> ScriptedReply:
    """Answer everything but the gateway's own completions."""
    return FAILURE if b"Say yes." in request.body else SUCCESS


def ask(port: int, n: int = 1, model: bytes = b"other") -> list[int]:
    return [send(port, "POST", CHAT, headers=JSON, body=BODY % model).status for _ in range(n)]


def state(port: int) -> tuple[int, str]:
    reply = send(port, "GET", "/ready")
    return reply.status, json.loads(reply.body)["status"]


def wait_for(port: int, expected: tuple[int, str]) -> None:
    end = time.monotonic() + 60
    while state(port) != expected:
        assert time.monotonic() < end
        time.sleep(0.1)


def causes(port: int) -> set[str]:
    """Return the causes of which the gauge is 1."""
    shown = send(port, "GET", "/metrics").body.decode().splitlines()
    lines = [line for line in shown if line.startswith("adacompute_not_ready{")]
    assert len(lines) > 5
    return {line.split('"')[1] for line in lines if line.endswith(" 1.0")}


@pytest.mark.parametrize("model", [b"thrifty", b"other"])
def test_ready_follows_completions_and_not_the_list_of_models(
    model: bytes, launch: Launch, upstream: ScriptedServer, tmp_path: Path
) -> None:
    settings = f'state_directory = "{tmp_path}"'
    with launch(check_upstream=True, settings=settings) as port:
        upstream.answer(fail_completions)
        ask(port, MAX_FAILURES, model)
        send(port, "GET", "/v1/models")  # its success says nothing of completions
        time.sleep(1.5)  # workers report twice per second
        assert state(port + 1) == (200, "ready")
        assert causes(port + 1) == set()
        ask(port, 1, model)
        wait_for(port + 1, (503, "upstream failing"))
        assert causes(port + 1) == {"upstream"}
        sent = [json.loads(one.body) for one in upstream.received if b"Say yes." in one.body]
        assert [(one["model"], one["max_tokens"]) for one in sent] == [("real", 1)]
        upstream.answer(SUCCESS)
        begun = time.monotonic()
        wait_for(port + 1, (200, "ready"))
        assert time.monotonic() - begun < CHECK_INTERVAL_S + 5
        assert causes(port + 1) == set()
    probes = [call for call in read_calls(tmp_path) if call["purpose"] == "probe"]
    assert [call["client"] for call in probes] == ["-", "-"]
    assert [call["completion_tokens"] for call in probes] == [0, 1]


def test_an_upstream_that_answers_nothing_is_not_asked_for_every_request(
    launch: Launch, upstream: ScriptedServer
) -> None:
    with launch(check_upstream=True) as port:
        upstream.answer(FAILURE)
        ask(port, MAX_FAILURES + 1)
        wait_for(port + 1, (503, "upstream failing"))
        upstream.received.clear()
        begun = time.monotonic()
        replies = [send(port, "POST", CHAT, headers=JSON, body=BODY % b"other") for _ in range(50)]
        # One request every two seconds, one check every ten, and one of each at once.
        taken_s = time.monotonic() - begun
        allowed = 2 + taken_s / ADMIT_INTERVAL_S + taken_s / CHECK_INTERVAL_S
        assert len(upstream.received) <= allowed
        codes = [json.loads(reply.body)["error"].get("code") for reply in replies]
        assert codes.count("upstream_failing") >= 50 - allowed
        rejected = replies[codes.index("upstream_failing")]
        assert (rejected.status, rejected.values("retry-after")) == (503, ["1"])
        upstream.answer(SUCCESS)
        wait_for(port + 1, (200, "ready"))
        assert ask(port) == [200]


def settings_of(base_url: str, **more: Any) -> dict[str, Any]:
    return {"base_url": base_url, "probe": False, "max_attempts": 1, **more}


def model_settings(policies: Path) -> dict[str, Any]:
    model = {"bundle": str(policies / "one"), "budget": 1, "model": "real", "grader": "numeric"}
    return {"models": {"single": model}}


def test_a_refused_connection_is_a_failure(policies: Path) -> None:
    config = settings_of(f"http://127.0.0.1:{free_port()}/v1", **model_settings(policies))
    with serve_gateway(make_config(config)) as port:
        assert ask(port, 5) + ask(port, 4, b"single") == [502] * 9
        assert state(port) == (503, "upstream failing")


def test_a_timeout_is_a_failure(upstream: ScriptedServer, policies: Path) -> None:
    upstream.answer(ScriptedReply(200, JSON, [1.0, b"{}"]))
    config = settings_of(upstream.base_url, first_byte_timeout_s=0.1, **model_settings(policies))
    with serve_gateway(make_config(config)) as port:
        assert ask(port, 5) + ask(port, 4, b"single") == [504] * 9
        assert state(port) == (503, "upstream failing")


def test_rejections_are_neither_failures_nor_successes(
    upstream: ScriptedServer, policies: Path
) -> None:
    config = make_config(settings_of(upstream.base_url, max_samples=2, **model_settings(policies)))
    with serve_gateway(config) as port:
        upstream.answer(*[FAILURE] * MAX_FAILURES, REJECTION)
        assert ask(port, MAX_FAILURES) == [500] * MAX_FAILURES
        assert ask(port, 2 * WINDOW) == [400] * (2 * WINDOW)
        many = b'{"model": "other", "n": 3, "messages": []}'
        assert send(port, "POST", CHAT, headers=JSON, body=many).status == 403
        upstream.answer(FAILURE)
        assert state(port) == (200, "ready")
        assert ask(port) == [500]
        assert state(port) == (503, "upstream failing")


def test_requests_that_succeed_make_the_gateway_ready(
    upstream: ScriptedServer, policies: Path
) -> None:
    with serve_gateway(
        make_config(settings_of(upstream.base_url, **model_settings(policies)))
    ) as port:
        upstream.answer(FAILURE)
        ask(port, WINDOW)
        assert state(port) == (503, "upstream failing")
        upstream.answer(fail_checks)
        time.sleep(ADMIT_INTERVAL_S)
        assert ask(port) == [200]  # one is admitted although the check failed, then all are
        assert state(port) == (503, "upstream failing")
        assert ask(port) == [200]
        assert state(port) == (200, "ready")


def test_without_a_virtual_model_the_last_model_that_answered_is_asked(
    upstream: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_health, "CHECK_INTERVAL_S", 0.2)
    with serve_gateway(make_config(settings_of(upstream.base_url))) as port:
        upstream.answer(fail_completions)
        ask(port, MAX_FAILURES + 1)
        wait_for(port, (200, "ready"))  # no model is known to work: the list must do
        assert [one.target for one in upstream.received if one.method == "GET"] == ["/v1/models"]
        upstream.answer(SUCCESS)
        assert ask(port, 1, b"known") == [200]
        time.sleep(0.3)  # failures count again
        upstream.answer(fail_completions)
        ask(port, WINDOW)
        assert state(port) == (503, "upstream failing")
        time.sleep(1)
        assert state(port) == (503, "upstream failing")
        sent = [json.loads(one.body) for one in upstream.received if b"Say yes." in one.body]
        assert {one["model"] for one in sent} == {"known"}
        upstream.answer(SUCCESS)
        wait_for(port, (200, "ready"))


def test_a_cap_forbids_checks_and_refuses_nothing_else(
    upstream: ScriptedServer, policies: Path, tmp_path: Path
) -> None:
    cap = {"model": "single", "unit": "tokens", "amount": 1, "period": "all"}
    config = settings_of(upstream.base_url, caps=[cap], max_output_tokens=5)
    config |= {"state_directory": str(tmp_path), **model_settings(policies)}
    with serve_gateway(make_config(config)) as port:
        upstream.answer(FAILURE)
        assert ask(port, 2 * WINDOW) == [500] * (2 * WINDOW)
        assert state(port) == (503, "upstream failing")
        assert not any(b"Say yes." in one.body for one in upstream.received)


def test_one_client_does_not_turn_readiness_off_again_and_again(
    upstream: ScriptedServer, policies: Path
) -> None:
    config = settings_of(upstream.base_url, **model_settings(policies))
    with serve_gateway(make_config(config)) as port:
        upstream.answer(lambda one: SUCCESS if b"Say yes." in one.body else FAILURE)
        ask(port, WINDOW)
        wait_for(port, (200, "ready"))
        ask(port, 3 * WINDOW)
        assert state(port) == (200, "ready")
        assert sum(b"Say yes." in one.body for one in upstream.received) == 1


def test_the_check_can_be_turned_off(upstream: ScriptedServer, policies: Path) -> None:
    config = settings_of(upstream.base_url, check_upstream=False, **model_settings(policies))
    with serve_gateway(make_config(config)) as port:
        upstream.answer(FAILURE)
        ask(port, 2 * WINDOW)
        assert state(port) == (200, "ready")
        assert len(upstream.received) == 2 * WINDOW


def test_a_client_whose_requests_fail_does_not_keep_others_out() -> None:
    async def main() -> tuple[bool, bool]:
        checks: list[bool] = []

        async def check() -> bool:
            checks.append(True)
            return True

        health = UpstreamHealth(check)
        for _ in range(3 * WINDOW):
            health.record(is_failure=True)
            await asyncio.sleep(0)
        found = health.admits() and health.admits(), bool(checks)
        await health.close()
        return found

    assert asyncio.run(main()) == (True, True)


@pytest.mark.parametrize("answers", [False, None])
def test_requests_are_refused_only_if_a_check_fails(answers: Literal[False] | None) -> None:
    async def main() -> list[bool]:
        async def check() -> bool | None:
            return answers

        health = UpstreamHealth(check)
        for _ in range(MAX_FAILURES + 1):
            health.record(is_failure=True)
        await asyncio.sleep(0)
        found = [health.is_failing, health.admits()]
        health.record(is_failure=False)
        found.append(health.admits())
        await health.close()
        return found

    assert asyncio.run(main()) == [True, answers is None, True]


def test_a_check_that_breaks_is_started_again_with_the_next_failure() -> None:
    async def main() -> int:
        checks: list[bool] = []

        async def check() -> bool:
            checks.append(True)
            raise RuntimeError

        health = UpstreamHealth(check)
        for _ in range(MAX_FAILURES + 2):
            health.record(is_failure=True)
            await asyncio.sleep(0.01)
        await health.close()
        return len(checks)

    assert asyncio.run(main()) == 2
