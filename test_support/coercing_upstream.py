"""Coercing upstream: a server that accepts what it can, and counts what it served by itself.

Fields of other types become numbers as pydantic makes them, every spelling of the length and of the
number of samples counts, the largest first, and of fields that occur twice the one that costs more.
It is the worst server for a gateway that judges requests. It knows nothing of the gateway.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict")
NUMBERS = ("n", "n_cmpl", "best_of")
UNLIMITED = 100_000
"""Tokens of a completion whose length is not limited in the one spelling that is honoured."""

MAX_COPIES = 1_000
_WHOLE = TypeAdapter(int)


class Served(NamedTuple):
    """What a request makes a server generate, and by what its price is multiplied."""

    n_samples: int
    tokens: int
    factor: int = 1


def coerce(value: object) -> int | None:
    """Return a value as an integer, as pydantic does; None if it is none."""
    try:
        return _WHOLE.validate_python(value)
    except ValidationError:
        return None


def count_served(body: bytes, *, honoured: str = "max_tokens") -> Served:
    """Return what a request is served at most: of fields that occur twice, the dearest counts."""
    fields = json.loads(body, object_pairs_hook=lambda pairs: [("object", pairs)])[0][1]
    names: dict[str, list[object]] = {}
    for name, value in fields:
        names.setdefault(name, []).append(_plain(value))
    spellings = itertools.product(*([(name, one) for one in names[name]] for name in names))
    every = [_count(dict(one), honoured) for one in itertools.islice(spellings, MAX_COPIES)]
    return max(every, key=lambda one: one.tokens * one.factor)


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: _plain(inner) for name, inner in value[0][1]}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _count(fields: Mapping[str, Any], honoured: str) -> Served:
    n_samples = max(1, *(coerce(fields.get(name)) or 1 for name in NUMBERS))
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
        n_samples *= max(1, len(prompt))
    given = [coerce(fields[name]) for name in LENGTHS if fields.get(name) is not None]
    length = coerce(fields.get(honoured))
    lengths = [UNLIMITED if one is None or one < 0 else one for one in given]
    longest = max([UNLIMITED if length is None else length, *lengths])
    tools = [one for one in fields.get("tools") or () if isinstance(one, dict)]
    hosted = [one for one in tools if one.get("type", "function") not in {"function", "custom"}]
    is_dearer = fields.get("service_tier") not in {None, "auto", "default", "flex"}
    return Served(n_samples, n_samples * longest, 10 if hosted or is_dearer else 1)


@contextmanager
def serve_coercing(*, honoured: str = "max_tokens") -> Iterator[tuple[str, list[Served]]]:
    """Serve on a free port; yields the address, and the list of what was served."""
    served: list[Served] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            found = count_served(self.rfile.read(size), honoured=honoured)
            served.append(found)
            usage = {"prompt_tokens": 1, "completion_tokens": found.tokens}
            message = {"role": "assistant", "content": "The answer is 4."}
            choice = {"index": 0, "message": message, "text": "4", "finish_reason": "stop"}
            data = json.dumps({"id": "c", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", served
    finally:
        server.shutdown()
        server.server_close()
