"""Replies of the Responses API become the samples that they hold, or are malformed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.models.formats.openai_format import MalformedReply, parse_samples
from adacompute.models.formats.responses_format import (
    find_response,
    from_chat_usage,
    to_completion,
    without_response_logprobs,
)
from adacompute.models.model import parse_usage

names = st.sampled_from(
    [
        "output", "type", "message", "content", "text", "output_text", "status", "usage",
        "input_tokens", "output_tokens", "reasoning", "summary", "incomplete_details", "reason",
        "logprobs", "logprob", "response", "response.completed", "completed", "phase",
    ]
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(names, children, max_size=5),
    max_leaves=15,
)
items = st.fixed_dictionaries({}, optional={"type": names, "content": values, "summary": values})


def message(*texts: str, **members: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "content": parts, **members}


@given(
    values | st.fixed_dictionaries({"output": st.lists(items | values)}, optional={"usage": values})
)
def test_any_document_is_a_sample_or_malformed(document: object) -> None:
    try:
        (sample,) = parse_samples(to_completion(document))
    except MalformedReply:
        return
    assert (sample.completion_tokens or 0) >= 0


@given(st.lists(st.dictionaries(names, values, max_size=4)))
def test_any_events_have_a_response_or_are_malformed(events: list[dict[str, Any]]) -> None:
    try:
        assert isinstance(find_response(events), dict)
    except MalformedReply:
        return


def test_the_text_is_that_of_the_answer_without_reasoning_commentary_and_refusals() -> None:
    thought = {"type": "reasoning", "summary": [{"text": "17"}], "content": [{"text": "18"}]}
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    output = [thought, message("19", phase="commentary"), refusal, message("4", "2")]
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 6},
    }
    (sample,) = parse_samples(to_completion({"output": output, "usage": usage}))
    assert (sample.text, sample.finish_reason) == ("42", "stop")
    assert (sample.prompt_tokens, sample.cached_tokens) == (9, 8)
    assert (sample.completion_tokens, sample.reasoning_tokens) == (7, 6)
    assert not sample.is_estimated


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "stop")],
)
def test_an_incomplete_response_says_why_it_ended(reason: str | None, finish_reason: str) -> None:
    document = {"output": [], "status": "incomplete", "incomplete_details": {"reason": reason}}
    assert to_completion(document)["choices"][0]["finish_reason"] == finish_reason


@given(st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "x"]), st.integers(0, 99)))
def test_a_usage_is_the_same_after_two_conversions(usage: dict[str, int]) -> None:
    back = from_chat_usage(parse_usage({"usage": usage}))
    assert {name: back[name] for name in usage} == usage


def test_hidden_logprobs_leave_everything_else() -> None:
    part = {"text": "4", "logprobs": [{"logprob": -1.0}]}
    hidden = {"text": "4", "logprobs": []}
    assert without_response_logprobs({"a": [part], "logprobs": None}) == {
        "a": [hidden],
        "logprobs": None,
    }
