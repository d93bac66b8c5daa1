"""The recorded upstream: samples of the question that was asked, and their tokens."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import openai
import pytest

from test_support.recorded import MODEL, answer, make_server, read_completions

QUESTION = "What is 6 + 3?"
PROMPT = f"Question: What is half of 18?\nAnswer: 18 / 2 = 9\n\nQuestion: {QUESTION}\nAnswer:"


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    server = make_server(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made
    server.shutdown()
    server.server_close()
    thread.join()


def test_replies_are_samples_of_the_question(client: openai.OpenAI) -> None:
    recorded = dict(read_completions()[QUESTION])
    reply = client.completions.create(model=MODEL, prompt=PROMPT, n=5)
    texts = [choice.text for choice in reply.choices]
    assert len(texts) == 5
    assert set(texts) <= set(recorded)
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 0


def test_an_unknown_question_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="recorded"):
        client.completions.create(model=MODEL, prompt="Question: Who?\nAnswer:")


def test_equal_seeds_give_equal_replies() -> None:
    known = read_completions()
    body = {"prompt": PROMPT, "n": 3}
    one, other = (answer(known, body, random.Random(7)) for _ in range(2))
    assert one == other
