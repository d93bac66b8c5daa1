"""Caps on spending: never exceeded, told to clients as OpenAI would, and kept over restarts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import ConfigError
from adacompute.core.types import make_levels
from adacompute.gateway.accounting.caps import CapConfig, find_period
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.accounting.spending import Spending
from adacompute.gateway.settings.config import make_config
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.spending.caps.counters import Charge
from adacompute.spending.caps.meter import CapReached
from adacompute.stages.caps import list_caps
from adacompute.testing.fake_openai import serve_fake
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer

JSON = [("Content-Type", "application/json")]


def make_bundle(path: Path, n_samples: int) -> Path:
    policy = RulePolicy(
        "fixed", make_levels((1, 2, 3, 4)), (FixedRule(n_samples),), PriceSchedule((0.1,))
    )
    cost = float(n_samples)
    point = FrontierPoint(cost, 0.1, cost, cost, cost, 0.5, 0.4, 0.6, 1.0)
    save_bundle(Bundle(policy, frontier=(point,)), path)
    return path


def make_reply(tokens: int = 5, n: int = 1, pause_s: float = 0.0) -> ScriptedReply:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
        for i in range(n)
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    document = {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage}
    return ScriptedReply(200, JSON, [pause_s, json.dumps(document).encode()])


@contextmanager
def serving(
    directory: Path, caps: list[dict[str, Any]], *, n_samples: int = 1, **settings: Any
) -> Iterator[tuple[ScriptedServer, int]]:
    """Serve a policy that draws a fixed number of samples, under caps."""
    path = directory / f"policy-{n_samples}"
    if not path.exists():
        make_bundle(path, n_samples)
    own = {"bundle": str(path), "budget": float(n_samples), **settings.pop("model", {})}
    settings = {"state_directory": str(directory), **settings}
    with gateways.serve_scripted_gateway(own, caps=caps, **settings) as served:
        served[0].answer(make_reply())
        yield served


def ask(port: int, key: str | None = None, **body: Any) -> gateways.GatewayReply:
    content = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}], **body}
    headers = [*JSON, *([("Authorization", f"Bearer {key}")] if key else [])]
    data = json.dumps(content).encode()
    return gateways.send(port, "POST", "/v1/chat/completions", headers=headers, body=data)


def samples_cap(amount: float, **more: Any) -> dict[str, Any]:
    return {"amount": amount, "unit": "samples", **more}


def test_concurrent_requests_never_exceed_a_cap(tmp_path: Path) -> None:
    with serving(tmp_path, [samples_cap(50)]) as (upstream, port):
        upstream.answer(make_reply(pause_s=0.02))
        with ThreadPoolExecutor(32) as pool:
            replies = list(pool.map(lambda _: ask(port), range(200)))
        statuses = [one.status for one in replies]
        assert set(statuses) == {200, 429}
        assert len(upstream.received) == statuses.count(200) <= 50
        while statuses.count(200) < 50:  # what was leased and not used comes back
            time.sleep(0.2)
            statuses.append(ask(port).status)
            assert len(statuses) < 300
        assert ask(port).status == 429
        assert len(upstream.received) == 50


def test_gateways_with_one_directory_share_their_caps(tmp_path: Path) -> None:
    settings = {"caps": [samples_cap(1)], "state_directory": str(tmp_path)}
    config = make_config({"base_url": "http://127.0.0.1:1/v1", **settings})
    counter = config.caps[0].counter("model", time.time())
    assert counter is not None
    charge: Charge = {"samples": 1, "tokens": 0, "money": 0}

    async def open_two() -> None:
        first, second = (Spending(config, Metrics()) for _ in range(2))
        await first.open()
        await second.open()
        assert first.replica != second.replica
        assert first.caps is not None
        assert second.caps is not None
        (await first.caps.meter.reserve([counter], charge)).settle(charge)
        with pytest.raises(CapReached):
            await second.caps.meter.reserve([counter], charge)
        await first.close()
        await second.close()

    asyncio.run(open_two())


def test_a_spent_cap_is_told_in_the_format_of_openai(tmp_path: Path) -> None:
    with serving(tmp_path, [samples_cap(1)]) as (_, port):
        assert ask(port).status == 200
        reply = ask(port)
    error = json.loads(reply.body)["error"]
    assert reply.status == 429
    assert error["code"] == "cap_reached"
    assert error["type"] == "insufficient_quota"
    assert "total/samples" in error["message"]
    assert reply.values("x-should-retry") == ["false"]
    (retry_after,) = reply.values("retry-after")
    assert 1 < int(retry_after) <= 86_400


def test_the_official_client_does_not_retry_a_spent_cap(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai")
    with serving(tmp_path, [samples_cap(0)]) as (upstream, port):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none" * 6)
        start = time.monotonic()
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(
                model="virtual", messages=[{"role": "user", "content": "2 + 2?"}]
            )
    assert time.monotonic() - start < 5
    assert not upstream.received


def test_what_was_spent_is_known_after_a_restart(tmp_path: Path) -> None:
    for allowed in (200, 429):
        with serving(tmp_path, [samples_cap(2)], n_samples=2) as (upstream, port):
            assert ask(port).status == allowed
            assert len(upstream.received) == (2 if allowed == 200 else 0)


def test_a_request_is_answered_with_the_samples_that_came(tmp_path: Path) -> None:
    with serving(tmp_path, [samples_cap(3)], n_samples=4) as (upstream, port):
        reply = ask(port)
        assert len(upstream.received) == 3
    assert reply.status == 200
    assert reply.values("x-adacompute-samples") == ["3"]


@pytest.mark.parametrize(("when_spent", "status"), [("reject", 429), ("cheapest", 200)])
def test_one_cheap_sample_answers_when_a_larger_call_does_not_fit(
    tmp_path: Path, when_spent: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = {
        "models": {
            "virtual": {
                "bundle": str(make_bundle(tmp_path / "p", 4)),
                "budget": 4.0,
                "model": "real",
                "grader": "numeric",
                "max_output_tokens": 150,
            }
        },
        "caps": [{"amount": 500, "unit": "tokens", "model": "virtual"}],
        "when_spent": when_spent,
        "state_directory": str(tmp_path),
    }
    with serve_fake() as fake:
        known = Capabilities(n="native")  # four samples are one call
        save_cached(cache_path(), fake.base_url, "real", known)
        config = make_config({"base_url": fake.base_url, **content})
        with gateways.serve_gateway(config) as port:
            n_before = fake.stats()["choices"]
            assert ask(port).status == status
            assert fake.stats()["choices"] - n_before == (status == 200)


@pytest.mark.parametrize("model", ["virtual", "*"])
def test_a_cap_of_a_model_leaves_others_alone(model: str, tmp_path: Path) -> None:
    caps = [samples_cap(1, model=model), samples_cap(3)]
    with serving(tmp_path, caps) as (upstream, port):
        assert [ask(port).status for _ in range(2)] == [200, 429]
        n_left = 1 if model == "*" else 2
        assert [ask(port, model="other").status for _ in range(3)].count(200) == n_left
        assert len(upstream.received) == 1 + n_left


def test_forwarded_requests_count_too(tmp_path: Path) -> None:
    with serving(tmp_path, [samples_cap(2)]) as (upstream, port):
        assert [ask(port, model="other").status for _ in range(3)] == [200, 200, 429]
        assert len(upstream.received) == 2


def test_a_stream_that_cannot_be_paid_is_rejected_before_it_begins(tmp_path: Path) -> None:
    with serving(tmp_path, [samples_cap(0)], n_samples=2) as (upstream, port):
        reply = ask(port, stream=True)
        assert reply.status == 429
        assert not upstream.received


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({}, {"max_tokens": 30}),
        ({"max_tokens": 20}, {"max_tokens": 20}),
        ({"max_tokens": 90}, {"max_tokens": 30}),
        ({"max_completion_tokens": 90}, {"max_tokens": 30}),
        ({"max_tokens": None}, {"max_tokens": 30}),
        ({"max_tokens": -1}, {"max_tokens": 30}),
    ],
)
@pytest.mark.parametrize("model", ["virtual", "other"])
def test_the_limit_of_the_output_is_sent_to_the_upstream(
    tmp_path: Path, body: dict[str, Any], sent: dict[str, Any], model: str
) -> None:
    caps = [{"amount": 1_000, "unit": "tokens"}]
    with serving(tmp_path, caps, max_output_tokens=30) as (upstream, port):
        assert ask(port, model=model, **body).status == 200
        (request,) = upstream.received
    found = json.loads(request.body)
    assert {name: found[name] for name in sent} == sent


def test_tokens_are_capped_by_what_a_call_can_use_at_most(tmp_path: Path) -> None:
    caps = [{"amount": 1_000, "unit": "tokens"}]
    with serving(tmp_path, caps, max_output_tokens=100) as (upstream, port):
        upstream.answer(make_reply(tokens=100))
        while ask(port).status == 200:
            pass
        spent = 107 * len(upstream.received)
    assert 1_000 - 107 - 250 < spent <= 1_000  # a prompt is at most its bytes


PRICES = """
[models.real]
input = 1.0
output = 2.0
"""


def test_money_is_capped_by_token_prices(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    caps = [{"amount": 0.001, "unit": "money"}]
    settings: dict[str, Any] = {"token_prices": str(tmp_path / "prices.toml")}
    settings["max_output_tokens"] = 50
    with serving(tmp_path, caps, **settings) as (upstream, port):
        upstream.answer(make_reply(tokens=50))
        while ask(port).status == 200:
            pass
        spent = len(upstream.received) * (7 * 1.0 + 50 * 2.0) * 1e-6
        assert 0.0006 < spent <= 0.001
        reply = ask(port, model="other")
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (403, "no_token_prices")


def test_usage_above_the_maximum_is_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caps = [{"amount": 1_000, "unit": "tokens"}]
    with serving(tmp_path, caps, max_output_tokens=10) as (upstream, port):
        upstream.answer(make_reply(tokens=5_000))
        assert ask(port).status == 200
        assert ask(port).status == 429
        shown = gateways.fetch(f"http://127.0.0.1:{port}/metrics")
    assert "used more than its maximum" in caplog.text
    assert 'adacompute_cap_overruns_total{cap="total/tokens/day"}' in shown


def test_a_cap_names_what_exists_and_what_can_be_bounded() -> None:
    base: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1"}
    for cap, complaint in (
        ({"amount": 1, "unit": "hours"}, "unit must be one of samples, tokens, money"),
        ({"amount": 1, "period": "week"}, "period must be one of day, month, all"),
        ({"amount": -1, "unit": "samples"}, "amount must be a number of 0 or more"),
        ({"amount": 1, "unit": "samples", "model": "x"}, "'x', which is no model"),
        ({"amount": 1, "unit": "tokens"}, "needs max_output_tokens"),
        ({"amount": 1, "unit": "money"}, "needs token_prices"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            make_config({**base, "caps": [cap]})
    config = make_config(
        {**base, "caps": [{"amount": 1, "unit": "tokens"}], "max_output_tokens": 9}
    )
    assert config.caps == (CapConfig(1.0, "tokens"),)
    with pytest.raises(ConfigError, match="when_spent must be one of"):
        make_config({**base, "when_spent": "never"})


@pytest.mark.parametrize(
    ("period", "name", "next_name"),
    [("day", "2024-02-29", "2024-03-01"), ("month", "2024-02", "2024-03"), ("all", "all", "all")],
)
def test_periods_are_in_utc(period: str, name: str, next_name: str) -> None:
    leap_day = 19_782
    found, ends_at, starts_at = find_period(period, leap_day)
    assert found == name
    if period != "all":
        next_day, first_day = int(ends_at // 86_400), int(starts_at // 86_400)
        assert find_period(period, next_day)[0] == next_name
        assert find_period(period, next_day - 1)[0] == name
        assert find_period(period, first_day)[0] == name
        assert find_period(period, first_day - 1)[0] < name


def test_running_workers_are_listed_as_replicas_until_they_stop(
    launch: Callable[..., AbstractContextManager[int]],
    policies: Path,
    upstream: ScriptedServer,
    tmp_path: Path,
) -> None:
    upstream.answer(make_reply())
    settings = (
        f'state_directory = "{tmp_path}"\n'
        '[[serve.caps]]\namount = 50\nunit = "samples"\nperiod = "all"\n'
    )
    with launch(workers=2, settings=settings) as port:
        config = policies / f"gateway-{port}.toml"
        assert ask(port, model="thrifty").status == 200
        found = list_caps(config)
        assert found["replicas"] == {"running": 2, "status": "complete", "waiting_for": []}
        (row,) = found["accounts"]
        assert (row["name"], row["limit"], row["replicas"]) == ("total/samples/all", 50, 1)
        assert 2 <= row["held"] <= 50
    found = list_caps(config)
    assert found["replicas"]["running"] == 0
    (row,) = found["accounts"]
    assert (row["spent"], row["held"]) == (2, 2)
