"""Test of the LlamaIndex example through the gateway, with a fake upstream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway_llm import make_llm
from llama_index.core.llms import ChatMessage

from conftest import MODEL

if TYPE_CHECKING:
    from conftest import Server

CHATS = [[ChatMessage(role="user", content=f"What is {n} + {n}?")] for n in range(5)]


def test_usage_is_the_sum_over_samples(gateway: Server, upstream: Server) -> None:
    llm = make_llm(gateway.base_url, MODEL)
    before = upstream.counts()
    responses = [llm.chat(chat) for chat in CHATS]
    after = upstream.counts()
    assert after["choices"] - before["choices"] > len(CHATS)
    tokens = sum(response.raw.usage.completion_tokens for response in responses)
    assert tokens == after["tokens"] - before["tokens"]
    assert all(response.message.content.startswith("The answer is") for response in responses)


def test_streams_asynchronous_calls_and_budgets(gateway: Server) -> None:
    llm = make_llm(gateway.base_url, MODEL, budget=1.5)
    *_, last = llm.stream_chat(CHATS[0])
    assert last.message.content.startswith("The answer is")
    response = asyncio.run(llm.achat(CHATS[1]))
    assert response.raw.usage.num_calls >= 1
