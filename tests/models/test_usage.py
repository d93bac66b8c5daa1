"""Usage objects of any server: each count is the largest of its spellings, or missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.models.formats.openai_format import content_bytes, parse_samples, sampled_usage
from adacompute.models.model import CallUsage, merge_usage, parse_usage

counts = st.integers(0, 10**6)
junk = st.none() | st.booleans() | st.text() | st.floats() | st.integers() | st.lists(st.integers())
names = st.sampled_from(
    [
        *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"),
        *("cache_read_input_tokens", "prompt_tokens_details", "input_tokens_details", "cost"),
    ]
)
details = st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens"]), counts | junk)
usages = st.dictionaries(names, counts | junk | details)


def make_document(usage: object, *texts: str) -> dict[str, Any]:
    messages = [{"role": "assistant", "content": text} for text in texts]
    choices = [{"index": i, "message": message} for i, message in enumerate(messages)]
    return {"choices": choices, "usage": usage}


@given(counts, counts, counts, counts)
def test_each_count_is_the_largest_of_its_spellings(a: int, b: int, c: int, d: int) -> None:
    usage = {"prompt_tokens": a, "input_tokens": b, "completion_tokens": c, "output_tokens": d}
    assert parse_usage({"usage": usage}) == {
        "prompt_tokens": max(a, b),
        "completion_tokens": max(c, d),
    }


def test_what_the_total_has_beyond_the_prompt_is_completion() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 30}  # thoughts left out
    assert parse_usage({"usage": usage})["completion_tokens"] == 25


@pytest.mark.parametrize("spelling", ["input_tokens", "prompt_tokens"])
def test_cached_input_of_messages_is_added_to_input_only(spelling: str) -> None:
    usage = {"prompt_tokens": 4, spelling: 5, "cache_read_input_tokens": 3, "output_tokens": 1}
    found = CallUsage.of(parse_usage({"usage": usage}))
    assert found.prompt_tokens == (8 if spelling == "input_tokens" else 5)


@given(usages, usages)
def test_any_usage_is_parsed_and_merging_never_lowers_a_count(first: Any, second: Any) -> None:
    merged = parse_usage({"usage": merge_usage(first, second)})
    for usage in (first, second):
        one = parse_usage({"usage": usage})
        assert parse_usage({"usage": one}) == one
        for name in ("prompt_tokens", "completion_tokens"):
            assert type(one.get(name, 0)) is int
            if name == "prompt_tokens" or "total_tokens" not in {**first, **second}:
                assert merged.get(name, -1) >= one.get(name, -1)


@pytest.mark.parametrize(
    ("usage", "is_estimated", "is_contradicted"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, False, False),
        ({"prompt_tokens": 5, "completion_tokens": 0}, True, True),
        ({"prompt_tokens": 0, "completion_tokens": 2}, True, True),
        ({"prompt_tokens": 5}, True, False),
        ({"completion_tokens": 2}, True, False),
        (None, True, False),
    ],
)
def test_a_sampled_reply_is_checked_against_its_text(
    usage: object,
    is_estimated: bool,  # noqa: FBT001 - a parameter of the test
    is_contradicted: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    document = make_document(usage, "It is 4.")
    found = sampled_usage(document, parse_samples(document), prompt_bytes=99)
    assert (found.is_estimated, found.is_contradicted) == (is_estimated, is_contradicted)
    assert found.n_samples == 1
    if is_estimated:
        assert found.text_bytes == 8
    if is_contradicted:
        assert found.prompt_tokens == 99


def test_choices_that_cannot_be_parsed_came_too() -> None:
    document = make_document({"prompt_tokens": 5, "completion_tokens": 2}, "4")
    document["choices"].append({"index": 1})
    assert sampled_usage(document, parse_samples(document), prompt_bytes=9).n_samples == 2


def test_texts_tool_calls_and_reasoning_are_content_and_nothing_else_is() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "é", "reasoning_content": "hm", "tool_calls": [call]}
    logprobs = {"content": [{"token": "é", "logprob": -1.0, "text": "no"}]}
    choice = {"message": message, "logprobs": logprobs, "finish_reason": "stop"}
    assert content_bytes([choice]) == 2 + 2 + 1 + 2
    nested: Any = "deep"
    for _ in range(5000):
        nested = {"content": nested}
    assert content_bytes(nested) == 4
