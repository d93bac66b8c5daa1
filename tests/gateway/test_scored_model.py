"""Scored models: a gateway scores samples for policies of scores, and refuses other signals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.errors import BundleError, ConfigError
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.voting.model_loading import load_models
from adacompute.options.main import BatchOptions
from adacompute.policies.arm_mixture import ArmMixture
from adacompute.policies.confidence import Confidence
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.stages.batch import run_batch
from adacompute.storage.decisions import read_decisions
from test_support import gateways, scripted
from test_support.arm_policies import save_arms
from test_support.scripted import ReceivedRequest, ScriptedReply

JSON = [("Content-Type", "application/json")]
ANSWERS = ("4", "5", "4")


def save_policy(path: Path, signal: str) -> Path:
    """Save a policy that takes three samples, and weighs them by a signal."""
    one, zero = np.ones((1, 1)), np.zeros(1)
    confidence = Confidence((signal,), 0.5 * one, one, one, zero, 4.0 * one, zero)
    policy = ArmMixture(("model",), ((0, 3),), PriceSchedule((0.1,)), confidence, (1.0,))
    return save_arms(policy, path)


def write(document: object) -> ScriptedReply:
    return ScriptedReply(200, JSON, [json.dumps(document).encode()])


def complete(text: str) -> ScriptedReply:
    usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return write({"id": "x", "choices": [choice | {"finish_reason": "stop"}], "usage": usage})


def score(request: ReceivedRequest) -> ScriptedReply:
    """Prefer the text 5."""
    asked = json.loads(request.body)
    assert asked["question"] == "2 + 2?"
    return write({"score": 1.0 if asked["text"] == "5" else 0.0})


@pytest.mark.filterwarnings("ignore:the policy weighs samples by score")
@pytest.mark.parametrize(("works", "answer"), [(True, "5"), (False, "4")])
def test_votes_are_weighted_by_the_scores_of_the_scorer(
    tmp_path: Path, *, works: bool, answer: str
) -> None:
    policy = save_policy(tmp_path / "p", "score")
    with scripted.serve_scripted() as scorer:
        model = {"bundle": str(policy), "budget": 2.0, "scorer": f"{scorer.base_url}/score"}
        log = {"state_directory": str(tmp_path), "decision_log": "answers"}
        with gateways.serve_scripted_gateway(model, **log) as (upstream, port):
            upstream.answer(*map(complete, ANSWERS))
            failed = ScriptedReply(500, JSON, [b'{"error": "out of memory"}'])
            scorer.answer(score if works else failed)
            body = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}]}
            reply = gateways.send(
                port, "POST", "/v1/chat/completions", headers=JSON, body=json.dumps(body).encode()
            )
        assert sorted(json.loads(one.body)["text"] for one in scorer.received) == sorted(ANSWERS)
    assert json.loads(reply.body)["choices"][0]["message"]["content"] == answer
    (row,) = read_decisions(tmp_path / "decisions").to_pylist()
    assert (row["scorer_error"] is None) == works


@pytest.mark.parametrize("signal", ["score", "signal_verifier"])
def test_signals_that_a_gateway_cannot_supply_are_refused(tmp_path: Path, signal: str) -> None:
    model = {"bundle": str(save_policy(tmp_path / "p", signal)), "budget": 2.0}
    model |= {"model": "real", "grader": "numeric"}
    scored = model | {"scorer": "http://127.0.0.1:9/score"}
    found = make_config({"base_url": "http://127.0.0.1:9/v1", "models": {"virtual": model}})
    with pytest.raises(ConfigError, match=rf"virtual: .* uses {signal} of each sample, which no"):
        load_models(found)
    found = make_config({"base_url": "http://127.0.0.1:9/v1", "models": {"virtual": scored}})
    if signal == "score":
        load_models(found)
    else:
        with pytest.raises(ConfigError, match="signal_verifier"):
            load_models(found)


def test_a_batch_refuses_signals_that_no_server_gives(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?"}\n')
    options = BatchOptions(
        bundle=save_policy(tmp_path / "p", "score"),
        out=tmp_path / "out",
        budget=3.0,
        model="real",
    )
    with pytest.raises(BundleError, match="uses score of each sample, which no server returns"):
        run_batch(
            [str(tmp_path / "q.jsonl")],
            options=replace(options, base_url="http://127.0.0.1:9/v1", accept_verdict=True),
        )
