"""`create_app` serves fitted policies, alone and mounted inside another application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import adacompute as ada
from adacompute.testing.fake_openai import FakeUpstream, serve_fake
from test_support.gateways import GatewayReply, send, serve_app

QUESTION = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0.7}


@pytest.fixture(scope="module")
def policy(hundred: ada.Samples) -> ada.Estimator:
    fitted = ada.AdaptiveConsistency(max_samples=4).fit(hundred)
    ada.calibrate(fitted, hundred, budget=3.5)  # not judged at other budgets
    return fitted


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with serve_fake() as fake:
        yield fake


def ask(port: int, model: str, path: str = "/v1/chat/completions") -> GatewayReply:
    body = json.dumps({"model": model, **QUESTION}).encode()
    return send(port, "POST", path, body=body, headers=[("content-type", "application/json")])


def test_requests_are_answered_by_the_policy(policy: ada.Estimator, upstream: FakeUpstream) -> None:
    app = ada.create_app({"m": policy}, base_url=upstream.base_url, budget=2.0)
    with serve_app(app) as port:
        reply, other = ask(port, "m"), ask(port, "another")
        ready = json.loads(send(port, "GET", "/ready").body)
    assert reply.status == other.status == 200
    assert 1 <= int(reply.values("x-adacompute-samples")[0]) <= 4
    assert other.values("x-adacompute-samples") == []
    assert ready == {"status": "ready", "models": ["m"], "store": "ok"}


def test_several_models_with_their_own_budgets(
    policy: ada.Estimator, upstream: FakeUpstream, tmp_path: Path
) -> None:
    policy.save(tmp_path / "saved")
    app = ada.create_app(
        {"a": policy, "b": tmp_path / "saved", "c": "example"},
        base_url=upstream.base_url,
        budget={"a": 2.0, "b": 3.0, "c": 2.0},
        deadline_s=30.0,
        max_concurrency=10,
        state_directory=str(tmp_path),
        decision_log="answers",
    )
    with serve_app(app) as port:
        assert [ask(port, name).status for name in "abc"] == [200] * 3
        names = {model["id"] for model in json.loads(send(port, "GET", "/v1/models").body)["data"]}
    assert names >= {"a", "b", "c"}
    assert any((tmp_path / "decisions").iterdir())


def test_mounted_inside_another_application(policy: ada.Estimator, upstream: FakeUpstream) -> None:
    fastapi = pytest.importorskip("fastapi")
    gateway = ada.create_app(
        {"m": policy}, base_url=upstream.base_url, budget=2.0, allowed_paths=["* /v1/*"]
    )
    app = fastapi.FastAPI(lifespan=gateway.lifespan)

    app.get("/hello")(lambda: {"hello": "world"})
    app.mount("/llm", gateway)
    with serve_app(app) as port:
        reply = ask(port, "m", "/llm/v1/chat/completions")
        assert reply.status == 200
        assert reply.values("x-adacompute-samples")
        assert send(port, "GET", "/llm/health").status == 200
        assert json.loads(send(port, "GET", "/hello").body) == {"hello": "world"}
        assert ask(port, "m").status == 404
        forwarded = ask(port, "other", "/llm/v1/chat/completions")
        assert forwarded.status == 200
        assert send(port, "GET", "/llm/v1/a%20b/c").status in {200, 404}


def test_mounted_without_its_lifespan_says_what_to_do(
    policy: ada.Estimator, upstream: FakeUpstream
) -> None:
    gateway = ada.create_app({"m": policy}, base_url=upstream.base_url, budget=2.0)
    scope = {
        "type": "http",
        "path": "/v1/models",
        "method": "GET",
        "headers": [(b"host", b"localhost")],
    }

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(ada.ConfigError, match="lifespan"):
        gateway(scope, nothing, nothing).send(None)


def test_a_grader_of_the_users_own_is_used(hundred: ada.Samples, upstream: FakeUpstream) -> None:
    seen: list[str] = []

    class Last:
        name = "last-word"

        def extract(self, text: str) -> str | None:
            seen.append(text)
            return text.rsplit(maxsplit=1)[-1] if text.split() else None

        def equal(self, left: str, right: str) -> bool:
            return left == right

    samples = ada.read_samples(hundred, grader=Last())
    fitted = ada.AdaptiveConsistency(max_samples=4).fit(samples)
    ada.calibrate(fitted, samples, budget=3.0)
    app = ada.create_app({"m": fitted}, base_url=upstream.base_url, budget=2.0)
    with serve_app(app) as port:
        assert ask(port, "m").status == 200
    assert seen


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"budget": 0.1}, r"0\.1"),
        ({"budget": {"other": 2.0}}, "'m'"),
        ({"budget": 2.0, "nonsense": 1}, "nonsense"),
        ({"budget": 2.0, "max_rounds": 0}, "max_rounds"),
        ({"budget": 2.0, "grader": "nonsense"}, "nonsense"),
        ({"budget": 2.0, "base_url": "no url"}, "no url"),
    ],
)
def test_wrong_arguments_are_refused(
    policy: ada.Estimator, arguments: dict[str, Any], named: str
) -> None:
    known: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", **arguments}
    with pytest.raises(ada.AdaComputeError, match=named):
        ada.create_app({"m": policy}, **known)


def test_policies_must_be_fitted_and_calibrated(hundred: ada.Samples) -> None:
    for policy, named in ((ada.Mixture(), "fit"), (ada.Mixture().fit(hundred), "calibrate")):
        with pytest.raises(ada.NotFittedError, match=named):
            ada.create_app({"m": policy}, base_url="http://127.0.0.1:1/v1", budget=2.0)
