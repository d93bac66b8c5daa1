"""OpenAI Agents SDK: tools run as always, and the final answer is sampled adaptively.

Start the gateway (``adacompute serve``), then run

    python gateway_agents.py http://127.0.0.1:8000/v1 SmolLM2-135M-Instruct "What is 17 + 25?"

The gateway forwards requests with tools unchanged, and those that contain results of tools. So the
first agent works with tools; the second one has none, gets the findings as a text, and answers.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    RunResult,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(disabled=True)  # traces would be sent to OpenAI


@function_tool
def look_up(topic: str) -> str:
    """Look up a topic."""
    return f"There is no entry about {topic}."


def make_agents(base_url: str, model: str) -> tuple[Agent, Agent]:
    """Return an agent with tools, and one for the final answer."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    client = AsyncOpenAI(base_url=base_url, api_key=key, timeout=600)
    through_gateway = OpenAIChatCompletionsModel(model, client)
    sampled = ModelSettings(temperature=0.7)  # requests with temperature 0 are not voted on
    worker = Agent(
        "Worker",
        instructions="Collect what is needed to answer.",
        model=through_gateway,
        tools=[look_up],
    )
    answerer = Agent("Answerer", model=through_gateway, model_settings=sampled)
    return worker, answerer


async def answer(base_url: str, model: str, question: str) -> tuple[RunResult, RunResult]:
    """Run both agents; ``context_wrapper.usage`` of each has the tokens of all samples."""
    worker, answerer = make_agents(base_url, model)
    work = await Runner.run(worker, question)
    prompt = f"{work.final_output}\n\n{question}"
    return work, await Runner.run(answerer, prompt)


if __name__ == "__main__":
    _, result = asyncio.run(answer(*sys.argv[1:]))
    print(result.final_output, result.context_wrapper.usage)
