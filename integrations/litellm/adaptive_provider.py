"""LiteLLM: a provider that draws samples of any model that LiteLLM reaches, until a policy stops.

    python adaptive_provider.py openai/MODEL "What is 17 + 25?"

calls the model ``adacompute/openai/MODEL``. The address is taken from OPENAI_BASE_URL, the key from
OPENAI_API_KEY. In the proxy, name ``provider`` as a handler: see proxy.yaml.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import litellm

import adacompute as ada

POLICY = ada.load_policy("example")
BUDGET = 2.0
"""Mean number of samples per question."""


class AdaptiveProvider(litellm.CustomLLM):
    """Answers with the winning sample. Its usage is the sum over all samples.

    The last user message is the question. The decision is in the member ``adacompute`` of the
    response.
    """

    async def acompletion(self, model: str, messages: list[Any], **call: Any) -> Any:  # noqa: ANN401
        """Draw samples until the policy stops."""
        options = {"temperature": 0.7, **call["optional_params"]}
        # In the proxy, both are those of the model in its configuration.
        options |= {name: call[name] for name in ("api_base", "api_key") if call.get(name)}
        question = next(one["content"] for one in reversed(messages) if one["role"] == "user")
        session = POLICY.start(question, budget=BUDGET)
        drawn: list[Any] = []
        while request := session.ask():  # the samples of a round are drawn concurrently
            calls = [litellm.acompletion(model, messages, **options) for _ in range(request.n)]
            drawn += await asyncio.gather(*calls)
            session.tell([one.choices[0].message.content or "" for one in drawn[-request.n :]])
        reply = drawn[session.chosen or 0]
        reply.usage = litellm.Usage(
            prompt_tokens=sum(one.usage.prompt_tokens for one in drawn),
            completion_tokens=sum(one.usage.completion_tokens for one in drawn),
            total_tokens=sum(one.usage.total_tokens for one in drawn),
        )
        reply.adacompute = {
            "answer": session.answer,
            "samples": session.n_samples,
            "agreement": session.agreement,
        }
        return reply

    def completion(self, *args: Any, **call: Any) -> Any:  # noqa: ANN401 - as acompletion
        """Do the same without an event loop."""
        return asyncio.run(self.acompletion(*args, **call))


provider = AdaptiveProvider()

if __name__ == "__main__":
    name, text = sys.argv[1:]
    litellm.custom_provider_map = [{"provider": "adacompute", "custom_handler": provider}]
    chat = [{"role": "user", "content": text}]
    answer = litellm.completion(f"adacompute/{name}", chat)
    print(answer.choices[0].message.content, answer.adacompute, answer.usage)
