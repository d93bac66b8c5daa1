"""OpenAI replies: what the gateway sends back, written by pure functions.

Replies are the upstream's own documents with one choice and the usage of all calls. Errors have
OpenAI's format. It opens no connection and makes no decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adacompute.models.formats.body import DROP, Body, InvalidBody
from adacompute.models.formats.openai_format import MalformedReply, parse_json
from adacompute.models.formats.responses_format import from_chat_usage, without_response_logprobs
from adacompute.models.formats.stream_events import edit_data

KEEP_ALIVE = b": still sampling\n\n"
"""A comment that keeps the connection of a waiting client open."""

DONE = b"data: [DONE]\n\n"


def one_choice(
    document: Mapping[str, Any], choice: Mapping[str, Any], usage: Mapping[str, Any]
) -> bytes:
    """Write a reply with one of its choices and the usage of all calls."""
    return _dump({**document, "choices": [{**choice, "index": 0}], "usage": usage})


def one_response(
    document: Mapping[str, Any], usage: Mapping[str, Any], *, hide_logprobs: bool = False
) -> bytes:
    """Write a reply of the Responses API with the usage of all calls."""
    shown = without_response_logprobs(document) if hide_logprobs else document
    return _dump({**shown, "usage": from_chat_usage(usage)})


def edit_response_event(
    event: bytes, usage: Mapping[str, Any], *, hide_logprobs: bool = False
) -> bytes:
    r"""Put the usage of all calls into the event of a stream that reports the usage.

    >>> event = b'data: {"response": {"id":  "a", "usage": {"input_tokens": 5}}}\n\n'
    >>> edit_response_event(event, {}).count(b'{"response": {"id":  "a", "usage": {"input_tokens_')
    1
    """
    if not hide_logprobs and b'"usage"' not in event:
        return event
    return edit_data(event, lambda data: _edit_response(data, usage, hide_logprobs=hide_logprobs))


def _edit_response(data: bytes, usage: Mapping[str, Any], *, hide_logprobs: bool) -> bytes:
    try:
        if hide_logprobs:
            data = _dump(without_response_logprobs(parse_json(data))) + b"\n"
        body = Body.parse(data)
        response = None if body is None else Body.parse(body.raw("response"))
    except (InvalidBody, MalformedReply):
        return data
    if body is not None and response is not None and response.is_set("usage"):
        edited = response.edit({"usage": from_chat_usage(usage)})
        data = data.replace(body.raw("response"), edited, 1)
    return data


@dataclass(frozen=True)
class StreamHead:
    """The members that all events of one stream share: its id and the time of its creation."""

    id: str
    created: int


def role_event(head: StreamHead, model: str) -> bytes:
    """Write the event that begins a stream before there is an answer."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    chunk = {"object": "chat.completion.chunk", "model": model, "choices": [choice]}
    return _event({**asdict(head), **chunk})


def edit_event(event: bytes, head: StreamHead, *, hide_logprobs: bool = False) -> bytes:
    r"""Put an event of the chosen sample into a stream: change its head and remove its usage.

    The usage of all calls follows later. Log-probabilities that the client did not ask for can be
    hidden.

    >>> edit_event(b'data: {"id": "a", "created": 1, "usage": {}}\n\n', StreamHead("b", 2))
    b'data: {"id": "b", "created": 2}\n\n'
    """
    return edit_data(event, lambda data: _edit_chunk(data, head, hide_logprobs=hide_logprobs))


def _edit_chunk(data: bytes, head: StreamHead, *, hide_logprobs: bool) -> bytes:
    try:
        body = Body.parse(data)
    except InvalidBody:
        return data
    if body is None:
        return data
    changes: dict[str, Any] = {**asdict(head), "usage": DROP}
    choices = body.read("choices", list[dict[str, Any]]) if hide_logprobs else None
    if isinstance(choices, list):
        changes["choices"] = without_logprobs(choices)
    return body.edit(changes)


def without_logprobs(choices: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return choices without their log-probabilities."""
    return [{**choice, "logprobs": None} if "logprobs" in choice else choice for choice in choices]


def usage_event(document: Mapping[str, Any], head: StreamHead, usage: Mapping[str, Any]) -> bytes:
    """Write the event with the usage of all calls; its other members are those of the stream."""
    return _event({**document, **asdict(head), "choices": [], "usage": usage})


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + _dump(document) + b"\n\n"


def _dump(document: object) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be written escaped
        return json.dumps(document, separators=(",", ":")).encode()


def write_error(
    message: str, kind: str, *, code: str | None = None, param: str | None = None, **fields: object
) -> bytes:
    """Write an error in the format that OpenAI's clients parse, with other fields as well."""
    error = {"message": message, "type": kind, "param": param, "code": code, **fields}
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
