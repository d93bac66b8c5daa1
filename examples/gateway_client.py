"""Gateway client: call the gateway with the official OpenAI client and read what it decided.

Start a gateway (``adacompute serve``, see docs/how-to/serve.md), then run
``python examples/gateway_client.py MODEL "What is 17 + 25?"``. It needs ``pip install openai``.
The address is taken from OPENAI_BASE_URL, for example http://127.0.0.1:8000/v1. The gateway must
allow a budget of 4 for the model (``max_budget = 4``).
"""

from __future__ import annotations

import sys

import openai

BUDGETS = (2, 4)


def main() -> None:
    """Ask the same question with two budgets, and print the answer and its cost."""
    model, question = sys.argv[1:]
    client = openai.OpenAI()
    for budget in BUDGETS:
        reply = client.chat.completions.with_raw_response.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0.7,
            extra_body={"adacompute": {"budget": budget}},
        )
        completion = reply.parse()
        samples = reply.headers["x-adacompute-samples"]
        tokens = completion.usage.total_tokens if completion.usage else None
        print(f"budget {budget}: {samples} samples, {tokens} tokens")
        print(completion.choices[0].message.content)


if __name__ == "__main__":
    main()
