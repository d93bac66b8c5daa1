"""Test of the DSPy example against a scripted upstream, whose replies have DSPy's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest
from adaptive_module import AdaptivePredict

import adacompute as ada
from test_support.scripted import ScriptedReply, ScriptedServer, serve_scripted

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def make_reply(answer: int) -> ScriptedReply:
    text = f"[[ ## reasoning ## ]]\nAdd.\n\n[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]"
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    choices = [{**choice, "finish_reason": "stop"}]
    content = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted"}
    body = json.dumps({**content, "choices": choices, "usage": USAGE}).encode()
    return ScriptedReply(200, [("Content-Type", "application/json")], [body])


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[ScriptedServer]:
    dspy.configure_cache(disk_cache_dir=str(tmp_path))
    with serve_scripted() as server:
        yield server


def make_module(upstream: ScriptedServer) -> AdaptivePredict:
    lm = dspy.LM("openai/scripted", api_base=upstream.base_url, api_key="none")
    dspy.configure(lm=lm, track_usage=True)
    return AdaptivePredict("question -> answer", policy=ada.load_policy("example"), budget=2.0)


def test_the_vote_and_the_usage_are_those_of_all_samples(upstream: ScriptedServer) -> None:
    upstream.answer(*(make_reply(answer) for answer in (41, 42, 42, 43, 42, 42)))
    prediction = make_module(upstream)(question="What is 0 + 0?")
    assert prediction.n_samples == len(upstream.received) > 2
    assert prediction.answer == "42"
    assert prediction.reasoning == "Add."
    (usage,) = prediction.get_lm_usage().values()
    assert usage["total_tokens"] == prediction.n_samples * USAGE["total_tokens"]


def test_a_cached_question_is_not_sampled_again(upstream: ScriptedServer) -> None:
    upstream.answer(*(make_reply(answer) for answer in (41, 42, 42, 43, 42, 42)))
    module = make_module(upstream)
    first = module(question="What is 1 + 1?")
    n_calls = len(upstream.received)
    assert module(question="What is 1 + 1?").answer == first.answer
    assert len(upstream.received) == n_calls
