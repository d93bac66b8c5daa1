"""How sure answers are: what the gateway says, and what it does not send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai

from adacompute.core.errors import ConfigError
from adacompute.core.types import make_levels
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.correctness import Correctness, Curve, Ranking
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.sequential.description import VOTE_SHARE, width
from adacompute.policies.uniform import FixedRule
from adacompute.storage.decisions import read_decisions
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer, chat_reply

JSON = [("Content-Type", "application/json")]
PRICE, QUESTION = 0.1, [{"role": "user", "content": "2 + 2?"}]
AGREED, SPLIT = ("It is 4", "4.0", "= 4"), ("4", "5", "6")


def save(
    path: Path, *, threshold: float | None = 0.8, prices: tuple[float, float] = (0.05, 0.2)
) -> Path:
    """Save a policy of three samples whose answers are as likely right as they agree."""
    size = width(1) + 1
    weights = np.zeros(size + 1)
    weights[1 + VOTE_SHARE] = 1.0
    ranking = Ranking(np.zeros(size), np.ones(size), weights, 0)
    curve = Curve((0.0, 1.0), (-3.0, 3.0))
    correctness = Correctness(ranking, curve, 0.5, True, threshold, prices)
    frontier = (FrontierPoint(3.0, PRICE, 3.0, 3.0, 3.0, 0.5, 0.4, 0.6, 1.0),)
    policy = RulePolicy("test", make_levels((1, 3)), (FixedRule(3),), PriceSchedule((PRICE,)))
    save_bundle(Bundle(policy, frontier=frontier, correctness=correctness), path)
    return path


def streamed(text: str) -> ScriptedReply:
    ends: list[dict[str, Any]] = [{"content": text}, {}]
    choices = [
        {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in ends
    ]
    parts = [
        b"data: %s\n\n" % json.dumps({"id": "s", "choices": [one]}).encode() for one in choices
    ]
    events = [("Content-Type", "text/event-stream")]
    return ScriptedReply(200, events, [*parts, b"data: [DONE]\n\n"], framing="chunked")


@contextmanager
def serving(path: Path, **options: Any) -> Iterator[tuple[ScriptedServer, int]]:
    model = {"bundle": str(path), "budget": 3.0, "pacing": False}
    model |= {name: options.pop(name) for name in ("unsure",) if name in options}
    with gateways.serve_scripted_gateway(model, **options) as served:
        yield served


def client_of(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def ask(port: int, **options: Any) -> gateways.GatewayReply:
    body = json.dumps({"model": "virtual", "messages": QUESTION, **options}).encode()
    return gateways.send(port, "POST", "/v1/chat/completions", headers=JSON, body=body)


@pytest.mark.parametrize(
    ("texts", "sure", "low", "high"),
    [(AGREED, "yes", 0.94, 0.97), (SPLIT, "no", 0.2, 0.4)],
    ids=["agreed", "split"],
)
def test_headers_say_how_likely_the_answer_is_right(
    tmp_path: Path, texts: tuple[str, ...], sure: str, low: float, high: float
) -> None:
    log = tmp_path / "state"
    with serving(save(tmp_path / "p"), state_directory=str(log), decision_log="answers") as (
        upstream,
        port,
    ):
        upstream.answer(*map(chat_reply, texts))
        answer = ask(port, adacompute={"debug": True})
    assert answer.status == 200
    (chance,) = map(float, answer.values("x-adacompute-p-correct"))
    assert low < chance < high
    assert answer.values("x-adacompute-sure") == [sure]
    debug = json.loads(answer.values("x-adacompute-debug")[0])
    assert debug["p_correct"] == pytest.approx(chance, abs=1e-4)
    assert debug["sure"] is (sure == "yes")
    (logged,) = read_decisions(log / "decisions").to_pylist()
    assert logged["p_correct"] == debug["p_correct"]
    assert logged["sure"] == debug["sure"]


def test_a_price_that_was_not_tested_is_not_judged(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p", prices=(0.2, 0.4))) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        answer = ask(port)
    assert answer.values("x-adacompute-sure") == ["not judged"]


def test_without_a_model_nothing_is_said(tmp_path: Path) -> None:
    path = save(tmp_path / "p")
    document = json.loads((path / "bundle.json").read_text()) | {"correctness": None}
    (path / "bundle.json").write_text(json.dumps(document))
    with serving(path) as (upstream, port):
        upstream.answer(*map(chat_reply, AGREED))
        answer = ask(port)
    assert answer.values("x-adacompute-p-correct") == []
    assert answer.values("x-adacompute-sure") == []


@pytest.mark.parametrize("stream", [False, True])
def test_unsure_answers_are_refused_and_sure_ones_are_sent(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    with serving(save(tmp_path / "p"), unsure="refuse") as (upstream, port), client_of(port) as c:
        upstream.answer(*map(streamed if stream else chat_reply, (*SPLIT, *AGREED)))
        known: dict[str, Any] = {"model": "virtual", "messages": QUESTION}
        if stream:
            with pytest.raises(openai.APIError, match="not sure enough") as failure:
                list(c.chat.completions.create(**known, stream=True))
            assert failure.value.code == "not_sure"
            events = list(c.chat.completions.create(**known, stream=True))
            assert "4" in "".join(one.choices[0].delta.content or "" for one in events)
        else:
            with pytest.raises(openai.UnprocessableEntityError, match="not sure enough") as error:
                c.chat.completions.create(**known)
            assert error.value.code == "not_sure"
            sent = c.chat.completions.create(**known)
            assert "4" in (sent.choices[0].message.content or "")


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_answer_is_described_and_not_shown(tmp_path: Path, stream: bool) -> None:  # noqa: FBT001
    with serving(save(tmp_path / "p"), unsure="refuse") as (upstream, port), client_of(port) as c:
        upstream.answer(*map(streamed if stream else chat_reply, SPLIT))
        known: dict[str, Any] = {"model": "virtual", "messages": QUESTION}
        with pytest.raises(openai.APIError) as failure:
            list(c.chat.completions.create(**known, stream=stream))
    assert isinstance(failure.value.body, dict)
    refused = failure.value.body["refused"]
    assert 0 < refused.pop("p_correct") < 0.8
    assert len(refused.pop("decision")) > 10
    assert refused == {}


def test_a_refused_answer_is_charged_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "state"
    options = {"state_directory": str(log), "decision_log": "answers", "unsure": "refuse"}
    with serving(save(tmp_path / "p"), **options) as (upstream, port):
        upstream.answer(*map(chat_reply, SPLIT))
        assert ask(port).status == 422
        metrics = gateways.send(port, "GET", "/metrics").body.decode()
    (logged,) = read_decisions(log / "decisions").to_pylist()
    assert (logged["samples_used"], logged["sure"]) == (3, False)
    assert 'adacompute_p_correct_count{model="virtual"} 1.0' in metrics


def test_an_answer_that_nothing_could_parse_is_refused(tmp_path: Path) -> None:
    with serving(save(tmp_path / "p"), unsure="refuse") as (upstream, port):
        upstream.answer(*map(chat_reply, ("no", "number", "here")))
        answer = ask(port)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (422, "not_sure")


def test_refusing_needs_a_guarantee(tmp_path: Path) -> None:
    path = save(tmp_path / "p", threshold=None)
    for unsure, message in (
        ("refuse", "guarantees no precision"),
        ("hide", "unsure must be flag or refuse"),
    ):
        with pytest.raises(ConfigError, match=message), serving(path, unsure=unsure):
            pass
