"""Tests of the OpenAI Agents example through the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from gateway_agents import answer

from conftest import MODEL, Server
from test_support.gateways import fetch
from test_support.scripted import ScriptedReply, serve_scripted

QUESTION = "What is 2 + 2?"


def make_reply(**message: Any) -> ScriptedReply:  # noqa: ANN401 - JSON
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    content = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL}
    body = json.dumps({**content, "choices": [choice], "usage": usage}).encode()
    return ScriptedReply(200, [("Content-Type", "application/json")], [body])


def test_the_final_answer_is_sampled(gateway: Server, upstream: Server) -> None:
    before = upstream.counts()
    results = [asyncio.run(answer(gateway.base_url, MODEL, f"{n} + {n}?")) for n in range(5)]
    after = upstream.counts()
    usages = [result.context_wrapper.usage for pair in results for result in pair]
    assert sum(usage.output_tokens for usage in usages) == after["tokens"] - before["tokens"]
    assert after["choices"] - before["choices"] > sum(usage.requests for usage in usages)
    page = fetch(f"http://127.0.0.1:{gateway.port + 1}/metrics")
    assert f'adacompute_passthrough_requests_total{{model="{MODEL}",reason="tools"}} 5.0' in page


def test_tools_are_forwarded_unchanged(serve: Callable[[str], Server]) -> None:
    call = {"name": "look_up", "arguments": '{"topic": "sums"}'}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    replies = [make_reply(content=None, tool_calls=calls), *[make_reply(content="It is 4.")] * 2]
    with serve_scripted() as upstream:
        bodies = []
        for base_url in (upstream.base_url, serve(upstream.base_url).base_url):
            upstream.answer(*replies)
            work, final = asyncio.run(answer(base_url, MODEL, QUESTION))
            bodies.append([one.body for one in upstream.received])
    direct, through_gateway = bodies
    assert through_gateway[:2] == direct[:2]  # byte for byte
    first, second, *samples = [json.loads(body) for body in through_gateway]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["look_up"]
    assert second["messages"][-1]["role"] == "tool"
    assert second["messages"][-1]["content"] == "There is no entry about sums."
    assert work.context_wrapper.usage.requests == 2
    assert samples
    assert all("tools" not in sample for sample in samples)
    assert final.context_wrapper.usage.output_tokens == 5 * len(samples)
