"""OpenAI replies: what the gateway sends back, written by pure functions.

Replies are the upstream's own documents with one choice and the usage of all calls. Errors have
OpenAI's format. It opens no connection and makes no decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adacompute.gateway.body import DROP, Body, InvalidBody
from adacompute.models.openai_format import MalformedReply, parse_json

KEEP_ALIVE = b": still sampling\n\n"
"""A comment that keeps the connection of a waiting client open."""

DONE = b"data: [DONE]\n\n"


def one_choice(
    document: Mapping[str, Any], choice: Mapping[str, Any], usage: Mapping[str, Any]
) -> bytes:
    """Write a reply with one of its choices and the usage of all calls."""
    return _dump({**document, "choices": [{**choice, "index": 0}], "usage": usage})


def role_event(decision: str, model: str, created: int) -> bytes:
    """Write the event that begins a stream before there is an answer."""
    return _event(
        {
            "id": f"chatcmpl-{decision}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "choices": [
                {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            ],
        }
    )


def strip_usage(event: bytes) -> bytes:
    r"""Remove the usage of one sample from an event: that of all calls follows later.

    >>> strip_usage(b'data: {"choices": [{}], "usage": {"prompt_tokens": 5}}\n\n')
    b'data: {"choices": [{}]}\n\n'
    """
    if b'"usage"' not in event:
        return event
    return b"".join(map(_strip_line, event.splitlines(keepends=True)))


def _strip_line(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    try:
        body = Body.parse(value) if name == b"data" else None
    except InvalidBody:
        return line
    if body is None or not body.is_set("usage"):
        return line
    return name + colon + body.edit({"usage": DROP})


def usage_event(last: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
    """Write the event with the usage of all calls; its other members are those of the last one."""
    return _event({**last, "choices": [], "usage": usage})


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + _dump(document) + b"\n\n"


def _dump(document: object) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written escaped
        return json.dumps(document, separators=(",", ":")).encode()


def write_error(
    message: str, kind: str, *, code: str | None = None, param: str | None = None
) -> bytes:
    """Write an error in the format that OpenAI's clients parse."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return _dump({"error": error})


def add_models(data: bytes, names: Sequence[str]) -> bytes:
    """Add names to a list of models; anything else counts as an empty list."""
    try:
        document = parse_json(data)
    except MalformedReply:
        document = {}
    document = document if isinstance(document, dict) else {}
    known = document.get("data")
    listed = known if isinstance(known, list) else []
    ids = [one.get("id") for one in listed if isinstance(one, dict)]
    own = [
        {"id": name, "object": "model", "created": 0, "owned_by": "adacompute"}
        for name in names
        if name not in ids
    ]
    return _dump({"object": "list", **document, "data": [*listed, *own]})
