"""Requests for JSON are forwarded, or graded by the member that the configuration names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai

from adacompute.core.errors import ConfigError
from adacompute.gateway.requests.answer_field import find_answer
from adacompute.gateway.settings.config import make_config
from adacompute.gateway.settings.model_settings import ModelConfig
from adacompute.storage.decisions import read_decisions
from test_support import gateways, scripted
from test_support.scripted import ScriptedReply, ScriptedServer

JSON = [("Content-Type", "application/json")]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
# The rest of each answer holds numbers that must not be graded.
ANSWERS = (5, "4", 4.0, 4)
DRAWN = [{"answer": answer, "check": 4 + i} for i, answer in enumerate(ANSWERS)]


@contextmanager
def serving(tmp_path: Path, **model: Any) -> Iterator[tuple[ScriptedServer, int]]:
    """A gateway that draws one sample after another until they agree, at most 4."""
    gateways.save_example_bundle(tmp_path / "policy")
    given = {"bundle": str(tmp_path / "policy"), "budget": 2, "model": "real", "grader": "numeric"}
    with scripted.serve_scripted() as upstream:
        content = {
            "base_url": upstream.base_url,
            "models": {"virtual": {**given, **model}},
            "probe": False,
            "max_attempts": 1,
            "state_directory": str(tmp_path),
            "decision_log": "answers",
        }
        with gateways.serve_gateway(make_config(content)) as port:
            yield upstream, port


def chat(text: str) -> ScriptedReply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    document = {"choices": [{**choice, "finish_reason": "stop"}], "usage": usage}
    return ScriptedReply(200, JSON, [json.dumps(document).encode()])


def response(text: str) -> ScriptedReply:
    content = [{"type": "output_text", "text": text}]
    document = {"output": [{"type": "message", "content": content}], "status": "completed"}
    return ScriptedReply(200, JSON, [json.dumps(document).encode()])


def ask(port: int, **members: Any) -> gateways.GatewayReply:
    body = {"model": "virtual", "messages": [{"role": "user", "content": "2 + 2?"}], **members}
    return gateways.send(port, "POST", "/v1/chat/completions", body=json.dumps(body).encode())


@pytest.mark.parametrize("wanted", [SCHEMA, {"type": "json_object"}, {}, "json", 7])
def test_a_request_for_json_is_forwarded_with_the_reason(tmp_path: Path, wanted: Any) -> None:
    with serving(tmp_path) as (upstream, port):
        upstream.answer(chat("{}"))
        reply = ask(port, response_format=wanted)
        assert len(upstream.received) == 1
    assert reply.values("x-adacompute-passthrough") == ["format"]
    assert reply.values("x-adacompute-samples") == []


@pytest.mark.parametrize("wanted", [{"type": "text"}, None])
def test_a_request_for_text_is_voted_on(tmp_path: Path, wanted: Any) -> None:
    with serving(tmp_path) as (upstream, port):
        upstream.answer(chat("4"))
        reply = ask(port, response_format=wanted)
    assert int(reply.values("x-adacompute-samples")[0]) > 1
    assert reply.values("x-adacompute-passthrough") == []


@pytest.mark.parametrize("kind", ["json_schema", "text"])
def test_a_response_in_json_is_forwarded_and_one_in_text_is_voted_on(
    tmp_path: Path, kind: str
) -> None:
    body = {"model": "virtual", "input": "2?", "text": {"format": {"type": kind}}}
    with serving(tmp_path) as (upstream, port):
        upstream.answer(response("4"))
        reply = gateways.send(port, "POST", "/v1/responses", body=json.dumps(body).encode())
    assert reply.values("x-adacompute-passthrough") == (["format"] if kind != "text" else [])


def test_the_answer_field_of_json_is_graded_and_the_client_gets_the_whole(tmp_path: Path) -> None:
    with serving(tmp_path, answer_field="/answer") as (upstream, port):
        upstream.answer(*(chat(json.dumps(one)) for one in DRAWN))
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k") as client:
            reply = client.chat.completions.create(
                model="virtual",
                messages=[{"role": "user", "content": "2 + 2?"}],
                response_format={"type": "json_object"},
            )
        upstream.answer(chat("The answer is 4"))
        assert ask(port).status == 200  # text is graded as a whole
    assert json.loads(reply.choices[0].message.content or "") == DRAWN[1]
    first, second = read_decisions(tmp_path / "decisions").to_pylist()
    assert first["answers"] == [0, 1, 1, 1]
    assert set(second["answers"]) == {0}


@pytest.mark.parametrize("pointer", ["answer", "/a~2", "/a~", "~0"])
def test_an_answer_field_must_be_a_json_pointer(pointer: str) -> None:
    with pytest.raises(ConfigError, match="answer_field"):
        ModelConfig("bundle", 2.0, answer_field=pointer)


# The examples of RFC 6901, section 5.
RFC = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, " ": 7, 'k"l': 6}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", json.dumps(RFC)),
        ("/foo", '["bar", "baz"]'),
        ("/foo/0", "bar"),
        ("/", "0"),
        ("/a~1b", "1"),
        ("/c%d", "2"),
        ("/m~0n", "8"),
        ("/ ", "7"),
        ('/k"l', "6"),
        ("/foo/00", ""),
        ("/foo/2", ""),
        ("/foo/-", ""),
        ("/foo/bar", ""),
        ("/nothing/here", ""),
    ],
)
def test_pointers_name_values_as_rfc_6901_says(pointer: str, value: str) -> None:
    assert find_answer(json.dumps(RFC), pointer) == value


@given(st.text(), st.sampled_from(["", "/answer", "/0/~01"]))
def test_any_text_has_an_answer_or_none(text: str, pointer: str) -> None:
    assert isinstance(find_answer(text, pointer), str)
    assert find_answer("[" * 100_000, pointer) == ""
