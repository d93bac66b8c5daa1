"""Wire: what a request asks of the gateway, and what the gateway says back, as pure functions.

A request is read only as far as a decision needs: which model, whether it may be voted on, what it
may spend. Replies are the upstream's own documents with one choice left in them and the bill of all
draws; errors have OpenAI's shape. It opens no connection and makes no decision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from adacompute.core.errors import ConfigError
from adacompute.gateway.body import DROP, Body
from adacompute.models.messages import Prompt

FIELD = "adacompute"
"""Member of a body that holds options for the gateway; it is never sent on."""

BUDGET_HEADER = "x-adacompute-budget"
SUFFIX = "@"
OWN_HEADERS = "x-adacompute-"
OPTIONS = ("budget", "debug")

KEEP_ALIVE = b": still drawing\n\n"
DONE = b"data: [DONE]\n\n"

VOTED = {"/v1/chat/completions": "chat/completions", "/v1/completions": "completions"}
"""Paths whose requests may be voted on, and the upstream's."""

COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")

_LONGEST_SHOWN = 100
_HOTTEST = 1000
_MOST_TOKENS = 10**12  # more is no count


class BadRequest(Exception):  # noqa: N818 - it names what the client sent
    """A request that cannot be served as it is; ``param`` names the part that is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class VirtualRequest:
    """A request to a virtual model: its name without a suffix, and what it may spend."""

    body: Body
    path: str
    model: str
    budget: float | None
    debug: bool

    @property
    def stream(self) -> bool:
        """Whether the reply is wanted as events."""
        return bool(self.body.content.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the events are to end in a bill."""
        options = self.body.content.get("stream_options")
        return isinstance(options, Mapping) and bool(options.get("include_usage"))

    @property
    def prompt(self) -> Prompt:
        """What the model is asked."""
        if self.path == "completions":
            return Prompt(text=self.body.content["prompt"])
        return Prompt(messages=tuple(self.body.content["messages"]))


def parse_request(
    path: str, data: bytes, names: Sequence[str], budget: str | None = None
) -> VirtualRequest | None:
    """Read a request for one of the virtual models; None for any other.

    ``budget`` is what its header says. A body that names none of them cannot be for one of them,
    and is not even parsed, unless letters of it may be escaped.
    """
    named = any(name.rpartition("/")[2].encode() in data for name in names)
    if not named and b"\\u00" not in data:
        return None
    body = Body.read(data)
    if body is None:
        return None
    asked = body.content.get("model")
    if not isinstance(asked, str):
        return None
    model, suffix = (asked, "") if asked in names else _split(asked)
    if model not in names:
        return None
    options = body.content.get(FIELD, {})
    if not isinstance(options, Mapping) or set(options) - set(OPTIONS):
        raise BadRequest(f"{FIELD!r} is an object with {' and '.join(OPTIONS)}", FIELD)
    given = (
        (budget, BUDGET_HEADER),
        (options.get("budget"), f"{FIELD}.budget"),
        (suffix or None, "model"),
    )
    spend = next((read_budget(value, name) for value, name in given if value is not None), None)
    return VirtualRequest(body, VOTED[path], model, spend, debug=bool(options.get("debug")))


def _split(model: str) -> tuple[str, str]:
    name, _, suffix = model.rpartition(SUFFIX)
    return name, suffix


def read_budget(value: object, param: str) -> float:
    """Read a budget that a request sets for itself."""
    try:
        budget = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        budget = math.nan
    if not 0 < budget < math.inf or isinstance(value, bool):
        shown = str(value)[:_LONGEST_SHOWN]
        raise BadRequest(f"a budget is a number above 0, not {shown!r}", param)
    return budget


def passthrough_reason(asked: VirtualRequest) -> str | None:
    """Say why a request cannot be voted on; None when it can.

    Tools, images and other modes have no single answer to count; draws at temperature 0 are equal;
    who asks for several choices wants them all.
    """
    content = asked.body.content
    if why := _why_settings(content):
        return why
    if asked.path == "completions":
        return None if isinstance(content.get("prompt"), str) else "prompt"
    return _why_messages(content.get("messages"))


def _why_settings(content: Mapping[str, Any]) -> str | None:
    if content.get("tools") or content.get("functions"):
        return "tools"
    if content.get("n") not in (None, 1) or content.get("best_of") not in (None, 1):
        return "n"
    temperature = content.get("temperature")
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if temperature is not None and not (number and 0 < temperature < _HOTTEST):
        return "temperature"
    odd = content.get("stream") not in (None, False, True)
    if odd or content.get("echo") or content.get("suffix") or content.get("audio"):
        return "mode"
    return None


def _why_messages(messages: object) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "prompt"
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            return "prompt"
        if message["role"] in {"tool", "function"} or message.get("tool_calls"):
            return "tools"
        parts = message.get("content")
        if isinstance(parts, list) and not all(_is_text(part) for part in parts):
            return "images"
        if not isinstance(parts, list | str):
            return "prompt"
    return None


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def last_user(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Text of the last message of a user."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message["content"]
            parts = content if isinstance(content, list) else [{"text": content}]
            return "".join(str(part.get("text", "")) for part in parts)
    return None


def clean_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Keep of a bill what can be added up: numbers, and details that are numbers."""
    details = {
        name: {part: count for part, count in value.items() if _is_count(count)}
        for name, value in usage.items()
        if isinstance(value, Mapping) and name not in COUNTED
    }
    return {name: value for name, value in usage.items() if _is_count(value)} | details


def _is_count(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value <= _MOST_TOKENS  # type: ignore[operator]


def sum_usage(bills: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up what several calls were billed, with how many there were.

    >>> sum_usage([{"prompt_tokens": 5, "completion_tokens": 2}] * 2)["total_tokens"]
    14
    """
    total: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0}
    for bill in bills:
        for name, value in bill.items():
            if isinstance(value, Mapping) and isinstance(total.setdefault(name, {}), dict):
                _add(total[name], value)
        _add(total, bill)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    total["num_calls"] = len(bills)
    return total


def _add(total: dict[str, Any], bill: Mapping[str, Any]) -> None:
    for name, value in bill.items():
        if type(value) in {int, float} and type(total.get(name, 0)) in {int, float}:
            total[name] = total.get(name, 0) + value


def one_choice(
    document: Mapping[str, Any], choice: Mapping[str, Any], usage: Mapping[str, Any]
) -> bytes:
    """Write a reply with one of its choices and the bill of all draws."""
    return _dump({**document, "choices": [{**choice, "index": 0}], "usage": usage})


def role_event(decision: str, model: str, created: int) -> bytes:
    """Write the event that tells a waiting client that its answer is on the way."""
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
    r"""Take one draw's bill out of an event: that of all draws comes after it.

    >>> strip_usage(b'data: {"choices": [{}], "usage": {"prompt_tokens": 5}}\n\n')
    b'data: {"choices": [{}]}\n\n'
    """
    if b'"usage"' not in event:
        return event
    return b"".join(map(_without_bill, event.splitlines(keepends=True)))


def _without_bill(line: bytes) -> bytes:
    name, colon, value = line.partition(b":")
    body = Body.read(value) if name == b"data" else None
    if body is None or not body.content.get("usage"):
        return line
    return name + colon + body.edit({"usage": DROP})


def usage_event(last: Mapping[str, Any], usage: Mapping[str, Any]) -> bytes:
    """Write the event with the bill of all draws, in the words of the last event before it."""
    return _event({**last, "choices": [], "usage": usage})


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + _dump(document) + b"\n\n"


def _dump(document: object) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which only an escape can spell
        return json.dumps(document, separators=(",", ":")).encode()


def write_error(
    message: str, kind: str, *, code: str | None = None, param: str | None = None
) -> bytes:
    """Write an error as OpenAI's clients read it."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return _dump({"error": error})


def has_dot_segments(path: str) -> bool:
    """Whether a path leads out of where it begins, however that is spelled.

    >>> has_dot_segments("files/%2e%2E/admin"), has_dot_segments("files/a..b")
    (True, False)
    """
    steps = unquote(unquote(path)).replace("\\", "/").split("/")
    return ".." in {step.partition(";")[0] for step in steps}


def add_models(data: bytes, names: Sequence[str]) -> bytes:
    """Add names to a list of models; what is no list is taken for an empty one."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
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


def check_name(name: str) -> str:
    """Return the name of a virtual model, or say why it cannot be one."""
    plain = name.isascii() and name.isprintable() and not set(name) & set(' "\\\t')
    if not name or not plain or SUFFIX in name or not name.rpartition("/")[2]:
        raise ConfigError(
            f"a model's name is printable ASCII without spaces, quotes and {SUFFIX!r}, not {name!r}"
        )
    return name
