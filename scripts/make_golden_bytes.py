"""Golden bytes: what a gateway sends to its upstream and to its clients, stored byte for byte.

``python -m scripts.make_golden_bytes OUT`` writes ``OUT/bytes.json``. Every case is one request on
a connection of its own, to a gateway in front of a scripted upstream with fixed replies.
``tests/test_golden_bytes.py`` exchanges the same bytes with the functions below and compares them
with the stored ones. ``NORMALISED`` lists all that is random, a time or a port, and is replaced by
a name. Chunks are joined: where they end depends on when bytes arrive. Messages about broken
connections are those of the library aiohttp, and depend on its version.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from adacompute.core.types import make_levels
from adacompute.gateway.settings.config import make_config
from adacompute.models.capabilities_cache import cache_path, save_cached
from adacompute.models.messages import Capabilities
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint, save_bundle
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from test_support.gateways import save_example_bundle, serve_gateway
from test_support.scripted import ReceivedRequest, ScriptedReply, ScriptedServer, serve_scripted

BYTES = "bytes.json"
NORMALISED = (
    (rb"127\.0\.0\.1:\d+", b"127.0.0.1:PORT"),
    (rb"(?i)(x-adacompute-decision: )[0-9a-f]+", rb"\1ID"),
    (rb"(cmpl-)[0-9a-f]{18}", rb"\1ID"),
    (rb'("created": ?)\d{9,}', rb"\1TIME"),
    (rb'("decision_ms": )[0-9.e-]+', rb"\1MS"),
)
"""Patterns of what differs between runs, and what they are replaced by: the port of the upstream,
the random ids of decisions and streams, when a stream began, and how long a decision took."""

KEY = "sk-client-fedcba9876543210"
TIMEOUT_S = 20.0
JSON = ("Content-Type", "application/json")
EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@dataclass(frozen=True)
class Case:
    """A request to a gateway, and the replies of its upstream, or how it chooses them.

    The client closes the connection when it has received ``until``, without it at the end.
    """

    body: bytes
    replies: Sequence[ScriptedReply] | Callable[[ReceivedRequest], ScriptedReply]
    target: str = CHAT
    method: str = "POST"
    headers: Sequence[tuple[str, str]] = (JSON,)
    gateway: str = "plain"
    until: bytes | None = None

    @property
    def request(self) -> bytes:
        """The request as the client sends it."""
        own = [("Host", "localhost"), ("Connection", "close"), ("Authorization", f"Bearer {KEY}")]
        length = [("Content-Length", str(len(self.body)))] if self.body else []
        lines = [f"{name}: {value}" for name, value in (*own, *self.headers, *length)]
        head = "\r\n".join([f"{self.method} {self.target} HTTP/1.1", *lines, "", ""])
        return head.encode("latin-1") + self.body


def answer(*parts: bytes, **more: Any) -> ScriptedReply:  # noqa: ANN401 - of a reply
    """Return a reply in JSON."""
    return ScriptedReply(200, [JSON, ("X-Request-Id", "req_1"), ("Server", "up/1")], parts, **more)


def stream(*parts: bytes | threading.Event, **more: Any) -> ScriptedReply:  # noqa: ANN401 - of a reply
    """Return a stream of events."""
    return ScriptedReply(200, [EVENTS, ("openai-version", "1")], parts, "chunked", **more)


def refuse(status: int, *headers: tuple[str, str]) -> ScriptedReply:
    """Return an error of the upstream."""
    error = b'{ "error": {"message": "n\\u006f: \xc3\xa9 %d", "type": "t", "code": null} }' % status
    return ScriptedReply(status, [JSON, *headers], [error])


def event(**members: object) -> bytes:
    """Write an event of a stream."""
    return b"data: " + json.dumps(members).encode() + b"\n\n"


def sample(received: ReceivedRequest) -> ScriptedReply:
    """Answer a call for samples: 8 for the seed 11, else 6; a second choice says 7."""
    body = json.loads(received.body)
    n, first = body.get("n", 1), 8 if body.get("seed") == 11 else 6
    texts = [f"The answer is {7 if i % 2 else first}." for i in range(n)]
    usage = {"prompt_tokens": 5, "completion_tokens": 4 * n, "total_tokens": 5 + 4 * n}
    if received.target == RESPONSES:
        return _sample_response(texts[0], is_stream=bool(body.get("stream")))
    is_chat = received.target == CHAT
    if body.get("stream"):
        return _sample_stream(texts[0], usage, is_chat=is_chat)
    choices = []
    for i, text in enumerate(texts):
        said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        one: dict[str, Any] = {"index": i, **said, "finish_reason": "stop"}
        if body.get("logprobs"):
            token = {"token": text, "logprob": -0.25, "bytes": None, "top_logprobs": []}
            listed = {"tokens": [text], "token_logprobs": [-0.25], "top_logprobs": None}
            one["logprobs"] = {"content": [token]} if is_chat else listed
        choices.append(one)
    kind = "chat.completion" if is_chat else "text_completion"
    document = {"id": "up-1", "object": kind, "created": 7, "model": "real", "x_own": 1.50}
    return answer(json.dumps({**document, "choices": choices, "usage": usage}).encode())


def _sample_stream(text: str, usage: dict[str, int], *, is_chat: bool) -> ScriptedReply:
    head = {"id": "up-1", "created": 7, "model": "real"}
    words = [
        event(**head, choices=[{"index": 0, **said, "finish_reason": None}])
        for word in re.findall(r" ?\S+", text)
        for said in [{"delta": {"content": word}} if is_chat else {"text": word}]
    ]
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    end = [event(**head, choices=[last]), event(**head, choices=[], usage=usage)]
    return stream(*words, *end, b"data: [DONE]\n\n")


def _sample_response(text: str, *, is_stream: bool) -> ScriptedReply:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [part]}
    document: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 7}
    document |= {
        "status": "completed",
        "model": "real",
        "output": [{**item, "status": "completed"}],
    }
    document["usage"] = {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
    if not is_stream:
        return answer(json.dumps(document).encode())
    begun = {**document, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", **at, "delta": text},
        {"type": "response.output_text.done", **at, "text": text},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": document},
    ]
    numbered = [one | {"sequence_number": i} for i, one in enumerate(events)]
    return stream(*(f"event: {one['type']}\n".encode() + event(**one) for one in numbered))


ODD = (
    b' {\r\n\t"model" :"other", "temperature": 1.50, "top_p": 1e0, "seed": -0,"x": [0.10, 1E+2],'
    b' "mess\\u0061ges" : [{"role":"user","content":"\\u00e9 \\ud83d\\ude00 \\/ \xc3\xa9"}],'
    b' "unknown": {"deep": [null, {"a":  1}]}, "stream" :%b }\n'
)
USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}'
ANSWER = answer(
    b'{ "id" :"x",\n "choices":[{"index":0,"message":{"content":"\\u0034"}}], %b }' % USAGE
)
FIRST = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Gr\xc3\xb6\\u00df"}}]}\n\n'
LAST = b': ping\n\ndata:  {"choices":[], %b}\r\n\r\ndata: [DONE]\n\n' % USAGE
STREAM = stream(FIRST, LAST)
LIMITED = refuse(429, ("Retry-After", "7"), ("x-ratelimit-remaining-tokens", "0"))
QUESTION = b'"messages": [{"role":"user","content":"What is 2 + 4?"}]'
FORM = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00\xff\r\n--b--\r\n'
ODD_HEADERS = (
    JSON,
    ("accept", "application/json"),
    ("Accept-Encoding", "gzip, br"),
    ("X-Empty", ""),
    ("Cookie", "a=1"),
    ("OpenAI-Organization", "org-1"),
    ("X-AdaCompute-Budget", "3"),
    ("x-request-id", "mine"),
)


def ask(members: bytes = b"", *, model: bytes = b"voted") -> bytes:
    """Return a request for a vote, in an odd spelling."""
    return b'{"model":"%b",  "top_p": 0.50, "seed": 10%b, %b}' % (model, members, QUESTION)


def ask_text(members: bytes = b"", *, name: bytes = b"prompt") -> bytes:
    """Return a request for a vote on a text, for the completions or the responses endpoint."""
    return b'{ "model": "voted", "seed":11, "%b": "What is 2 + 6?" %b}' % (name, members)


STREAMED = b', "stream": true, "stream_options": {"include_usage": true}'
LOGPROBS = b', "logprobs": true, "top_logprobs": 0'
FORWARDED = {
    "chat": Case(ODD % b"false", [ANSWER]),
    "chat-stream": Case(ODD % b"true", [STREAM]),
    "completions": Case(b'{"model":"other","prompt":"a\\tb","n": 2}', [ANSWER], TEXT + "?q=%20a+b"),
    "completions-stream": Case(b'{"model":"other","prompt":"a","stream":true}', [STREAM], TEXT),
    "responses": Case(b'{"model":"other","input":"a"}', [ANSWER], RESPONSES),
    "responses-stream": Case(b'{"model":"other","input":"a","stream":true}', [STREAM], RESPONSES),
    "headers": Case(ODD % b"false", [ANSWER], headers=ODD_HEADERS),
    "get": Case(b"", [ANSWER], "/v1/files/f-1?limit=2&after=%2F", "GET", ()),
    "delete": Case(b"", [ScriptedReply(204, framing="none")], "/v1/files/f-1", "DELETE", ()),
    "form": Case(FORM, [ANSWER], "/v1/files", headers=[("Content-Type", "multipart/form-data")]),
    "embeddings": Case(b'{"model":"e","input":[ "a" ]}', [ANSWER], "/v1/embeddings"),
    "no-json": Case(b"{ this is no JSON", [ANSWER]),
    "twice": Case(b'{"model":"other","temperature":1,"temperature":2, %b}' % QUESTION, [ANSWER]),
    "429": Case(ODD % b"false", [LIMITED]),
    "500": Case(ODD % b"false", [refuse(500)]),
    "cut": Case(ODD % b"false", [answer(b'{"choices":', cut=True)]),
    "stream-429": Case(ODD % b"true", [LIMITED]),
    "stream-cut": Case(ODD % b"true", [stream(FIRST, cut=True)]),
    "stream-left": Case(ODD % b"true", [stream(FIRST, threading.Event(), LAST)], until=b"\n\n"),
    "n-of-voted": Case(ask(b', "n":  2'), [ANSWER]),
    "cold-voted": Case(ask(b', "temperature": 0.0'), [ANSWER]),
}
VOTED = {
    "chat": Case(ask(), sample),
    "chat-stream": Case(ask(STREAMED), sample),
    "chat-logprobs": Case(ask(LOGPROBS), sample),
    "chat-unknown": Case(ask(b', "unk\\u006eown": [1E0 , null], "max_tokens":30'), sample),
    "chat-escaped": Case(ask(b', "us\\u0065r": "a" , "max_tokens":30'), sample),
    "chat-no-seed": Case(ask().replace(b'"seed": 10, ', b""), sample),
    "debug": Case(ask(b', "adacompute": {"budget": 3, "debug": true}'), sample),
    "headers": Case(ask(), sample, headers=ODD_HEADERS),
    "completions": Case(ask_text(b', "stop" : ["\\n"]'), sample, TEXT),
    "completions-stream": Case(ask_text(STREAMED), sample, TEXT),
    "completions-logprobs": Case(ask_text(b', "logprobs": 0'), sample, TEXT),
    "responses": Case(ask_text(name=b"input"), sample, RESPONSES),
    "responses-stream": Case(ask_text(b', "stream" : true', name=b"input"), sample, RESPONSES),
    "n": Case(ask(model=b"several"), sample),
    "n-logprobs": Case(ask(LOGPROBS, model=b"several"), sample),
    "429": Case(ask(), [LIMITED]),
    "500": Case(ask(), [refuse(500)]),
    "500-again": Case(ask(), [refuse(500), refuse(500)], gateway="patient"),
    "400": Case(ask(), [refuse(400)]),
    "cut": Case(ask(), [answer(b'{"choices":', cut=True)]),
    "stream-500": Case(ask(STREAMED), [refuse(500)]),
    "stream-cut": Case(ask(STREAMED), [stream(FIRST, cut=True)]),
    "stream-left": Case(
        ask(STREAMED), [ScriptedReply(200, [JSON], [threading.Event()], "chunked")], until=b"\n\n"
    ),
}
CASES = {
    **{f"forwarded {name}": case for name, case in FORWARDED.items()},
    **{f"voted {name}": case for name, case in VOTED.items()},
}


@contextmanager
def serve() -> Iterator[tuple[ScriptedServer, dict[str, int]]]:
    """Serve the upstream and the gateways; yield the ports of these by name."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(patch.dict("os.environ", {"XDG_CACHE_HOME": str(folder / "cache")}))
        upstream = stack.enter_context(serve_scripted())
        known = Capabilities(n="native", seed="reproducible", seed_with_n="distinct", usage="all")
        save_cached(cache_path(), upstream.base_url, "native", known)
        save_example_bundle(folder / "agreement")
        policy = RulePolicy("fixed", make_levels((1, 3)), (FixedRule(3),), PriceSchedule((0.1,)))
        point = FrontierPoint(3.0, 0.1, 3.0, 3.0, 3.0, 0.5, 0.4, 0.6, 1.0)
        save_bundle(Bundle(policy, frontier=(point,)), folder / "three")
        voted = {"bundle": "agreement", "budget": 2, "max_budget": 4, "model": "real"}
        several = {"bundle": "three", "budget": 3, "model": "native"}
        models = {"voted": voted, "several": several}
        ports = {}
        for name, attempts in (("plain", 1), ("patient", 2)):
            content = {
                "base_url": upstream.base_url,
                "upstream_api_key": "sk-upstream-0123456789abcdef",
                "bearer_tokens": [KEY],
                "models": {model: {**own, "grader": "numeric"} for model, own in models.items()},
                "allowed_paths": ["* /v1/*"],
                "max_attempts": attempts,
                "probe": False,
                "state_directory": name,
            }
            ports[name] = stack.enter_context(serve_gateway(make_config(content, beside=folder)))
        yield upstream, ports


def exchange(case: Case, upstream: ScriptedServer, port: int) -> dict[str, Any]:
    """Send a request; return what the upstream received and what the client got back."""
    held: list[threading.Event] = []
    if callable(case.replies):
        upstream.answer(case.replies)
    else:
        upstream.answer(*case.replies)
        parts = (part for reply in case.replies for part in reply.parts)
        held += [part for part in parts if isinstance(part, threading.Event)]
    for rest in held:
        rest.clear()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
        client.sendall(case.request)
        received = b""
        while case.until is None or case.until not in received.partition(b"\r\n\r\n")[2]:
            part = client.recv(65_536)
            if not part:
                break
            received += part
        if case.until is not None:
            _wait_for_request(upstream)
    for rest in held:
        rest.set()
    sent = [normalise(one.head + one.body) for one in upstream.received]
    return {"upstream": sent, "client": normalise(join_chunks(received))}


def _wait_for_request(upstream: ScriptedServer) -> None:
    """Wait until the upstream has the request of a client that leaves early."""
    end = time.monotonic() + TIMEOUT_S
    while not upstream.received and time.monotonic() < end:
        time.sleep(0.01)


def join_chunks(received: bytes) -> bytes:
    """Return a reply with the chunks of its body joined."""
    head, gap, rest = received.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return received
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n_bytes = int(size or b"0", 16)
        body, rest = body + rest[:n_bytes], rest[n_bytes + 2 :]
    return head + gap + body


def normalise(data: bytes) -> str:
    """Replace what differs between runs by names; bytes become the characters of Latin-1."""
    for pattern, name in NORMALISED:
        data = re.sub(pattern, name, data)
    return data.decode("latin-1")


def main() -> None:
    """Write the golden file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="directory of the golden file")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with serve() as (upstream, ports):
        found = {
            name: exchange(case, upstream, ports[case.gateway]) for name, case in CASES.items()
        }
    (out / BYTES).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
