"""Upstreams of models and arms: where requests go, with which key, and when one is away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from adacompute.core.errors import ConfigError
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.stages.serve import check_serving, configure
from adacompute.storage.calls import read_calls
from test_support.arm_policies import CAREFUL, QUICK, escalating_policy, save_arms
from test_support.gateways import GatewayReply, fetch, free_port, send, serve_gateway
from test_support.recorded_upstream import UpstreamProcess
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply, serve_scripted
from test_support.spend import compare_spend

for library in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(library, reason="needs the extra 'serve'")

Launch = Callable[..., AbstractContextManager[int]]
JSON = [("Content-Type", "application/json")]
CHAT = "/v1/chat/completions"
URL = "http://127.0.0.1:9/v1"
KEYS = {"own": "sk-own-0123456789", "quick": "sk-quick-0123456789", "careful": "sk-careful-012345"}


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(text: str, model: str = "other", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": [user(text)], **more}).encode()


def ask(port: int, body: bytes, path: str = CHAT) -> GatewayReply:
    return send(port, "POST", path, headers=JSON, body=body)


@contextmanager
def serve_scripted_servers(n: int) -> Iterator[list[ScriptedServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(serve_scripted()) for _ in range(n)]
        for server in servers:
            server.answer(chat_reply("It is 4."))
        yield servers


@contextmanager
def serve_arms(path: Path, **more: Any) -> Iterator[tuple[dict[str, ScriptedServer], int]]:
    """A gateway with an upstream of its own, and one for each arm."""
    bundle = save_arms(escalating_policy(), path / "arms", arms=(QUICK, CAREFUL))
    with serve_scripted_servers(3) as servers:
        named = dict(zip(KEYS, servers, strict=True))
        model = {
            "bundle": str(bundle),
            "budget": 2,
            "grader": "numeric",
            "arm_upstreams": {"quick": "fast", "careful": "slow"},
        }
        config = make_config(
            {
                "base_url": named["own"].base_url,
                "upstream_api_key": KEYS["own"],
                "upstreams": {
                    "fast": {
                        "base_url": named["quick"].base_url,
                        "upstream_api_key": KEYS["quick"],
                    },
                    "slow": {
                        "base_url": named["careful"].base_url,
                        "upstream_api_key": KEYS["careful"],
                    },
                },
                "models": {"virtual": model},
                "probe": False,
                "max_attempts": 1,
                **more,
            }
        )
        assert not any(key in repr(config) for key in KEYS.values())
        with serve_gateway(config) as port:
            yield named, port


@pytest.mark.parametrize("forward_key", [False, True])
def test_each_arm_is_sampled_at_its_upstream_with_its_key_only(
    tmp_path: Path, *, forward_key: bool
) -> None:
    with serve_arms(tmp_path, forward_key=forward_key) as (named, port):
        headers = [*JSON, ("Authorization", "Bearer sk-client-0123"), ("x-api-key", "sk-client-2")]
        voted = send(port, "POST", CHAT, headers=headers, body=chat("2 + 2?", "virtual"))
        other = send(port, "POST", CHAT, headers=headers, body=chat("2 + 2?"))
        tools = chat("2 + 2?", "virtual", tools=[{"type": "function"}])
        forwarded = send(port, "POST", CHAT, headers=headers, body=tools)
        assert [voted.status, other.status, forwarded.status] == [200, 200, 200]
        received = {arm: server.received for arm, server in named.items()}
    models = {arm: [json.loads(one.body)["model"] for one in got] for arm, got in received.items()}
    assert models == {"own": ["other"], "quick": ["small", "small"], "careful": ["large"]}
    for arm, key in KEYS.items():
        is_clients = forward_key and arm == "own"
        for one in received[arm]:
            expected = "Bearer sk-client-0123" if is_clients else f"Bearer {key}"
            assert one.values("authorization") == [expected]
            others = [other for other in KEYS.values() if other != key]
            foreign = others if is_clients else [*others, "sk-client"]
            assert not any(secret.encode() in one.head + one.body for secret in foreign)


def test_errors_of_an_arm_show_neither_its_key_nor_its_address(tmp_path: Path) -> None:
    with serve_arms(tmp_path) as (named, port):
        for status in (400, 500):
            text = f"the key {KEYS['quick']} is wrong"
            document = json.dumps({"error": {"message": text}}).encode()
            named["quick"].answer(ScriptedReply(status, JSON, [document]))
            failed = ask(port, chat("2 + 2?", "virtual"))
            assert failed.status == (400 if status == 400 else 502)
            assert b"***" in failed.body
            assert KEYS["quick"].encode() not in failed.body
            assert str(named["quick"].port).encode() not in failed.body


def test_capabilities_are_those_of_the_upstream_of_each_arm(tmp_path: Path) -> None:
    urls = {"own": "http://127.0.0.1:9/v1", "slow": "http://127.0.0.2:9/v1"}
    known = Capabilities(n="native")
    save_cached(cache_path(), urls["slow"], "large", known)
    bundle = save_arms(escalating_policy(), tmp_path / "arms", arms=(QUICK, CAREFUL))
    model = {"bundle": str(bundle), "budget": 2, "grader": "numeric"}
    content = {"base_url": urls["own"], "upstreams": {"slow": {"base_url": urls["slow"]}}}
    models = {"virtual": {**model, "arm_upstreams": {"careful": "slow"}}}
    virtual = load_models(make_config({**content, "models": models}))["virtual"]
    assert (virtual.upstream, virtual.capabilities) == (None, Capabilities())
    found = {arm: (one.upstream, one.capabilities) for arm, one in virtual.arm_models.items()}
    assert found == {"careful": ("slow", known)}
    whole = {"virtual": {**model, "upstream": "slow", "model": "large"}}
    virtual = load_models(make_config({**content, "models": whole}))["virtual"]
    assert (virtual.upstream, virtual.capabilities, virtual.arm_models) == ("slow", known, {})


SLOW = {"slow": {"base_url": URL}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({}, "base_url"),
        ({"base_url": "x"}, "http://host:port/v1, not 'x'"),
        ({"base_url": "http://127.0.0.1:8000/v1"}, "this gateway itself"),
        ({"base_url": URL, "upstreams": {"slow": {}}}, "upstreams.slow.*base_url"),
        (
            {"base_url": URL, "upstreams": {"slow": {"base_url": URL, "upstream_api_key": 7}}},
            "str, not int",
        ),
        (
            {"base_url": URL, "upstreams": {"slow": {"base_url": URL, "upstream_api_key": "a\n"}}},
            "upstream_api_key",
        ),
        ({"base_url": URL, "model": {"upstream": "fast"}}, "'fast'.*serve.upstreams.fast"),
        ({"base_url": URL, "model": {"arm_upstreams": {"a": "fast"}}}, "'fast'"),
        ({"base_url": URL, "model": {"arm_upstreams": "fast"}}, "must be a table"),
        (
            {"base_url": URL, "upstreams": SLOW, "model": {"arm_upstreams": {"a": "slow"}}},
            "names 'a'; the arms of the bundle: none",
        ),
    ],
)
def test_wrong_addresses_are_refused(content: dict[str, Any], why: str, policies: Path) -> None:
    model = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    given = {name: value for name, value in content.items() if name != "model"}
    own = {"models": {"m": {**model, **content["model"]}}} if "model" in content else {}
    with pytest.raises(ConfigError, match=why):
        load_models(make_config({**given, **own}))


def test_check_asks_every_upstream(policies: Path, tmp_path: Path) -> None:
    with serve_scripted_servers(1) as (other,):
        other.answer(ScriptedReply(401, JSON, [b"{}"]))
        path = tmp_path / "gateway.toml"
        path.write_text(
            f'[serve]\nbase_url = "{URL}"\n'
            f'[serve.upstreams.slow]\nbase_url = "{other.base_url}"\n'
            'upstream_api_key = "${SLOW_KEY}"\n'
            f'[serve.models.m]\nbundle = "{policies / "two"}"\nbudget = 2\nmodel = "real"\n'
            'grader = "numeric"\n'
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLOW_KEY", KEYS["careful"])
            dead = f"http://127.0.0.1:{free_port()}/v1"
            config = configure(config=[str(path)], base_url=dead)
            told = check_serving(config)["upstreams"]
        assert [row["base_url"] for row in told] == [dead, other.base_url]
        assert [row["upstream"] for row in told] == [None, "slow"]
        assert "failed" in told[0]["problem"]
        assert "401" in told[1]["problem"]
        assert other.received[0].values("authorization") == [f"Bearer {KEYS['careful']}"]


def test_an_upstream_that_is_away_costs_its_requests_only(policies: Path, tmp_path: Path) -> None:
    upstream = UpstreamProcess(tmp_path / "calls.jsonl")
    state = tmp_path / "state"
    given = {"bundle": str(policies / "two"), "budget": 2, "model": "real", "grader": "numeric"}
    content = {"base_url": upstream.base_url, "probe": False, "max_attempts": 1}
    content |= {"models": {"thrifty": given}, "state_directory": str(state)}
    try:
        with serve_gateway(make_config(content)) as port:
            replies: list[GatewayReply] = []
            for is_away in (False, True, False):
                if is_away:
                    upstream.kill()
                elif replies:
                    upstream.start()
                for model in ("other", "thrifty") * 6:
                    headers = [*JSON, ("x-request-id", f"request-{len(replies)}")]
                    body = chat("2 + 2?", model)
                    replies.append(send(port, "POST", CHAT, headers=headers, body=body))
                assert send(port, "GET", "/ready").status == 200
            metrics = fetch(f"http://127.0.0.1:{port}/metrics")
    finally:
        upstream.kill()
    assert [one.status for one in replies] == [200] * 12 + [503] * 12 + [200] * 12
    for one in replies[12:24]:
        assert one.values("retry-after") == ["1"]
        assert json.loads(one.body)["error"]["code"] == "upstream_unreachable"
        assert str(upstream.port).encode() not in one.body
    reason = 'rejected_requests_total{reason="upstream_unreachable"}'
    assert f"adacompute_{reason} 12.0" in metrics
    comparison = compare_spend(read_calls(state), upstream.calls())
    assert comparison.is_right, comparison
    assert comparison.n_served == 36
