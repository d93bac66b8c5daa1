"""A stream gives the same sample as the reply that it adds up to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.models.formats.failures import TransientFailure
from adacompute.models.formats.openai_format import parse_samples
from adacompute.models.formats.streams import parse_stream

HEADERS = {"Content-Type": "text/event-stream"}
texts = st.text(st.characters(codec="utf-8"), max_size=5)
logprobs = st.floats(-9, 0)
tokens = st.lists(
    st.fixed_dictionaries(
        {
            "token": texts,
            "logprob": logprobs,
            "top_logprobs": st.lists(st.fixed_dictionaries({"logprob": logprobs}), max_size=3),
        }
    ),
    max_size=2,
)
deltas = st.lists(
    st.tuples(st.sampled_from(["content", "reasoning_content"]), texts, tokens),
    min_size=1,
    max_size=8,
)
usages = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(0, 99),
        "completion_tokens": st.integers(1, 99),
        "completion_tokens_details": st.fixed_dictionaries(
            {"reasoning_tokens": st.integers(0, 99)}
        ),
    }
)
reasons = st.sampled_from(["stop", "length", "content_filter"])


def event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chunk(choice: dict[str, Any]) -> bytes:
    return event({"id": "a", "choices": [{"index": 0, **choice}]})


@given(deltas, usages, reasons)
def test_a_chat_gives_the_same_sample_streamed_and_not(
    parts: Sequence[tuple[str, str, list[Any]]], usage: dict[str, Any], reason: str
) -> None:
    message = {
        name: "".join(text for kind, text, _ in parts if kind == name)
        for name in ("content", "reasoning_content")
    }
    listed = {"content": [token for _, _, found in parts for token in found]}
    choice = {"index": 0, "message": message, "logprobs": listed, "finish_reason": reason}
    document = {"choices": [choice], "usage": usage}
    stream = b"".join(
        chunk({"delta": {kind: text}, "logprobs": {"content": found}})
        for kind, text, found in parts
    )
    stream += chunk({"delta": {}, "finish_reason": reason})
    stream += event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    streamed = parse_stream(200, HEADERS, stream).to_sample(0.0)
    assert streamed == parse_samples(document)[0]
    assert streamed.text == message["content"]


@given(st.lists(texts, min_size=1, max_size=8), reasons)
def test_a_completion_gives_the_same_sample_streamed_and_not(
    parts: Sequence[str], reason: str
) -> None:
    document = {"choices": [{"text": "".join(parts), "finish_reason": reason}]}
    stream = b"".join(chunk({"text": text}) for text in parts)
    stream += chunk({"text": "", "finish_reason": reason})
    streamed = parse_stream(200, HEADERS, stream).to_sample(0.0)
    # Without usage both are estimates, and a stream has at least one token per event.
    whole = dataclasses.replace(
        parse_samples(document)[0], completion_tokens=streamed.completion_tokens
    )
    assert streamed == whole
    assert streamed.completion_tokens is not None
    assert streamed.completion_tokens >= len(parts)


def test_only_the_first_choice_of_a_stream_is_its_sample() -> None:
    other = {"index": 1, "delta": {"content": "7"}, "finish_reason": "stop"}
    data = chunk({"delta": {"content": "4"}}) + event({"choices": [other]})
    with pytest.raises(TransientFailure):
        parse_stream(200, HEADERS, data)
    data += chunk({"delta": {}, "finish_reason": "stop"})
    assert parse_stream(200, HEADERS, data).to_sample(0.0).text == "4"
