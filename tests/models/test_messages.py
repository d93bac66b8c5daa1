from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, DataError
from adacompute.models.messages import (
    Capabilities,
    Prompt,
    RetryPolicy,
    Sample,
    Settings,
    Timeouts,
    find_kind,
)

HELLO = ({"role": "user", "content": "hello"},)


def capabilities() -> st.SearchStrategy[Capabilities]:
    types = get_type_hints(Capabilities)
    fields: dict[str, Any] = {
        name: st.sampled_from(get_args(kind)) for name, kind in types.items() if name != "max_n"
    }
    return st.builds(Capabilities, **fields, max_n=st.none() | st.integers(1, 99))


def make_sample(**fields: Any) -> Sample:
    plain = Sample("42", -0.5, 3, "stop", prompt_tokens=9, latency_s=0.1)
    return dataclasses.replace(plain, **fields)


@pytest.mark.parametrize("wrong", [{}, {"messages": HELLO, "text": "hello"}, {"messages": ()}])
def test_a_prompt_that_is_both_or_neither_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a prompt"):
        Prompt(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra": {"stream": True}}, "stream"),
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(**wrong)


def some_settings() -> st.SearchStrategy[Settings]:
    extra = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1) | st.text(max_size=1))
    return st.builds(
        Settings,
        temperature=st.sampled_from([0, 0.0, 0.5, 1, 1.0]),
        top_p=st.sampled_from([None, 0.5, 1]),
        max_tokens=st.sampled_from([None, 1, 2]),
        stop=st.lists(st.text(max_size=2), max_size=2).map(tuple),
        effort=st.sampled_from([None, "low"]),
        logprobs=st.booleans(),
        extra=extra,
    )


@given(left=some_settings(), right=some_settings())
def test_canonical_settings_are_equal_exactly_when_settings_are(
    left: Settings, right: Settings
) -> None:
    assert (left.canonical() == right.canonical()) == (left == right)
    assert json.loads(left.canonical())["temperature"] == left.temperature


@pytest.mark.parametrize(
    ("text", "finish_reason", "expected"),
    [("", "length", True), (" \n", "length", True), ("4", "length", False), ("", "stop", False)],
)
def test_a_sample_without_text_at_the_limit_ran_out_of_tokens(
    text: str, finish_reason: str, *, expected: bool
) -> None:
    assert make_sample(text=text, finish_reason=finish_reason).ran_out_of_tokens is expected


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "x",
        {"n": "perhaps"},
        {"n": []},
        {"max_n": 0},
        {"max_n": True},
        {"m": "native"},
    ],
)
def test_other_documents_are_no_capabilities(wrong: object) -> None:
    with pytest.raises(DataError):
        Capabilities.from_json(wrong)


@given(
    found=capabilities(),
    count=st.integers(1, 100),
    temperature=st.sampled_from([0.0, 0.7]),
    seeded=st.booleans(),
)
def test_a_call_never_asks_for_more_than_is_wanted_or_given(
    found: Capabilities, count: int, temperature: float, *, seeded: bool
) -> None:
    asked = found.choices(count, temperature=temperature, seeded=seeded)
    assert 1 <= asked <= count
    assert asked <= (found.max_n or count)
    if asked > 1:
        assert found.n in {"native", "limited"}
        assert temperature > 0 or found.n_at_temperature_0 == "accepted"
        assert not seeded or found.seed == "rejected" or found.seed_with_n == "distinct"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("honoured", "honoured", "max_tokens"),
        ("ignored", "honoured", "max_completion_tokens"),
        ("rejected", "unknown", "max_completion_tokens"),
        ("honoured", "ignored", "max_tokens"),
        ("rejected", "rejected", "max_tokens"),
        ("unknown", "rejected", "max_tokens"),
    ],
)
def test_the_limit_is_sent_under_the_name_that_works(old: Any, new: Any, name: str) -> None:
    assert Capabilities(max_tokens=old, max_completion_tokens=new).max_tokens_field == name


def test_times_and_attempts_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Timeouts(first_byte_s=0)
    with pytest.raises(ConfigError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ConfigError, match="initial_wait_s"):
        RetryPolicy(initial_wait_s=2, max_wait_s=1)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"system_fingerprint": "fp_ollama"}, "ollama"),
        ({"timings": {}}, "llama.cpp"),
        ({"prompt_logprobs": None, "service_tier": None}, "vllm"),
        ({"service_tier": "default", "system_fingerprint": "fp_1"}, "openai"),
        ({"choices": []}, "generic"),
        ([], "generic"),
    ],
)
def test_the_kind_of_a_server_is_known_by_its_replies(document: object, kind: str) -> None:
    assert find_kind(document) == kind
