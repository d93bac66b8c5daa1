"""Messages to clients say what clients can do; what operators can do is in the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ModelError
from adacompute.gateway.connection.exchange import Exchange
from adacompute.gateway.error_replies import ADVICE, ERROR_CODES, send_error
from adacompute.gateway.settings.config import Config
from adacompute.gateway.voting.voting import NEEDS_VOTES
from test_support.gateways import free_port, send
from test_support.scripted import ScriptedReply, ScriptedServer

Launch = Callable[..., AbstractContextManager[int]]
CHAT = "/v1/chat/completions"
JSON = ("Content-Type", "application/json")
SETTINGS = {field.name for field in fields(Config) if "_" in field.name}
CAP = '[[serve.caps]]\namount = 1\nunit = "samples"\nperiod = "all"\n'


def body(model: str) -> bytes:
    content = [{"role": "user", "content": "2 + 2?"}]
    return json.dumps({"model": model, "messages": content}).encode()


REQUESTS: dict[str, dict[str, Any]] = {
    "allowed_paths": {"target": "/v1/files", "body": b"{}"},
    "bearer_tokens": {"headers": [JSON, ("Host", "example.org")]},
    "is the server running": {"base_url": True},
    "raise the cap": {"settings": CAP},
    "change the base URL": {"redirects": True},
}


@pytest.mark.parametrize("advice", REQUESTS)
def test_advice_for_operators_is_in_the_log_only(
    advice: str, launch: Launch, upstream: ScriptedServer, policies: Path, tmp_path: Path
) -> None:
    case = REQUESTS[advice]
    location = [("Location", "http://10.1.2.3:9/v1/internal")]
    upstream.answer(ScriptedReply(307 if "redirects" in case else 200, location, [b"{}"]))
    base_url = f"http://127.0.0.1:{free_port()}/v1" if "base_url" in case else ""
    settings = f'state_directory = "{tmp_path}"\n' + case.get("settings", "")
    with launch(settings=settings, base_url=base_url, all_paths=False) as port:
        target, headers = case.get("target", CHAT), case.get("headers", [JSON])
        reply = send(port, "POST", target, headers=headers, body=body("thrifty"))
    message = json.loads(reply.body)["error"]["message"]
    assert reply.status >= 400
    assert advice not in message
    assert not any(name in message for name in SETTINGS)
    assert "10.1.2.3" not in message
    told = (policies / f"gateway-{port}.log").read_text()
    assert advice in told


def test_every_advice_has_a_code() -> None:
    assert set(ADVICE) <= set(ERROR_CODES)


def test_a_model_error_is_sent_without_its_advice() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {}

    async def collect(message: Any) -> None:
        sent.append(message)

    error = ModelError(f"no log-probabilities{NEEDS_VOTES}")
    error.advice = NEEDS_VOTES
    exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, collect)
    asyncio.run(send_error(exchange, error, bytes))
    assert json.loads(sent[-1]["body"])["error"]["message"] == "no log-probabilities"
    assert exchange.error == str(error)
