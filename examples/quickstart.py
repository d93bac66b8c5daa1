"""Quickstart: fit, calibrate, evaluate, sample and serve a policy, on one page.

Start a small real model with ``python -m adacompute.testing.llama``, set OPENAI_BASE_URL to
http://127.0.0.1:8080/v1, and run ``python examples/quickstart.py SmolLM2-135M-Instruct 8000``. It
needs ``pip install 'adacompute[serve]'``. In the end it serves on port 8000 until Ctrl-C.
"""

import asyncio
import os
import sys

import uvicorn

import adacompute as ada

URL, MODEL, PORT = os.environ["OPENAI_BASE_URL"], sys.argv[1], int(sys.argv[2])
QUESTIONS = ["What is 17 + 25?", "What is half of 90?", "What is 391 divided by 17?"]

samples = ada.read_samples("example")
policy = ada.Sequential(max_samples=16).fit(samples)
print(ada.calibrate(policy, samples, budget=2.0))
print(ada.evaluate([policy, ada.AdaptiveConsistency(), "mixture"], samples, budgets=[1.5, 2, 4]))


async def answer() -> None:
    """Answer questions with two samples each on average."""
    async with ada.Sampler(policy, base_url=URL, model=MODEL, budget=2.0) as sampler:
        for one in await sampler.map(QUESTIONS, concurrency=2):
            print(f"{one.question} {one.answer}, samples: {one.n_samples}")


asyncio.run(answer())
app = ada.create_app({MODEL: policy}, base_url=URL, budget=2.0)
uvicorn.run(app, port=PORT, log_level="warning")
