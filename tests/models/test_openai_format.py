from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adacompute.core.errors import ConfigError, ModelError, RateLimited
from adacompute.models.formats.failures import (
    RETRIED_STATUSES,
    PermanentFailure,
    Rejection,
    TransientFailure,
    parse_reply,
)
from adacompute.models.formats.openai_format import (
    Choice,
    MalformedReply,
    check_url,
    count_completion_tokens,
    encode,
    parse_error_message,
    parse_json,
    parse_retry_after,
    parse_samples,
    request_body,
    split_by_weight,
)
from adacompute.models.formats.stream_events import EventReader, parse_delta, parse_event
from adacompute.models.messages import Capabilities, Prompt, Settings

CHAT = Prompt(messages=({"role": "user", "content": "2 + 2?"},))
TEXT = Prompt(text="2 + 2 =")
NOW = datetime(2026, 11, 15, tzinfo=UTC)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
NAMES = (
    "choices", "message", "text", "content", "logprobs", "token_logprobs", "logprob", "usage",
    "completion_tokens", "index", "prompt_tokens", "completion_tokens_details", "reasoning_tokens",
    "prompt_tokens_details", "cached_tokens", "finish_reason", "reasoning_content", "error",
)  # fmt: skip
names = st.sampled_from(NAMES)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=25,
)
nearly_choices = st.fixed_dictionaries(
    {"message": st.fixed_dictionaries({"content": scalars | documents})},
    optional={"logprobs": documents, "index": scalars, "finish_reason": scalars, "text": scalars},
)
nearly_usage = st.dictionaries(
    names, st.integers(-1, 99) | st.dictionaries(names, st.integers(0, 99), max_size=2)
)
replies = st.fixed_dictionaries(
    {"choices": st.lists(nearly_choices | documents, max_size=4)},
    optional={"usage": nearly_usage | documents},
)


def chat_reply(*choices: dict[str, Any], **usage: Any) -> dict[str, Any]:
    return {"choices": list(choices), **({"usage": usage} if usage else {})}


def choice(text: str, tokens: int | None = None, **fields: Any) -> dict[str, Any]:
    shown = {} if tokens is None else {"logprobs": {"content": [{"logprob": -0.5}] * tokens}}
    return {"message": {"content": text}, "finish_reason": "stop", **shown, **fields}


def counts(document: Any, usage_counts: str = "unknown") -> tuple[list[int | None], bool]:
    draws = parse_samples(document, usage_counts=usage_counts)
    assert len({draw.is_estimated for draw in draws}) == 1
    return [draw.completion_tokens for draw in draws], draws[0].is_estimated


# Requests


def test_a_completion_request_takes_the_old_form_of_logprobs() -> None:
    settings = Settings(max_tokens=None, stop=("\n",), top_p=0.9)
    assert request_body("m", TEXT, settings, Capabilities(), count=3, seed=5) == {
        "model": "m",
        "prompt": "2 + 2 =",
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["\n"],
        "logprobs": 5,
        "seed": 5,
        "n": 3,
    }


def test_a_seed_that_is_refused_is_not_sent() -> None:
    assert "seed" not in request_body("m", CHAT, Settings(), Capabilities(seed="rejected"), seed=1)


def test_the_limit_takes_the_name_that_the_server_knows() -> None:
    known = Capabilities(max_tokens="rejected", max_completion_tokens="honoured")
    body = request_body("m", CHAT, Settings(max_tokens=9), known)
    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


def test_effort_is_sent_as_reasoning_effort_even_where_it_was_refused() -> None:
    body = request_body(
        "m", CHAT, Settings(effort="low"), Capabilities(reasoning_effort="rejected")
    )
    assert body["reasoning_effort"] == "low"


def test_extra_fields_are_merged_last() -> None:
    settings = Settings(extra={"temperature": 0.1, "min_p": 0.05})
    body = request_body("m", CHAT, settings, Capabilities())
    assert (body["temperature"], body["min_p"]) == (0.1, 0.05)


def test_a_request_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="plain JSON"):
        encode({"value": {1, 2}})


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1:8000",
        "ftp://host/v1",
        "http://",
        "http://host:99999/v1",
        "http://[::1/v1",
        "http://me:secret@host/v1",
        "http://host/v1?key=1",
    ],
)
def test_a_base_url_that_cannot_work_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="base URL"):
        check_url(wrong)


# Draws


def test_a_chat_reply_is_read_with_its_bill() -> None:
    reply = chat_reply(
        choice("four", 2),
        prompt_tokens=11,
        completion_tokens=2,
        prompt_tokens_details={"cached_tokens": 8},
        completion_tokens_details={"reasoning_tokens": 1},
    )
    (draw,) = parse_samples(reply, latency_s=0.25)
    assert (draw.text, draw.finish_reason, draw.mean_logprob, draw.samples_per_call) == (
        "four",
        "stop",
        -0.5,
        1,
    )
    assert (draw.prompt_tokens, draw.cached_tokens, draw.latency_s) == (11, 8, 0.25)
    assert (draw.completion_tokens, draw.reasoning_tokens, draw.is_estimated) == (2, 1, False)


def test_a_completion_reply_is_read_in_the_old_form() -> None:
    reply = {
        "choices": [{"text": " 4", "logprobs": {"token_logprobs": [None, -1.0, -3.0]}}],
        "usage": {"completion_tokens": 3},
    }
    (draw,) = parse_samples(reply)
    assert (draw.text, draw.mean_logprob, draw.completion_tokens, draw.finish_reason) == (
        " 4",
        -2.0,
        3,
        None,
    )


def test_an_empty_message_is_a_draw_and_a_choice_without_one_is_not() -> None:
    reply = chat_reply({"message": {"content": None}, "finish_reason": "length"}, {"index": 1})
    (draw,) = parse_samples(reply)
    assert draw.ran_out_of_tokens


def test_logprobs_that_are_no_numbers_do_not_count_in_the_mean() -> None:
    values = [-1.0, None, float("nan"), float("-inf"), True, "x", 10**400, -2]
    reply = chat_reply(choice("x", logprobs={"content": [{"logprob": v} for v in values]}))
    (draw,) = parse_samples(reply)
    assert draw.mean_logprob == -1.5
    assert draw.completion_tokens == len(values)


# Tokens of each draw


def test_several_choices_are_counted_by_their_logprobs() -> None:
    reply = chat_reply(choice("a", 5), choice("b", 2), completion_tokens=7)
    assert counts(reply, "all") == ([5, 2], False)


def test_a_bill_for_one_choice_only_is_corrected_by_logprobs() -> None:
    reply = chat_reply(choice("a", 5), choice("b", 9), completion_tokens=5)
    assert counts(reply, "one") == counts(reply, "unknown") == ([5, 9], False)


def test_a_bill_above_what_logprobs_show_is_shared_out() -> None:
    reply = chat_reply(choice("a", 6), choice("b", 2), completion_tokens=16)
    assert counts(reply, "all") == ([12, 4], True)
    assert counts(reply, "one") == ([6, 2], False)


def test_a_single_choice_costs_what_the_bill_says() -> None:
    assert counts(chat_reply(choice("a"), completion_tokens=7)) == ([7], False)
    assert counts(chat_reply(choice("a", 3), completion_tokens=103)) == ([103], False)
    assert counts(chat_reply(choice("a", 3), completion_tokens=2)) == ([3], False)


def test_without_logprobs_a_bill_for_all_is_split_by_length() -> None:
    reply = chat_reply(choice("a" * 30), choice("b" * 10), completion_tokens=10)
    assert counts(reply, "all") == counts(reply, "unknown") == ([8, 2], True)


def test_without_logprobs_a_bill_for_one_is_that_of_the_first() -> None:
    reply = chat_reply(choice("a" * 20), choice("b" * 30), completion_tokens=10)
    assert counts(reply, "one") == ([10, 15], True)
    empty_first = chat_reply(choice(""), choice("b" * 30), completion_tokens=10)
    assert counts(empty_first, "one") == ([10, 8], True)


def test_without_a_bill_tokens_are_counted_or_estimated() -> None:
    assert counts(chat_reply(choice("a", 5), choice("b", 2))) == ([5, 2], False)
    assert counts(chat_reply(choice("a" * 9), choice(""))) == ([3, 1], True)


def test_a_bill_of_zeros_is_no_bill() -> None:
    reply = chat_reply(choice("a" * 9), completion_tokens=0, prompt_tokens=0)
    assert counts(reply) == ([3], True)
    assert parse_samples(reply)[0].prompt_tokens is None


def test_reasoning_is_part_of_completion_and_never_added() -> None:
    details = {"reasoning_tokens": 9}
    reply = chat_reply(
        choice("a", 4), choice("b", 8), completion_tokens=12, completion_tokens_details=details
    )
    draws = parse_samples(reply)
    assert [draw.completion_tokens for draw in draws] == [4, 8]
    assert [draw.reasoning_tokens for draw in draws] == [3, 6]


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**4), min_size=1, max_size=20))
def test_shares_add_up_and_keep_proportion(total: int, weights: list[int]) -> None:
    parts = split_by_weight(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole:
        exact = [total * weight / whole for weight in weights]
        assert all(abs(part - due) < 1 for part, due in zip(parts, exact, strict=True))


@given(
    st.lists(
        st.builds(
            Choice,
            text=st.just("x"),
            n_chars=st.integers(0, 500),
            tokens=st.none() | st.integers(1, 200),
        ),
        min_size=1,
        max_size=8,
    ),
    st.none() | st.integers(0, 2000),
    st.sampled_from(["all", "one", "missing", "unknown"]),
)
def test_what_is_not_estimated_was_reported(
    choices: list[Choice], reported: int | None, usage_counts: str
) -> None:
    tokens, estimated = count_completion_tokens(choices, reported, usage_counts)
    assert len(tokens) == len(choices)
    assert all(count >= 0 for count in tokens)
    if not estimated and len(choices) > 1:
        assert tokens == [choice.tokens for choice in choices]
    if estimated and reported is not None and usage_counts != "one":
        assert sum(tokens) == reported


def test_estimates_are_a_quarter_of_the_characters_and_never_nothing() -> None:
    choices = [Choice("", n_chars=size) for size in (0, 1, 4, 5)]
    assert count_completion_tokens(choices, None, "all") == ([1, 1, 1, 2], True)


# Suspicion


@given(documents | replies)
@example({"choices": [{"message": {}, "index": 10**400}], "usage": {"completion_tokens": 1e308}})
def test_any_json_gives_draws_or_is_malformed(document: object) -> None:
    try:
        draws = parse_samples(document)
    except MalformedReply:
        return
    assert draws
    for draw in draws:
        assert draw.completion_tokens is not None
        assert 0 <= draw.reasoning_tokens <= draw.completion_tokens
        assert draw.samples_per_call == len(draws)


@given(st.binary(max_size=40) | documents.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"1" * 5_000)
def test_any_bytes_are_json_or_malformed(body: bytes) -> None:
    with contextlib.suppress(MalformedReply):
        parse_json(body)
    assert isinstance(parse_error_message(body), str)


def test_texts_nested_as_deeply_as_json_allows_are_no_texts() -> None:
    content: Any = "x"
    for _ in range(5_000):
        content = [{"text": content}]
    assert parse_samples(chat_reply({"message": {"content": content}}))[0].text == ""
    with pytest.raises(MalformedReply, match="too deeply"):
        parse_samples({"error": content})


@given(documents.map(lambda value: b"data: " + json.dumps(value).encode()) | st.binary(max_size=30))
def test_any_line_of_a_stream_is_an_event_or_nothing_or_malformed(line: bytes) -> None:
    try:
        events = [parse_event(data) for data in EventReader(1_000).feed(line + b"\n")]
    except MalformedReply:
        return
    for event in events:
        text, finish = parse_delta(event)
        assert isinstance(text, str)
        assert finish is None or isinstance(finish, str)


@given(
    st.lists(st.sampled_from([b"data: 1", b"data:", b"data: [DONE]", b": ping", b"event: x", b""])),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.integers(1, 30),
)
def test_chunks_of_any_size_have_the_same_events(lines: list[bytes], end: bytes, size: int) -> None:
    stream = b"".join(line + end for line in lines)
    reader = EventReader(1_000)
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
    found = [data for chunk in chunks for data in reader.feed(chunk)]
    assert found == [b" 1"] * lines.count(b"data: 1")


def test_a_line_that_is_too_long_is_skipped_and_counted() -> None:
    reader = EventReader(10)
    chunks = [b"data: 1\ndata: 23456", b"78901", b"2\nda", b"ta: 3\n"]
    assert [reader.feed(chunk) for chunk in chunks] == [[b" 1"], [], [], [b" 3"]]
    assert reader.bytes_skipped == len(b"data: 23456") + len(b"78901")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"detail": [{"loc": "n"}]}', '[{"loc": "n"}]'),
        (b'{"message": "too long"}', "too long"),
        (b'{"odd": 1}', '{"odd": 1}'),
        (b"plain words", "plain words"),
        (b"", ""),
    ],
)
def test_the_message_of_an_error_is_found(body: bytes, said: str) -> None:
    assert parse_error_message(body) == said


# Which replies may pass


@pytest.mark.parametrize("status", sorted(RETRIED_STATUSES))
def test_statuses_that_may_pass_are_worth_another_attempt(status: int) -> None:
    with pytest.raises(TransientFailure, match=f"answered {status}: busy") as caught:
        parse_reply(status, {"Retry-After": "7"}, b"busy")
    assert caught.value.retry_after_s == 7
    assert caught.value.error_type is (RateLimited if status in {429, 529} else ModelError)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_other_refusals_are_final(status: int) -> None:
    with pytest.raises(Rejection, match="no") as caught:
        parse_reply(status, {}, b"no")
    assert caught.value.reply.status == status


def test_a_redirection_names_where_to_go_and_is_not_followed() -> None:
    with pytest.raises(Rejection, match="moved to https://other"):
        parse_reply(307, {"Location": "https://other"}, b"")


def test_a_server_that_cannot_do_it_is_broken() -> None:
    with pytest.raises(PermanentFailure, match="501"):
        parse_reply(501, {}, b"not implemented")


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    later = format_datetime(NOW + timedelta(seconds=90), usegmt=True)
    earlier = format_datetime(NOW - timedelta(seconds=90), usegmt=True)
    assert parse_retry_after("1.5", NOW) == 1.5
    assert parse_retry_after(later, NOW) == 90
    assert parse_retry_after(earlier, NOW) == parse_retry_after("-3", NOW) == 0
    assert parse_retry_after(None, NOW) is None
    assert parse_retry_after("nan", NOW) is parse_retry_after("inf", NOW) is None


@given(st.text(max_size=40))
def test_any_retry_after_is_seconds_or_nothing(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or seconds >= 0
