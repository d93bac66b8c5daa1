"""Under caps and limits, clients that people use work unchanged, and a real server obeys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from adacompute.testing.fake_openai import FakeUpstream, serve_fake
from adacompute.testing.llama import missing_requirement
from test_support.llama import serve_llama

openai = pytest.importorskip("openai", reason="needs the official client")
Launch = Callable[..., AbstractContextManager[int]]

ASKED: list[Any] = [{"role": "user", "content": "What is 2 + 2?"}]
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {"file_id": {}}}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        ],
    }
]
SCHEMA = {"name": "s", "strict": True, "schema": {"type": "object", "properties": {}}}
CAPS = 'caps = [{ amount = 1e9, unit = "tokens" }, { amount = 1e6, unit = "samples" }]'
SETTINGS = {
    "without caps": "",
    "with caps": f"max_samples = 8\nmax_output_tokens = 64\n{CAPS}",
}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeUpstream]:
    with serve_fake() as upstream:
        yield upstream


@pytest.fixture(scope="module", params=SETTINGS)
def client(request: pytest.FixtureRequest, launch: Launch, fake: FakeUpstream) -> Iterator[Any]:
    with launch(settings=SETTINGS[request.param], base_url=fake.base_url) as port:
        url = f"http://127.0.0.1:{port}/v1"
        headers = {"OpenAI-Organization": "o", "OpenAI-Project": "p"}
        with openai.OpenAI(
            base_url=url, api_key="none", max_retries=0, default_headers=headers
        ) as found:
            yield found


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "real", "messages": ASKED, **options})


REQUESTS: dict[str, Callable[[Any], Any]] = {
    "chat": chat,
    "chat, voted": lambda client: chat(client, model="thrifty", user="u", metadata={"a": "b"}),
    "chat, max_completion_tokens": lambda client: chat(client, max_completion_tokens=9),
    "chat, stream": lambda client: list(
        chat(client, stream=True, stream_options={"include_usage": True})
    ),
    "chat, voted stream": lambda client: list(chat(client, model="thrifty", stream=True)),
    "chat, several choices": lambda client: chat(client, n=3, seed=1, temperature=0.5, top_p=0.9),
    "chat, tools": lambda client: chat(
        client,
        tools=[{"type": "function", "function": TOOL}],
        tool_choice="auto",
        parallel_tool_calls=False,
    ),
    "chat, image": lambda client: chat(client, messages=IMAGE),
    "chat, structured output": lambda client: chat(
        client, response_format={"type": "json_schema", "json_schema": SCHEMA}
    ),
    "chat, options": lambda client: chat(
        client,
        reasoning_effort="low",
        logprobs=True,
        top_logprobs=2,
        stop=["\n"],
        logit_bias={"1": 2},
        presence_penalty=0.1,
        frequency_penalty=0.1,
        store=False,
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        verbosity="low",
    ),
    "completions": lambda client: client.completions.create(model="real", prompt="2 + 2 ="),
    "completions, prompts": lambda client: client.completions.create(
        model="real", prompt=["2 + 2 =", "3 + 3 ="], max_tokens=3
    ),
    "responses": lambda client: client.responses.create(model="real", input="What is 2 + 2?"),
    "responses, stream": lambda client: list(
        client.responses.create(model="real", input="What is 2 + 2?", stream=True)
    ),
    "responses, tools": lambda client: client.responses.create(
        model="real", input=ASKED, tools=[{"type": "function", "strict": False, **TOOL}]
    ),
    "embeddings": lambda client: client.embeddings.create(model="real", input=["a", "b"]),
    "models": lambda client: list(client.models.list()),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_official_client_works_unchanged(name: str, client: Any) -> None:
    assert REQUESTS[name](client)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"n_predict": 300}, {"max_completion_tokens": 300}, {"max_tokens": -1}], ids=str
)
def test_a_real_server_generates_no_more_than_the_limit(
    fields: dict[str, Any], launch: Launch
) -> None:
    if reason := missing_requirement():
        pytest.skip(reason)
    with (
        serve_llama(slots=1) as llama,
        launch(settings="max_output_tokens = 5", base_url=llama.base_url) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client,
    ):
        told = [{"role": "user", "content": "Count from 1 to 100."}]
        reply = client.chat.completions.create(model=llama.model, messages=told, extra_body=fields)
    assert 1 <= reply.usage.completion_tokens <= 5
