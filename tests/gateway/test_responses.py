"""The Responses API of a gateway, with the official client as the caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra 'serve' is not installed")

import openai
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from adacompute.gateway.requests.openai_replies import edit_response_event, one_response
from adacompute.gateway.requests.openai_requests import VirtualRequest
from adacompute.gateway.voting.request_model import RequestModel, Target
from adacompute.models.formats.body import Body
from adacompute.models.messages import Sample
from adacompute.models.openai import Upstream
from adacompute.storage.decisions import read_decisions
from adacompute.testing.fake_answers import FakeSettings
from adacompute.testing.fake_openai import FakeUpstream, serve_fake
from test_support import gateways, scripted
from test_support.scripted import ScriptedReply, ScriptedServer

JSON = [("Content-Type", "application/json")]
EVENTS = [("Content-Type", "text/event-stream")]
PATH = "/v1/responses"
Launch = Callable[..., AbstractContextManager[int]]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with serve_fake(FakeSettings(reasoning_tokens=3, completion_tokens=6)) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def client(fake: FakeUpstream, launch: Launch) -> Iterator[openai.OpenAI]:
    """The official client of a gateway process whose model draws two samples."""
    with (
        launch(base_url=fake.base_url) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as found,
    ):
        yield found


def check_usage(response: Response, n_calls: int) -> None:
    usage = response.usage
    assert usage is not None
    assert usage.output_tokens == n_calls * 9
    assert usage.output_tokens_details.reasoning_tokens == n_calls * 3
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.model_dump()["num_calls"] == n_calls


def test_the_official_client_gets_a_voted_response(
    client: openai.OpenAI, fake: FakeUpstream
) -> None:
    before = fake.stats()["choices"]
    reply = client.responses.with_raw_response.create(model="thrifty", input="What is 2 + 2?")
    response = reply.parse()
    assert response.output_text.startswith("The answer is ")
    assert reply.headers["x-adacompute-samples"] == "2"
    assert fake.stats()["choices"] - before == 2
    check_usage(response, 2)
    Response.model_validate(json.loads(reply.text))  # strict, unlike the client


def test_the_official_client_gets_a_voted_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="thrifty", input="2 + 2?", stream=True))
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert {"response.output_item.added", "response.content_part.added"} < set(kinds)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    first, last = events[0], events[-1]
    assert first.type == "response.created"
    assert last.type == "response.completed"
    assert (first.response.id, last.response.output_text) == (last.response.id, said)
    check_usage(last.response, 2)


@pytest.mark.parametrize(("model", "n_calls"), [("thrifty", 2), ("single", 1)])
def test_the_streaming_helper_of_the_official_client_gets_the_final_response(
    client: openai.OpenAI, model: str, n_calls: int
) -> None:
    with client.responses.stream(model=model, input="2 + 2?", instructions="Be brief.") as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == "".join(texts)
    assert final.usage is not None
    assert final.usage.output_tokens == 9 * n_calls


def test_a_response_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    response = client.responses.create(model="thrifty", input="2 + 2?", max_output_tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def document(text: str, *, thought: str = "", status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [{"logprob": -1}]}
    summary = {"type": "summary_text", "text": thought}
    return {
        "id": f"resp_{text}",
        "object": "response",
        "status": status,
        "output": [
            {"type": "reasoning", "summary": [summary]},
            {"type": "message", "role": "assistant", "content": [part]},
        ],
        "usage": {"input_tokens": 7, "output_tokens": 5, "output_tokens_details": {}},
    }


def whole(response: dict[str, Any]) -> ScriptedReply:
    return ScriptedReply(200, JSON, [json.dumps(response).encode()])


def streamed(response: dict[str, Any]) -> ScriptedReply:
    text = response["output"][1]["content"][0]["text"]
    events = [
        {"type": "response.created", "response": {**response, "output": [], "usage": None}},
        {"type": "response.output_text.delta", "delta": text, "logprobs": [{"logprob": -1}]},
        {"type": f"response.{response['status']}", "response": response},
    ]
    parts = [
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    ]
    return ScriptedReply(200, EVENTS, parts, framing="chunked")


@contextmanager
def serving(tmp_path: Path, **options: Any) -> Iterator[tuple[ScriptedServer, int]]:
    """A gateway that draws one sample after another until they agree, at most 4."""
    gateways.save_example_bundle(tmp_path / "policy")
    model = {"bundle": str(tmp_path / "policy"), "budget": 2}
    log = {"state_directory": str(tmp_path), "decision_log": "answers"}
    with gateways.serve_scripted_gateway(model, **log, **options) as served:
        yield served


def ask(port: int, path: str = PATH, **options: Any) -> gateways.GatewayReply:
    body = {"model": "virtual", "adacompute": {"budget": 2}, **options}
    return gateways.send(port, "POST", path, body=json.dumps(body).encode())


def final_text(stream: bytes) -> str:
    last = stream.rstrip().rpartition(b"data: ")[2]
    text: str = json.loads(last)["response"]["output"][1]["content"][0]["text"]
    return text


texts = st.sampled_from(["It is 4", "4.0", "5", "no number", ""])
drawn = st.builds(
    document,
    texts,
    thought=st.sampled_from(["", "17"]),
    status=st.sampled_from(["completed", "incomplete"]),
)


def test_the_same_responses_give_the_same_vote_with_a_stream_and_without(tmp_path: Path) -> None:
    with serving(tmp_path) as (upstream, port):

        @settings(max_examples=20, deadline=None)
        @given(st.lists(drawn, min_size=4, max_size=4))
        def compare(responses: list[dict[str, Any]]) -> None:
            upstream.answer(*map(whole, responses))
            plain = json.loads(ask(port, input="2 + 2?").body)
            upstream.answer(*map(streamed, responses))
            stream = ask(port, input="2 + 2?", stream=True).body
            assert final_text(stream) == plain["output"][1]["content"][0]["text"]
            assert stream.count(b"num_calls") == 1

        compare()
    rows = read_decisions(tmp_path / "decisions").to_pylist()
    for name in ("answers", "samples_used", "chosen", "prompt_tokens", "completion_tokens"):
        assert [row[name] for row in rows[::2]] == [row[name] for row in rows[1::2]]


def test_a_sample_sends_the_clients_body_with_the_model_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as (upstream, port):
        upstream.answer(whole(document("4")))
        ask(port, input=[{"role": "user", "content": [{"type": "input_text", "text": "2?"}]}])
        received = upstream.received[0]
    assert received.target == PATH
    assert json.loads(received.body)["model"] == "real"
    assert set(json.loads(received.body)) == {"model", "input"}


IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
RESULT = {"type": "function_call_output", "call_id": "a", "output": "4"}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"input": "2?", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": [RESULT]}, "tools"),
        ({"input": [IMAGE]}, "images"),
        ({"input": "2?", "temperature": 0}, "temperature"),
        ({"input": "2?", "previous_response_id": "resp_1"}, "prompt"),
        ({"input": "2?", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": "2?", "background": True}, "mode"),
        ({"input": 7}, "prompt"),
        ({}, "prompt"),
    ],
)
def test_responses_that_cannot_be_voted_on_are_forwarded_under_the_upstreams_name(
    tmp_path: Path, members: dict[str, Any], reason: str
) -> None:
    with serving(tmp_path, allow_stored_responses=True) as (upstream, port):
        upstream.answer(whole(document("4")))
        reply = ask(port, **members)
        (received,) = upstream.received
        seen = gateways.send(port, "GET", "/metrics").body.decode()
    assert json.loads(received.body) == {"model": "real", **members}
    assert json.loads(reply.body) == document("4")
    assert f'passthrough_requests_total{{model="virtual",reason="{reason}"}} 1.0' in seen


def test_embeddings_of_a_virtual_model_are_forwarded_under_the_upstreams_name(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (upstream, port):
        upstream.answer(ScriptedReply(200, JSON, [b'{"data": []}']))
        assert ask(port, "/v1/embeddings", input="2?").status == 200
        (received,) = upstream.received
    assert json.loads(received.body) == {"model": "real", "input": "2?"}


def test_messages_to_a_virtual_model_are_refused_and_others_are_forwarded(tmp_path: Path) -> None:
    with serving(tmp_path, allowed_paths=["POST /v1/messages"]) as (upstream, port):
        upstream.answer(ScriptedReply(200, JSON, [b"{}"]))
        refused = ask(port, "/v1/messages", messages=[])
        assert upstream.received == []
        assert ask(port, "/v1/messages", model="other", messages=[]).status == 200
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["param"]) == (400, "model")


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_response_that_failed_is_no_sample(tmp_path: Path, status: str, *, stream: bool) -> None:
    failed = document("4", status=status)
    with serving(tmp_path) as (upstream, port):
        upstream.answer(streamed(failed) if stream else whole(failed))
        reply = ask(port, input="2?", stream=stream)
    assert reply.status == (200 if stream else 502)
    assert b'"error"' in reply.body


def test_an_upstream_without_responses_is_reported(tmp_path: Path) -> None:
    with serving(tmp_path) as (upstream, port):
        upstream.answer(ScriptedReply(404, JSON, [b'{"error": {"message": "no such path"}}']))
        reply = ask(port, input="2?")
    assert (reply.status, json.loads(reply.body)["error"]["message"]) == (404, "no such path")


@pytest.mark.parametrize("stream", [True, False])
def test_log_probabilities_that_the_policy_needs_are_requested_and_hidden(*, stream: bool) -> None:
    body = Body.parse(json.dumps({"input": "2?", "include": ["x"], "stream": stream}).encode())
    assert body is not None
    request = VirtualRequest(body, "responses", "virtual", None, debug=False)

    async def main(url: str) -> tuple[Sample, RequestModel]:
        async with Upstream(url, "real") as server:
            model = RequestModel({None: Target(server)}, request, "real", want_logprobs=True)
            samples = model.sample("", 1, on_usage=model.calls.append)
            (found,) = [one async for one in samples]
            return found, model

    with scripted.serve_scripted() as upstream:
        upstream.answer(streamed(document("4")) if stream else whole(document("4")))
        sample, model = asyncio.run(main(upstream.base_url))
        sent = json.loads(upstream.received[0].body)
    assert sent["include"] == ["x", "message.output_text.logprobs"]
    assert sample.mean_logprob == -1
    assert model.calls[0].tokens["completion_tokens"] == 5
    if stream:
        shown = b"".join(
            edit_response_event(event, {}, hide_logprobs=True) for event in sample.raw.events
        )
        assert shown.count(b"event: ") == shown.count(b"\n\n") == 3
    else:
        shown = one_response(sample.raw.document, {}, hide_logprobs=True)
    assert b'"logprobs":[]' in shown
    assert b'"logprob"' not in shown
