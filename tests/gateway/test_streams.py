"""Streams of a gateway: the same votes as without a stream, and one id for all events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.storage.decisions import read_decisions
from test_support import gateways
from test_support.scripted import ScriptedReply, ScriptedServer

JSON = [("Content-Type", "application/json")]
EVENTS = [("Content-Type", "text/event-stream")]
samples = st.tuples(
    st.sampled_from(["It is 4", "4.0", "5", "no number", ""]),
    st.sampled_from(["", "17", "Maybe 4, then 5."]),
    st.sampled_from(["reasoning_content", "reasoning"]),
    st.sampled_from(["stop", "length"]),
)
Drawn = tuple[str, str, str, str]


def whole(drawn: Drawn) -> ScriptedReply:
    text, thought, name, reason = drawn
    message = {"role": "assistant", "content": text, name: thought}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    document = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}
    return ScriptedReply(200, JSON, [json.dumps(document).encode()])


def streamed(drawn: Drawn, number: int = 0) -> ScriptedReply:
    text, thought, name, reason = drawn
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{name: part} for part in (thought[:2], thought[2:])]
    deltas += [{"content": part} for part in (text[:1], text[1:])]
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    head = {"id": f"upstream-{number}", "object": "chat.completion.chunk", "created": number}
    events: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    events.append({**head, "choices": [], "usage": usage})
    parts = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return ScriptedReply(200, EVENTS, [*parts, b"data: [DONE]\n\n"], framing="chunked")


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[ScriptedServer, int]]:
    """A gateway that draws one sample after another until they agree, at most 4."""
    gateways.save_example_bundle(tmp_path / "policy")
    model = {"bundle": str(tmp_path / "policy"), "budget": 2}
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with gateways.serve_scripted_gateway(model, **log) as served:
        yield served


def ask(port: int, **options: Any) -> bytes:
    body = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}], **options}
    data = json.dumps(body).encode()
    reply = gateways.send(port, "POST", "/v1/chat/completions", body=data)
    assert reply.status == 200
    return reply.body


def text_of(body: bytes) -> str:
    events = [line for line in body.splitlines() if line.startswith(b"data: {")]
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in events]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def test_the_same_samples_give_the_same_vote_with_a_stream_and_without(tmp_path: Path) -> None:
    with serving(tmp_path) as (upstream, port):

        @settings(max_examples=30, deadline=None)
        @given(st.lists(samples, min_size=4, max_size=4))
        def compare(drawn: list[Drawn]) -> None:
            upstream.answer(*map(whole, drawn))
            plain = json.loads(ask(port))["choices"][0]["message"]["content"]
            upstream.answer(*map(streamed, drawn))
            assert text_of(ask(port, stream=True)) == plain

        compare()
    rows = read_decisions(tmp_path / "decisions").to_pylist()
    for name in ("answers", "samples_used", "chosen", "prompt_tokens", "completion_tokens"):
        assert [row[name] for row in rows[::2]] == [row[name] for row in rows[1::2]]
    assert len(rows) >= 40


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_all_events_of_a_voted_stream_have_one_id(tmp_path: Path, path: str) -> None:
    with serving(tmp_path) as (upstream, port):
        drawn: list[Drawn] = [(text, "", "reasoning", "stop") for text in ("5", "4", "4", "4")]
        upstream.answer(*(streamed(one, number) for number, one in enumerate(drawn)))
        url = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            if path == "chat":
                stream: Any = client.chat.completions.create(
                    model="virtual",
                    messages=[{"role": "user", "content": "2 + 2?"}],
                    stream=True,
                    stream_options={"include_usage": True},
                )
            else:
                stream = client.completions.create(
                    model="virtual",
                    prompt="2 + 2?",
                    stream=True,
                    stream_options={"include_usage": True},
                )
            chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].id.startswith("chatcmpl-" if path == "chat" else "cmpl-")
    assert chunks[-1].usage is not None
