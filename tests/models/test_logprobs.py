from __future__ import annotations

import math
from typing import Any

import pytest

from adacompute.models.logprobs import TOP_LOGPROBS, TokenLogprobs, mean_entropy, parse_logprobs
from adacompute.models.messages import Capabilities, Prompt, Settings
from adacompute.models.openai_format import request_body

TOPS = [{"a": 0.5, "b": 0.25, "c": 0.125, "d": 0.0625, "e": 0.03125}, {"a": 0.9, "f": 0.1}]


def as_chat(tops: list[dict[str, float]]) -> dict[str, Any]:
    content = [
        {
            "token": "a",
            "logprob": math.log(top["a"]),
            "top_logprobs": [{"token": t, "logprob": math.log(p)} for t, p in top.items()],
        }
        for top in tops
    ]
    return {"content": content}


def as_completion(tops: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "tokens": ["a"] * len(tops),
        "token_logprobs": [math.log(top["a"]) for top in tops],
        "top_logprobs": [{t: math.log(p) for t, p in top.items()} for top in tops],
    }


@pytest.mark.parametrize("form", [as_chat, as_completion])
def test_entropy_is_estimated_from_the_top_log_probabilities(form: Any) -> None:
    found = parse_logprobs(form(TOPS))
    first = [*TOPS[0].values(), 0.03125]  # the rest counts as one token
    bits = -sum(p * math.log(p) for p in first), -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    assert found.entropy == pytest.approx(sum(bits) / 2 / math.log(6))
    assert (found.n_tokens, found.top_logprobs) == (2, 5)
    assert found.mean_logprob == pytest.approx((math.log(0.5) + math.log(0.9)) / 2)


def test_entropy_lies_between_0_and_1() -> None:
    assert mean_entropy([[0.0, -1e6]]) == pytest.approx(0.0)
    assert mean_entropy([[math.log(1 / 6)] * 5]) == pytest.approx(1.0)
    assert mean_entropy([[1e-7, -20.0]]) < 1e-6  # some servers round up


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {"content": None},
        {"content": [{"token": "a", "logprob": -0.5}]},
        {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}]}]},
        {"token_logprobs": [-0.5], "top_logprobs": "x"},
        {"token_logprobs": [-0.5], "top_logprobs": [None, {"a": "b", "c": True}]},
    ],
)
def test_entropy_is_unknown_where_only_the_chosen_token_is_reported(raw: Any) -> None:
    found = parse_logprobs(raw)
    assert (found.entropy, found.top_logprobs) == (None, None)
    assert found == TokenLogprobs() or found.mean_logprob == -0.5


def test_top_log_probabilities_are_requested() -> None:
    known = ("m", Settings(), Capabilities())
    chat = request_body(known[0], Prompt(messages=({"role": "user", "content": "hi"},)), *known[1:])
    completion = request_body(known[0], Prompt(text="hi"), *known[1:])
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, TOP_LOGPROBS)
    assert completion["logprobs"] == TOP_LOGPROBS == 5
