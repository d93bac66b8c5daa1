"""Clients that people use work through the gateway as they do without it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from test_support.scripted import ScriptedReply, ScriptedServer

openai = pytest.importorskip("openai", reason="needs the official client")

JSON = ("Content-Type", "application/json")
EVENTS = ("Content-Type", "text/event-stream")
DONE = b"data: [DONE]\n\n"
ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
SCRIPT = Path(__file__).with_name("node_client.mjs")


def document(message: dict[str, Any], finish: str = "stop") -> ScriptedReply:
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "real",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }
    return ScriptedReply(200, [JSON], [json.dumps(whole).encode()])


def says(text: str) -> ScriptedReply:
    return document({"role": "assistant", "content": text})


def streamed(*deltas: dict[str, Any], finish: str = "stop") -> ScriptedReply:
    def event(choices: list[Any], **more: Any) -> bytes:
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "real"}
        return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"

    events = [event([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    events.append(event([{"index": 0, "delta": {}, "finish_reason": finish}]))
    return ScriptedReply(200, [EVENTS], [*events, event([], usage=USAGE), DONE], "chunked")


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
    ],
}


def refusal(status: int) -> ScriptedReply:
    told = {"message": "no", "type": "t", "param": "p", "code": "c"}
    data = json.dumps({"error": told}).encode()
    return ScriptedReply(status, [JSON, ("Retry-After", "7"), ("X-Request-Id", "r1")], [data])


def connect(base_url: str) -> Any:
    return openai.OpenAI(base_url=base_url, api_key="sk-any", max_retries=0, timeout=20)


@pytest.fixture
def through(gateway: int) -> Iterator[Any]:
    with connect(f"http://127.0.0.1:{gateway}/v1") as client:
        yield client


@pytest.fixture
def direct(upstream: ScriptedServer) -> Iterator[Any]:
    with connect(upstream.base_url) as client:
        yield client


def run_agent(client: Any) -> list[Any]:
    """An agent that knows nothing of gateways: it calls tools until there is an answer."""
    messages: list[Any] = list(ASKED)
    while True:
        reply = client.chat.completions.create(model="real", messages=messages, tools=TOOLS)
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return messages
        for call in said.tool_calls:
            content = str(json.loads(call.function.arguments)["a"] * 10)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def test_an_agent_runs_as_it_does_without_the_gateway(
    direct: Any, through: Any, upstream: ScriptedServer
) -> None:
    seen = []
    for client in (direct, through):
        upstream.answer(document(CALL, "tool_calls"), says("30"))
        transcript = run_agent(client)
        seen.append((transcript, [received.body for received in upstream.received]))
    assert seen[0] == seen[1]
    transcript, bodies = seen[1]
    assert [message["role"] for message in transcript] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert len(bodies) == 2


def test_an_answer_is_parsed_as_it_is_without_the_gateway(
    direct: Any, through: Any, upstream: ScriptedServer
) -> None:
    upstream.answer(says("It is 4."))
    answers = [
        client.chat.completions.create(model="real", messages=ASKED) for client in (direct, through)
    ]
    assert answers[0] == answers[1]
    assert answers[1].choices[0].message.content == "It is 4."


@pytest.mark.parametrize("model", ["real", "single"])
def test_a_stream_is_parsed_as_it_is_without_the_gateway(
    model: str, direct: Any, through: Any, upstream: ScriptedServer
) -> None:
    upstream.answer(streamed({"role": "assistant"}, {"content": "It is "}, {"content": "4."}))
    asked = {"messages": ASKED, "stream": True}
    alone = list(direct.chat.completions.create(model="real", **asked))
    assert list(through.chat.completions.create(model=model, **asked)) == alone
    assert len(alone) == 5


def test_deltas_of_parallel_tool_calls_all_arrive(through: Any, upstream: ScriptedServer) -> None:
    calls = [
        {"tool_calls": [{"index": index, "id": name, "function": {"arguments": "{}"}}]}
        for index, name in enumerate("ab")
    ]
    upstream.answer(streamed(*calls, finish="tool_calls"))
    stream = through.chat.completions.create(
        model="thrifty", messages=ASKED, tools=TOOLS, stream=True
    )
    found = [c.choices[0].delta.tool_calls for c in stream if c.choices]
    assert [call[0].id for call in found if call] == ["a", "b"]


@pytest.mark.parametrize("model", ["real", "thrifty"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
    ],
)
def test_rejections_are_parsed(
    status: int, kind: str, model: str, through: Any, upstream: ScriptedServer
) -> None:
    upstream.answer(refusal(status))
    with pytest.raises(getattr(openai, kind)) as caught:
        through.chat.completions.create(model=model, messages=ASKED)
    assert caught.value.status_code == status
    if model == "real":
        assert (caught.value.code, caught.value.param) == ("c", "p")
        assert caught.value.response.headers["retry-after"] == "7"


def test_an_upstream_that_fails_is_a_servers_error(through: Any, upstream: ScriptedServer) -> None:
    upstream.answer(refusal(500))
    for model in ("real", "thrifty"):
        with pytest.raises(openai.InternalServerError) as caught:
            through.chat.completions.create(model=model, messages=ASKED)
        assert caught.value.body["message"]


def test_votes_are_counted_and_their_usage_reported(through: Any, upstream: ScriptedServer) -> None:
    upstream.answer(says("I do not know."), says("It is 4."))
    raw = through.chat.completions.with_raw_response.create(model="thrifty", messages=ASKED)
    answer = raw.parse()
    assert answer.choices[0].message.content == "It is 4."
    assert len(answer.choices) == 1
    assert (answer.usage.completion_tokens, answer.usage.num_calls) == (14, 2)
    assert raw.headers["x-adacompute-samples"] == "2"
    assert raw.headers["x-adacompute-decision"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_voted_stream_begins_with_a_role_and_ends_with_one_usage(
    wanted: bool,  # noqa: FBT001 - a parameter of the test
    through: Any,
    upstream: ScriptedServer,
) -> None:
    upstream.answer(streamed({"role": "assistant"}, {"content": "It is "}, {"content": "4."}))
    chunks = list(
        through.chat.completions.create(
            model="thrifty",
            messages=ASKED,
            stream=True,
            **({"stream_options": {"include_usage": True}} if wanted else {}),
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert not chunks[0].choices[0].delta.content
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "It is 4."
    bills = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(bills) == wanted
    assert all(chunk.choices for chunk in chunks) != wanted
    if wanted:
        assert bills[0].num_calls == len(upstream.received)


def test_a_budget_can_be_in_the_body_or_the_header(through: Any, upstream: ScriptedServer) -> None:
    upstream.answer(says("4"))
    asked: Any = {"messages": ASKED}
    for extra in (
        {"extra_body": {"adacompute": {"budget": 0.5}}},
        {"extra_headers": {"x-adacompute-budget": "0.5"}},
    ):
        with pytest.raises(openai.BadRequestError, match=r"0\.5 is below 2"):
            through.chat.completions.create(model="thrifty", **asked, **extra)
    assert upstream.received == []


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the official client for Node in it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    place = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), "openai"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=90)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("npm could not install the openai package")
    shutil.copy(SCRIPT, place / SCRIPT.name)
    return place


def run_node(place: Path, base_url: str, model: str) -> Any:
    command = ["node", str(place / SCRIPT.name), base_url, model]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_node_client_works_as_it_does_without_the_gateway(
    node: Path, gateway: int, upstream: ScriptedServer
) -> None:
    replies = (
        says("It is 4."),
        streamed({"role": "assistant"}, {"content": "数 \U0001f600"}),
        document(CALL, "tool_calls"),
        says("30"),
        refusal(429),
    )
    seen = []
    for base_url in (upstream.base_url, f"http://127.0.0.1:{gateway}/v1"):
        upstream.answer(*replies)
        told = run_node(node, base_url, "real")
        seen.append((told, [received.body for received in upstream.received]))
    assert seen[0] == seen[1]
    told, bodies = seen[1]
    assert told["chat"] == "It is 4."
    assert told["stream"] == "数 \U0001f600"
    assert told["agent"] == ["user", "assistant", "tool", "tool", "assistant"]
    assert told["error"] == ["RateLimitError", 429, "c"]
    assert len(bodies) == 5


def test_the_node_client_parses_a_voted_stream(
    node: Path, gateway: int, upstream: ScriptedServer
) -> None:
    streams = [streamed({"role": "assistant"}, {"content": "It is 4."})] * 2
    upstream.answer(says("4"), says("4"), *streams, says("30"))
    told = run_node(node, f"http://127.0.0.1:{gateway}/v1", "thrifty")
    assert told["chat"] == "4"
    assert told["stream"] == "It is 4."
