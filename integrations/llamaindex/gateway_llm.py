"""LlamaIndex: an LLM whose answers the gateway samples adaptively.

Start the gateway (``adacompute serve``), then run

    python gateway_llm.py http://127.0.0.1:8000/v1 SmolLM2-135M-Instruct "What is 17 + 25?"
"""

from __future__ import annotations

import os
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def make_llm(base_url: str, model: str, *, budget: float | None = None) -> OpenAILike:
    """Return an LLM that asks the gateway for its virtual model.

    The temperature must be above 0: requests with 0 are not voted on. ``budget`` replaces that of
    the gateway, up to the ``max_budget`` of the model.
    """
    return OpenAILike(
        model=model,
        api_base=base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        is_chat_model=True,
        temperature=0.7,
        timeout=600.0,  # several rounds of samples take longer than one
        default_headers={} if budget is None else {"x-adacompute-budget": str(budget)},
    )


if __name__ == "__main__":
    url, name, text = sys.argv[1:]
    response = make_llm(url, name).chat([ChatMessage(role="user", content=text)])
    print(response.message.content, response.raw.usage)  # num_calls: calls to the upstream
