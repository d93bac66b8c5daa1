"""Test of the LangChain example against a fake upstream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from adaptive_chat import AdaptiveChat
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

import adacompute as ada

if TYPE_CHECKING:
    from conftest import Server

QUESTIONS = [f"What is {n} + {n}?" for n in range(10)]


def make_chat(upstream: Server) -> AdaptiveChat:
    model = ChatOpenAI(model="fake", base_url=upstream.base_url, api_key="none", temperature=0.7)
    return AdaptiveChat(chat_model=model, policy=ada.load_policy("example"), budget=2.0)


def test_usage_is_the_sum_over_samples(upstream: Server) -> None:
    answers = make_chat(upstream).batch(QUESTIONS)
    decisions = [answer.response_metadata["adacompute"] for answer in answers]
    counts = upstream.counts()
    assert sum(decision["samples"] for decision in decisions) == counts["choices"] > len(QUESTIONS)
    assert sum(answer.usage_metadata["output_tokens"] for answer in answers) == counts["tokens"]
    for answer, decision in zip(answers, decisions, strict=True):
        assert decision["answer"] in answer.text
        assert 0 < decision["agreement"] <= 1
        assert decision["cost"]["tokens"] == answer.usage_metadata["total_tokens"]


def test_it_is_part_of_a_chain(upstream: Server) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{question}")])
    chain = prompt | make_chat(upstream)
    answer = asyncio.run(chain.ainvoke({"question": QUESTIONS[0]}))
    assert answer.response_metadata["adacompute"]["samples"] == upstream.counts()["choices"]


def test_callbacks_count_each_token_once(upstream: Server) -> None:
    with get_usage_metadata_callback() as usage:
        make_chat(upstream).invoke(QUESTIONS[0])
    counted = sum(one["output_tokens"] for one in usage.usage_metadata.values())
    assert counted == upstream.counts()["tokens"]
