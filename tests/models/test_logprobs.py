from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.models.formats.openai_format import parse_samples, request_body
from adacompute.models.logprobs import (
    TOP_LOGPROBS,
    WINDOW,
    TokenLogprobs,
    mean_entropy,
    min_window,
    parse_logprobs,
)
from adacompute.models.messages import Capabilities, Prompt, Sample, Settings

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


def reply(text: str, tokens: list[Any], values: list[Any], *, chat: bool) -> Sample:
    """Parse a reply with these tokens."""
    if not chat:
        logprobs: dict[str, Any] = {"tokens": tokens, "token_logprobs": values}
        return parse_samples({"choices": [{"text": text, "logprobs": logprobs}]})[0]
    pairs = zip(tokens, values, strict=True)
    named = [({"token": t} if isinstance(t, str) else t) | {"logprob": v} for t, v in pairs]
    choice = {"message": {"content": text}, "logprobs": {"content": named}}
    return parse_samples({"choices": [choice]})[0]


WORDS = ["15", " -", " ", "3", " =", " 1", "2", ".\n"]
VALUES = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("15 - 3 = 12.\n", "12", -6.5),
        ("15 - 3 = 12.", "12", -6.5),  # a stop sequence was cut off
        ("3 = 12.\n", "12", -6.5),  # reasoning is not part of the text
        ("15 - 3 = 12.\n", "5", -1.0),  # within a number, because it is nowhere else
        ("15 - 3 = 12.\n", "3", -4.0),
        ("15 - 3 = 12.\n", "- 3", -3.0),
        ("15 - 3 = 12.\n", "12.0", None),
        ("15 - 3 = 12.\n", None, None),
        ("15 - 3 = 12.\n", "", None),
        ("another text with 12", "12", None),
        ("", "12", None),
    ],
)
def test_tokens_of_the_answer_are_found(
    text: str, answer: str | None, expected: float | None, *, chat: bool
) -> None:
    assert reply(text, WORDS, VALUES, chat=chat).answer_logprob(answer) == expected


def test_the_last_whole_occurrence_of_an_answer_counts() -> None:
    words = ["5", " or", " 5", " and", " 15", " and", " 2.5"]
    values = [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    assert reply("".join(words), words, values, chat=True).answer_logprob("5") == -3.0


def test_tokens_are_located_by_their_bytes() -> None:
    euro = "€".encode()
    tokens = [
        {"token": "\ufffd", "bytes": list(euro[:1])},
        {"token": "\ufffd", "bytes": list(euro[1:])},
        {"token": "7", "bytes": [55]},
    ]
    sample = reply("€7", tokens, [-1.0, -2.0, -4.0], chat=True)
    assert (sample.answer_logprob("7"), sample.answer_logprob("€")) == (-4.0, -1.5)


@pytest.mark.parametrize(
    ("tokens", "values"),
    [
        (["1", "2"], [-1.0]),
        (["1", None], [-1.0, -2.0]),
        ([], []),
        (["12"], [None]),
        (["12"], ["x"]),
    ],
)
def test_unknown_tokens_have_no_answer(tokens: list[Any], values: list[Any]) -> None:
    assert reply("12", tokens, values, chat=False).answer_logprob("12") is None


@given(st.lists(st.floats(-9, 0), min_size=1, max_size=60))
def test_the_least_certain_window_is_found(values: list[float]) -> None:
    windows = [values[i : i + WINDOW] for i in range(max(1, len(values) - WINDOW + 1))]
    expected = min(sum(window) / len(window) for window in windows)
    assert min_window(values) == pytest.approx(expected, abs=1e-9)
    found = parse_logprobs({"token_logprobs": values}).min_logprob_window
    assert found == pytest.approx(expected, abs=1e-9)
