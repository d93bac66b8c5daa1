"""Recorded upstream: an OpenAI-compatible server that answers with recorded samples.

It knows the 300 questions that ship with the package, and answers each request to /v1/completions
with samples of a small model, drawn at random from those that were recorded for the question. So
answers are as they are in practice, and cost no time. A question that it does not know is answered
with status 404. It serves until Ctrl-C:

    python -m test_support.recorded --port 8080
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow.parquet as pq

from adacompute.datasets.example import find_example

MODEL = "SmolLM2-135M-Instruct"
NOT_FOUND = 404
COLUMNS = ["question", "completion", "completion_tokens"]
Completions = dict[str, list[tuple[str, int]]]
"""Texts and their numbers of tokens, by question."""


def read_completions() -> Completions:
    """Read the completions of every question."""
    found: Completions = defaultdict(list)
    for row in pq.read_table(find_example(), columns=COLUMNS).to_pylist():
        found[row["question"]].append((row["completion"], row["completion_tokens"]))
    return dict(found)


def answer(completions: Completions, body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return the reply to a request; KeyError if its question is not known."""
    prompt = str(body["prompt"])
    question = prompt.rpartition("Question: ")[2].partition("\nAnswer:")[0]
    chosen = rng.choices(completions[question], k=int(body.get("n") or 1))
    n_prompt, n_completion = len(prompt) // 4, sum(n_tokens for _, n_tokens in chosen)
    usage = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
    }
    choices = [
        {"index": index, "text": text, "finish_reason": "stop"}
        for index, (text, _) in enumerate(chosen)
    ]
    return {
        "id": f"cmpl-{rng.getrandbits(32):08x}",
        "object": "text_completion",
        "model": MODEL,
        "choices": choices,
        "usage": usage,
    }


def make_server(port: int, seed: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback interface; port 0 chooses a free one."""
    completions, rng = read_completions(), random.Random(seed)  # noqa: S311 - no secrets

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                self._send(200, answer(completions, body, rng))
            except KeyError:
                message = "no samples of this question were recorded"
                self._send(NOT_FOUND, {"error": {"message": message, "code": "not_found"}})

        def _send(self, status: int, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="An upstream that returns recorded samples.")
    parser.add_argument("--port", type=int, default=8080, help="0 chooses a free one")
    make_server(parser.parse_args().port).serve_forever()


if __name__ == "__main__":
    main()
