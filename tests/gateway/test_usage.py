"""The usage of replies: read in any spelling, and not believed where it contradicts the reply."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

from adacompute.core.types import make_levels
from adacompute.gateway.forwarding.usage_reader import UsageReader
from adacompute.gateway.settings.config import make_config
from adacompute.models.capabilities_cache import save_cached
from adacompute.models.formats.openai_format import sampled_usage
from adacompute.models.formats.streams import parse_stream
from adacompute.models.messages import Capabilities
from adacompute.models.model import CallUsage
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.storage.calls import read_calls
from adacompute.testing.fake_openai import FakeSettings, serve_fake
from adacompute.testing.fake_usage import BROKEN_USAGE
from test_support import gateways
from test_support.scripted import ScriptedReply
from test_support.spend import compare_spend

JSON = [("Content-Type", "application/json")]
EVENTS = [("Content-Type", "text/event-stream")]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
OTHER_ZEROS = {"input_tokens": 0, "output_tokens": 0}
TEXT = "It is 4, é."
TOOL = [{"index": 0, "function": {"name": "add", "arguments": '{"a": 2}'}}]
CAPS: list[dict[str, Any]] = [{"amount": 10_000, "unit": "tokens", "period": "all"}]


def event(**members: Any) -> bytes:
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def chat(text: str | None = TEXT, n: int = 1, usage: object = USAGE, **message: Any) -> bytes:
    content = {"role": "assistant", "content": text, **message}
    choices = [{"index": i, "message": content, "finish_reason": "stop"} for i in range(n)]
    return json.dumps({"object": "chat.completion", "choices": choices, "usage": usage}).encode()


def response(usage: object) -> bytes:
    part = {"type": "output_text", "text": TEXT}
    output = [{"type": "message", "content": [part]}]
    return json.dumps({"status": "completed", "output": output, "usage": usage}).encode()


def stream(usage: object, **delta: Any) -> bytes:
    delta = delta or {"content": TEXT}
    return (
        event(choices=[{"index": 0, "delta": delta, "finish_reason": "stop"}])
        + event(choices=[], usage=usage)
        + b"data: [DONE]\n\n"
    )


def response_stream(usage: object) -> bytes:
    final = {"type": "response.completed", "response": json.loads(response(usage))}
    return event(type="response.output_text.delta", delta=TEXT) + event(**final)


def read(data: bytes, *, is_broken: bool = False, **options: Any) -> CallUsage:
    reader = UsageReader([], keep_body=False, **options)
    if not data.startswith(b"data:"):
        found = reader.read_document(data)
        assert found is not None
        return found
    reader.feed(data)
    return reader.stream_usage(is_broken=is_broken)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_last_usage_of_a_stream_counts(size: int) -> None:
    text = '"usage": {"prompt_tokens": 900, "completion_tokens": 900}'
    data = (
        event(choices=[{"delta": {"content": text}}], usage=None)
        + event(choices=[{"delta": {"content": "b"}}], usage={**USAGE, "completion_tokens": 1})
        + event(choices=[], usage=USAGE)
        + b"data: [DONE]\n\n"
    )
    reader = UsageReader([], keep_body=False)
    for i in range(0, len(data), size):
        reader.feed(data[i : i + size])
    assert reader.stream_usage(is_broken=True) == CallUsage(USAGE, n_samples=1)


def test_a_usage_in_the_middle_of_a_stream_that_broke_off_is_not_final() -> None:
    data = event(choices=[{"delta": {"content": "b"}}], usage=USAGE)
    broken = read(data, is_broken=True)
    assert (broken.is_estimated, broken.reported_tokens, broken.n_samples) == (True, 7, None)
    assert read(data) == CallUsage(USAGE, n_samples=1)


def test_a_last_usage_of_zeros_does_not_replace_an_earlier_one() -> None:
    data = event(choices=[{"delta": {"content": "b"}}], usage=USAGE) + stream(ZEROS)
    assert read(data) == CallUsage(USAGE, n_samples=1)


def test_the_usage_of_a_stream_of_messages_comes_in_two_events() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 3, "output_tokens": 1}
    found = read(
        event(type="message_start", message={"usage": usage})
        + event(type="content_block_delta", delta={"type": "text_delta", "text": "b"})
        + event(type="message_delta", usage={"output_tokens": 9}),
        is_broken=True,
    )
    assert not found.is_estimated
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (8, 9, 3)


@pytest.mark.parametrize("make", [chat, response, stream, response_stream])
@pytest.mark.parametrize("usage", [{**OTHER_ZEROS, **USAGE}, {**USAGE, **OTHER_ZEROS}])
def test_of_two_spellings_the_larger_counts(make: Any, usage: dict[str, int]) -> None:
    data = make(usage=usage)
    found = read(data)
    assert (found.prompt_tokens, found.completion_tokens, found.is_estimated) == (5, 7, False)


@pytest.mark.parametrize(
    "usage",
    [
        *(None, [], "x", {}, {"prompt_tokens": 5}),
        *({**USAGE, "prompt_tokens": bad} for bad in (-1, "5", float("nan"), 10**15, True, [5])),
    ],
)
@pytest.mark.parametrize("make", [chat, response, stream, response_stream])
def test_an_incomplete_usage_is_an_estimate(make: Any, usage: object) -> None:
    found = read(make(usage=usage))
    assert found.is_estimated
    assert not found.is_contradicted
    assert found.text_bytes >= len(TEXT.encode())


@pytest.mark.parametrize(
    "data",
    [
        chat(usage=ZEROS),
        chat(usage={**ZEROS, **OTHER_ZEROS}),
        chat(usage={**USAGE, "completion_tokens": 0, "total_tokens": 5}),
        chat(usage={**USAGE, "prompt_tokens": 0}),
        chat(None, usage=ZEROS, tool_calls=TOOL),
        chat("", usage=ZEROS, reasoning_content="hm"),
        response(OTHER_ZEROS),
        stream(ZEROS),
        stream(ZEROS, tool_calls=TOOL),
        stream(ZEROS, reasoning="hm"),
        response_stream(OTHER_ZEROS),
    ],
)
def test_a_usage_of_no_tokens_contradicts_a_text(data: bytes) -> None:
    found = read(data)
    assert (found.is_estimated, found.is_contradicted) == (True, True)
    assert found.text_bytes > 0


@pytest.mark.parametrize("make", [chat, stream])
def test_a_usage_without_completion_does_not_contradict_an_empty_reply(make: Any) -> None:
    text = {"text": ""} if make is chat else {"content": ""}
    assert not read(make(usage={"prompt_tokens": 5, "completion_tokens": 0}, **text)).is_estimated


def test_embeddings_complete_nothing_and_have_a_prompt() -> None:
    for n_tokens, is_estimated in ((5, False), (0, True)):
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        data = json.dumps({"data": [{"embedding": [0.5]}], "usage": usage}).encode()
        assert read(data).is_estimated == is_estimated


def test_a_usage_before_the_rest_of_the_text_is_an_estimate() -> None:
    text = event(choices=[{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}])
    data = text + event(choices=[], usage=USAGE) + text + b"data: [DONE]\n\n"
    assert read(data).is_estimated
    parsed = parse_stream(200, dict(EVENTS), data)
    assert sampled_usage(parsed.completion, [parsed.to_sample(0)], prompt_bytes=9).is_estimated


def test_choices_that_came_are_counted() -> None:
    assert read(chat(n=3), counts_all=True) == CallUsage(USAGE, n_samples=3)
    parts = [event(choices=[{"index": i % 2, "delta": {"content": "a"}}]) for i in range(6)]
    found = read(b"".join(parts) + event(choices=[], usage=USAGE), counts_all=True)
    assert found == CallUsage(USAGE, n_samples=2)


def test_the_usage_of_several_choices_is_believed_only_if_it_is_known_to_count_all() -> None:
    found = read(chat(n=2))
    assert (found.is_estimated, found.reported_tokens, found.n_samples) == (True, 7, 2)
    assert not read(chat(n=1)).is_estimated


def ask(port: int, path: str, model: str, **body: Any) -> bytes:
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "2 + 2?"}]}
    if path in {"responses", "embeddings"}:
        question = {"input": "2 + 2?"}
    data = json.dumps({"model": model, **question, **body}).encode()
    headers = [*JSON, ("x-request-id", f"{model} {path} {body}")]
    assert gateways.send(port, "POST", f"/v1/{path}", headers=headers, body=data).status == 200
    return data


def save_policy(path: Path) -> dict[str, Any]:
    policy = RulePolicy("fixed", make_levels((1, 2)), (FixedRule(1),), PriceSchedule((0.1,)))
    point = FrontierPoint(1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 0.4, 0.6, 1.0)
    save_bundle(Bundle(policy, frontier=(point,)), path)
    return {"bundle": str(path), "budget": 1.0, "model": "real", "grader": "numeric"}


def count(port: int, name: str) -> float:
    lines = gateways.send(port, "GET", "/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith(f"adacompute_{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def find_spent(port: int) -> float:
    """Return what is spent under the caps, which the metrics show within a second."""
    end = time.monotonic() + 5
    while not (spent := count(port, "cap_spent")) and time.monotonic() < end:
        time.sleep(0.1)
    return spent


PATHS: dict[str, tuple[str, dict[str, Any], Any, list[tuple[str, str]]]] = {
    "chat": ("chat/completions", {"max_tokens": 50}, chat, JSON),
    "stream": ("chat/completions", {"max_tokens": 50, "stream": True}, stream, EVENTS),
    "responses": ("responses", {"max_output_tokens": 50}, response, JSON),
    "response stream": (
        "responses",
        {"max_output_tokens": 50, "stream": True},
        response_stream,
        EVENTS,
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", ["virtual", "other"])
def test_replies_that_report_no_tokens_stay_within_a_cap(
    model: str, path: str, tmp_path: Path
) -> None:
    endpoint, options, make, headers = PATHS[path]
    settings = {"caps": CAPS, "state_directory": str(tmp_path), "max_output_tokens": 50}
    own = save_policy(tmp_path / "policy")
    with gateways.serve_scripted_gateway(own, **settings) as (upstream, port):
        upstream.answer(ScriptedReply(200, headers, [make(usage={**ZEROS, **OTHER_ZEROS})]))
        ask(port, endpoint, model, **options)
        (call,) = read_calls(tmp_path)
        body = upstream.received[0].body
        assert call["is_estimated"]
        assert (call["prompt_tokens"], call["completion_tokens"]) == (len(body), 50)
        assert count(port, "contradicted_usage_total") == 1
        assert find_spent(port) == len(body) + 50
        assert count(port, "cap_overruns_total") == 0


def test_a_text_longer_than_an_assumed_limit_is_charged_by_its_bytes(tmp_path: Path) -> None:
    text = "é" * 4000
    own = save_policy(tmp_path / "policy")
    calls = {"state_directory": str(tmp_path)}
    with gateways.serve_scripted_gateway(own, **calls) as (upstream, port):
        for model, usage in [("virtual", ZEROS), ("other", ZEROS), ("other", None)]:
            upstream.answer(ScriptedReply(200, JSON, [chat(text, usage=usage)]))
            ask(port, "chat/completions", model)
        assert count(port, "contradicted_usage_total") == 2
    assert [call["completion_tokens"] for call in read_calls(tmp_path)] == [8000] * 3


@pytest.mark.parametrize(("counts", "charged"), [("all", 7), ("one", 100), ("unknown", 100)])
def test_several_forwarded_choices_are_counted_as_the_probe_found(
    counts: Any, charged: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = save_policy(tmp_path / "policy")
    with gateways.serve_scripted_gateway(own) as (upstream, _):
        base_url = upstream.base_url
        known = Capabilities(chat="available", usage=counts)
        save_cached(tmp_path / "cache" / "adacompute", base_url, "real", known)
        upstream.answer(ScriptedReply(200, JSON, [chat(n=2)]))
        config = {"base_url": base_url, "state_directory": str(tmp_path), "probe": False}
        models = {"models": {"virtual": own}}
        with gateways.serve_gateway(make_config({**config, **models})) as port:
            ask(port, "chat/completions", "other", n=2, max_tokens=50)
    (call,) = read_calls(tmp_path)
    assert call["completion_tokens"] == charged


@pytest.mark.parametrize(("n", "came", "spent"), [(4, 2, 2), (2, 3, 3), (2, None, 2)])
@pytest.mark.parametrize("is_stream", [False, True])
def test_samples_are_settled_by_the_choices_that_came(
    n: int,
    came: int | None,
    spent: int,
    is_stream: bool,  # noqa: FBT001 - a parameter of the test
    tmp_path: Path,
) -> None:
    caps = [{"amount": 50, "unit": "samples", "period": "all"}]
    own = save_policy(tmp_path / "policy")
    calls = {"state_directory": str(tmp_path)}
    with gateways.serve_scripted_gateway(own, caps=caps, **calls) as (upstream, port):
        indexes = range(came or 0)
        parts = [event(choices=[{"index": i, "delta": {"content": "a"}}]) for i in indexes]
        end = event(choices=[], usage=USAGE)
        data = b"".join(parts) + end if is_stream else chat(n=came or 0)
        data = b"{" if came is None and not is_stream else data
        upstream.answer(ScriptedReply(200, EVENTS if is_stream else JSON, [data]))
        ask(port, "chat/completions", "other", n=n, stream=is_stream)
        assert find_spent(port) == spent


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {}),
    ("chat/completions", {"stream": True}),
    ("chat/completions", {"n": 2}),
    ("chat/completions", {"stream": True, "stream_options": {"include_usage": True}}),
    ("responses", {}),
    ("responses", {"stream": True}),
]


@pytest.mark.parametrize("counts", ["all", "one"])
@pytest.mark.parametrize("kind", BROKEN_USAGE)
def test_the_account_is_never_below_what_was_generated(
    kind: str, counts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = FakeSettings(
        completion_tokens=20,
        usage=counts,
        usage_rates={kind: 0.8},
        record_calls=True,
        vary_tokens=True,
    )
    config = {"caps": CAPS, "state_directory": str(tmp_path), "max_output_tokens": 30}
    models = {"virtual": save_policy(tmp_path / "policy")}
    with serve_fake(settings) as fake:
        known = Capabilities(chat="available", n="native", usage=counts)
        save_cached(tmp_path / "cache" / "adacompute", fake.base_url, "real", known)
        config |= {"base_url": fake.base_url, "models": models, "probe": False}
        with gateways.serve_gateway(make_config(config)) as port:
            for model in ("virtual", "other"):
                for path, options in REQUESTS:
                    ask(port, path, model, **options)
            ask(port, "embeddings", "other", input="2 + 2?")
            overrun = count(port, "cap_overruns_total")
        found = compare_spend(read_calls(tmp_path), fake.calls())
    assert overrun == 0
    assert found.is_right
    assert found.served_tokens <= found.charged_tokens <= CAPS[0]["amount"]
    n_without_usage = 2  # streams that did not ask for it
    assert (found.n_flagged > n_without_usage) == (kind != "spellings" or counts == "one")
