"""Tests of the LiteLLM example, inside one process and with the real LiteLLM proxy."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import litellm
import pytest
from adaptive_provider import provider

from conftest import MODEL, Server, running, wait_until_up
from test_support.gateways import free_port

HERE = Path(__file__).parent
QUESTIONS = [f"What is {n} + {n}?" for n in range(5)]
KEY = f"sk-{secrets.token_hex(32)}"
CAPPED = """max_samples = 64
max_output_tokens = 100
state_directory = "state"
caps = [{ amount = 1e8, unit = "tokens" }]"""


@pytest.fixture
def proxy(upstream: Server, gateway: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run the LiteLLM proxy, with the fake and a gateway as its upstreams."""
    monkeypatch.setenv("LITELLM_MASTER_KEY", KEY)  # the proxy does not start without one
    for name, server in (("UPSTREAM", upstream), ("GATEWAY", gateway)):
        monkeypatch.setenv(f"{name}_URL", server.base_url)
        monkeypatch.setenv(f"{name}_KEY", "none")
    port = free_port()
    program = str(Path(sys.executable).with_name("litellm"))
    options = ("--host", "127.0.0.1", "--port", str(port), "--telemetry", "False")
    command = (program, "--config", "proxy.yaml", *options)
    with running(*command, folder=HERE, stdout=subprocess.DEVNULL) as process:
        wait_until_up(process, f"http://127.0.0.1:{port}/health/liveliness")
        yield Server(port)


def ask(server: Server, model: str, question: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Send one chat; return the reply and its headers, with names in lower case."""
    chat = {"model": model, "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(
        f"{server.base_url}/chat/completions", json.dumps(chat).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply), {name.lower(): value for name, value in reply.headers.items()}


def test_the_provider_in_one_process(upstream: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [{"provider": "adacompute", "custom_handler": provider}]
    monkeypatch.setattr(litellm, "custom_provider_map", handlers)
    server = {"api_base": upstream.base_url, "api_key": "none"}
    replies = [
        litellm.completion("adacompute/openai/fake", [{"role": "user", "content": one}], **server)
        for one in QUESTIONS
    ]
    counts = upstream.counts()
    assert sum(one.adacompute["samples"] for one in replies) == counts["choices"] > len(QUESTIONS)
    assert sum(one.usage.completion_tokens for one in replies) == counts["tokens"]
    assert all(one.adacompute["answer"] in one.choices[0].message.content for one in replies)


def check_provider(proxy: Server, upstream: Server) -> None:
    before = upstream.counts()
    replies = [ask(proxy, "adaptive", question)[0] for question in QUESTIONS]
    after = upstream.counts()
    assert after["choices"] - before["choices"] > len(QUESTIONS)
    tokens = sum(one["usage"]["completion_tokens"] for one in replies)
    assert tokens == after["tokens"] - before["tokens"]
    assert (
        sum(one["adacompute"]["samples"] for one in replies) == after["choices"] - before["choices"]
    )


def check_gateway_behind_proxy(proxy: Server) -> None:
    for question in QUESTIONS:
        reply, headers = ask(proxy, "adaptive-gateway", question)
        n_samples = int(headers["llm_provider-x-adacompute-samples"])
        assert reply["usage"]["completion_tokens"] == 4 * n_samples  # the fake's answers have 4


def check_proxy_behind_gateway(gateway: Server, upstream: Server) -> None:
    before = upstream.counts()
    replies = [ask(gateway, MODEL, question) for question in QUESTIONS]
    after = upstream.counts()
    drawn = sum(int(headers["x-adacompute-samples"]) for _, headers in replies)
    assert drawn == after["choices"] - before["choices"] > len(QUESTIONS)
    tokens = sum(reply["usage"]["completion_tokens"] for reply, _ in replies)
    assert tokens == after["tokens"] - before["tokens"]


@pytest.mark.parametrize("limits", ["", CAPPED], ids=["without caps", "with caps"])
def test_the_proxy(
    upstream: Server,
    proxy: Server,
    serve: Callable[[str], Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One test, because a proxy takes long to start.
    check_provider(proxy, upstream)
    check_gateway_behind_proxy(proxy)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    check_proxy_behind_gateway(serve(proxy.base_url), upstream)
