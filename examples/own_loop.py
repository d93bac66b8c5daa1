"""Own loop: your own client draws the samples, and a policy says how many it wants.

Start the small model that ships for trying things out (``python -m adacompute.testing.llama``), or
any server of your own. Then run ``python examples/own_loop.py MODEL``. It needs
``pip install openai``; the address is taken from OPENAI_BASE_URL, for example
http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys

import openai

import adacompute as ada

QUESTIONS = ("What is 17 + 25?", "What is 6 times 7?", "What is 391 divided by 17?")


def main() -> None:
    """Answer a few questions with two samples on average, and print what each one took."""
    (model,) = sys.argv[1:]
    client = openai.OpenAI()
    policy = ada.load_policy("example")
    template = policy.to_bundle().template  # the few-shot prompt that its samples were drawn with
    for question in QUESTIONS:
        session = policy.start(question, budget=2.0)
        while request := session.ask():
            for _ in range(request.n):
                reply = client.completions.create(
                    model=model,
                    prompt=template.render(question).text if template else question,
                    temperature=0.7,
                    max_tokens=20,
                    stop="\n",
                )
                session.tell([reply.choices[0].text])
        print(f"{question} {session.answer}, samples: {session.n_samples}")


if __name__ == "__main__":
    main()
