"""Arms in the gateway: which edits each arm makes to a request, and what the policy needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.engine import Engine
from adacompute.gateway.voting.model_loading import load_models
from adacompute.models.messages import Capabilities, Settings
from adacompute.models.openai import Upstream
from adacompute.models.templates import Template
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.bundles.arm_settings import ArmSettings, edit_request
from adacompute.policies.bundles.bundle import Bundle, load_bundle, save_bundle
from adacompute.policies.confidence import Confidence, equal_confidence
from adacompute.policies.price_schedule import PriceSchedule
from test_support.arm_policies import (
    CAREFUL,
    FRONTIER,
    QUICK,
    escalating_policy,
    save_arms,
    uniform_policy,
)
from test_support.gateways import send, serve_scripted_gateway
from test_support.scripted import chat_reply

for library in ("aiohttp", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(library, reason="needs the extra 'serve'")

JSON = [("Content-Type", "application/json")]


def test_each_arm_edits_the_request_and_nothing_else(tmp_path: Path) -> None:
    template = Template("{question}")
    path = save_arms(escalating_policy(), tmp_path / "b", arms=(QUICK, CAREFUL), template=template)
    with serve_scripted_gateway({"bundle": str(path), "budget": 2}) as (upstream, port):
        upstream.answer(chat_reply("It is 4."), chat_reply("It is 5."))
        body = b'{"model":"virtual","messages":[{"role":"user","content":"2 + 2?"}],"user":"me"}'
        answered = send(port, "POST", "/v1/chat/completions", body=body)
        sent = [json.loads(one.body) for one in upstream.received]
    assert answered.status == 200
    assert json.loads(answered.body)["choices"][0]["message"]["content"] == "It is 5."
    quick, careful = sent
    assert (quick["model"], quick["reasoning_effort"]) == ("small", "low")
    assert quick["messages"] == [{"role": "user", "content": "2 + 2?"}]
    assert "verbosity" not in quick
    assert (careful["model"], careful["reasoning_effort"]) == ("large", "high")
    assert careful["messages"][0]["content"] == "Think step by step. 2 + 2?"
    assert careful["verbosity"] == "high"
    assert quick["user"] == careful["user"] == "me"
    assert "temperature" not in quick


def test_a_uniform_number_of_samples_of_an_arm_is_drawn_at_once(tmp_path: Path) -> None:
    path = save_arms(uniform_policy(3), tmp_path / "b", arms=(QUICK, CAREFUL))
    with serve_scripted_gateway({"bundle": str(path), "budget": 2}) as (upstream, port):
        upstream.answer(*map(chat_reply, ("It is 4.", "It is 5.", "It is 5.")))
        body = b'{"model":"virtual","messages":[{"role":"user","content":"2 + 2?"}]}'
        answered = send(port, "POST", "/v1/chat/completions", body=body)
        sent = [json.loads(one.body) for one in upstream.received]
    assert answered.status == 200
    assert json.loads(answered.body)["choices"][0]["message"]["content"] == "It is 5."
    assert [one["model"] for one in sent] == ["large"] * 3
    assert answered.values("x-adacompute-samples") == ["3"]


def test_question_is_found_in_the_prompt_of_an_arm(tmp_path: Path) -> None:
    path = save_arms(escalating_policy(), tmp_path / "b", arms=(QUICK, CAREFUL))
    with serve_scripted_gateway({"bundle": str(path), "budget": 2}) as (upstream, port):
        upstream.answer(chat_reply("It is 4."), chat_reply("It is 5."))
        message = {"role": "user", "content": "Think step by step. 2 + 2?"}
        body = json.dumps({"model": "virtual", "messages": [message]}).encode()
        answered = send(port, "POST", "/v1/chat/completions", body=body)
        sent = [json.loads(one.body)["messages"][0]["content"] for one in upstream.received]
    assert answered.status == 200
    assert answered.values("x-adacompute-question") == ["template"]
    assert sent == ["2 + 2?", "Think step by step. 2 + 2?"]


def test_arms_with_one_prompt_keep_that_of_the_client() -> None:
    same = [ArmSettings(name, name, Template("{question}"), Settings()) for name in ("a", "b")]
    edits = edit_request(same, "2 + 2?", is_chat=True)
    assert edits["a"].fields == edits["b"].fields == {}
    other = [same[0], ArmSettings("b", "b", Template("{question}"), Settings(temperature=0.0))]
    edits = edit_request(other, None, is_chat=True)
    assert edits["a"].fields == {"temperature": 0.7}
    assert edits["b"].fields == {"temperature": 0.0}
    texts = [ArmSettings(n, n, Template(f"{n}: {{question}}", chat=False)) for n in ("a", "b")]
    assert edit_request(texts, "2?", is_chat=False)["b"].fields == {"prompt": "b: 2?"}
    assert edit_request(texts, "2?", is_chat=True)["b"].fields == {}
    own = ArmSettings("b", "b", Template("Think. {question}"), Settings(effort="low", max_tokens=9))
    edits = edit_request([same[0], own], "2?", is_chat=True, is_response=True)
    asked = [{"role": "user", "content": "Think. 2?"}]
    expected = {"input": asked, "max_output_tokens": 9, "reasoning": {"effort": "low"}}
    assert edits["b"].fields == expected


def test_arms_are_saved_with_the_bundle(tmp_path: Path) -> None:
    path = save_arms(escalating_policy(), tmp_path / "b", arms=(QUICK, CAREFUL))
    assert load_bundle(path).arms == (QUICK, CAREFUL)


def test_policy_over_imported_arms_is_refused(tmp_path: Path) -> None:
    path = save_arms(escalating_policy(), tmp_path / "b")
    config = make_config(
        {
            "base_url": "http://127.0.0.1:9/v1",
            "models": {"m": {"bundle": str(path), "budget": 2, "grader": "numeric"}},
        }
    )
    with pytest.raises(ConfigError, match="quick, careful"):
        load_models(config)


def test_mixture_of_one_arm_draws_its_samples_at_once(tmp_path: Path) -> None:
    mixture = ArmMixture(("one",), ((0, 2),), PriceSchedule((0.1,)), equal_confidence(1), (1.0,))
    path = save_arms(mixture, tmp_path / "b")
    with serve_scripted_gateway({"bundle": str(path), "budget": 2}) as (upstream, port):
        upstream.answer(chat_reply("It is 4."))
        body = b'{"model":"virtual","messages":[{"role":"user","content":"2 + 2?"}]}'
        assert send(port, "POST", "/v1/chat/completions", body=body).status == 200
        assert [json.loads(one.body)["model"] for one in upstream.received] == ["real", "real"]


def confident_bundle() -> Bundle:
    one, zero = np.ones((1, 1)), np.zeros(1)
    confidence = Confidence(("mean_logprob",), -one, one, one, zero, one, zero)
    mixture = ArmMixture(("one",), ((0, 2),), PriceSchedule((0.1,)), confidence, (1.0,))
    return Bundle(mixture, frontier=FRONTIER, notes={"policy": "mixture"})


@pytest.mark.parametrize(
    ("logprobs", "lacks"), [("returned", False), ("unknown", False), ("missing", True)]
)
def test_policy_that_needs_log_probabilities_is_refused_without_them(
    tmp_path: Path, logprobs: Any, *, lacks: bool
) -> None:
    save_bundle(confident_bundle(), tmp_path / "b")
    config = make_config(
        {
            "base_url": "http://127.0.0.1:9/v1",
            "models": {
                "m": {"bundle": str(tmp_path / "b"), "model": "m", "budget": 2, "grader": "numeric"}
            },
        }
    )
    virtual = load_models(config)["m"]
    known = Capabilities(logprobs=logprobs)
    engine = Engine(virtual, {None: Upstream("http://127.0.0.1:9/v1", "m", capabilities=known)})
    assert engine.lacks_logprobs is lacks
    assert virtual.bundle.needs_logprobs
