"""OpenAI requests: what a request asks of the gateway, read by pure functions.

A request is parsed only as far as a decision needs: which model it is for, whether it can be voted
on, and what it may spend. It opens no connection and makes no decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from adacompute.core.errors import ConfigError
from adacompute.gateway.requests.chat_messages import (
    Message,
    messages_reason,
    read_input,
    read_messages,
    to_json,
)
from adacompute.gateway.requests.contract import Judged
from adacompute.gateway.requests.fields import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    OPTIONS,
)
from adacompute.gateway.requests.refusals import BadRequest
from adacompute.models.formats.body import INVALID, Body
from adacompute.models.formats.responses_format import INCLUDE_LOGPROBS, RESPONSES
from adacompute.models.messages import Prompt

BUDGET_HEADER = "x-adacompute-budget"

OPTION_NAMES = ("budget", "debug")

VOTED_PATHS = (CHAT, COMPLETIONS, RESPONSES)
"""Paths of the upstream whose requests can be voted on."""

PATHS = {f"/v1/{path}": path for path in (*VOTED_PATHS, EMBEDDINGS)}
"""Paths of requests in which names of virtual models are replaced, and the upstream's paths."""

REFUSED_PATHS = ("/v1/messages",)
"""Paths that are forwarded, but have no virtual models."""

_STORED = ("previous_response_id", "conversation", "prompt")
_SHOWN = 100
_MAX_TEMPERATURE = 1000


@dataclass(frozen=True)
class ResponseFormat:
    """The format of an answer, with the member that is read here."""

    type: str = ""


@dataclass(frozen=True)
class TextSettings:
    """The settings of text in the Responses API, with the member that is read here."""

    format: ResponseFormat | None = None


@dataclass(eq=False)
class VirtualRequest:
    """A request for a virtual model: its name, and the budget it sets, if any."""

    body: Body
    path: str
    model: str
    budget: float | None
    debug: bool
    judged: Judged | None = None

    @cached_property
    def stream(self) -> bool:
        """Whether the reply is a stream of events."""
        return self.body.read("stream", bool) is True

    @cached_property
    def wants_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        options = self.body.read("stream_options", dict[str, Any])
        return isinstance(options, Mapping) and bool(options.get("include_usage"))

    @cached_property
    def has_logprobs(self) -> bool:
        """Whether the client asks for log-probabilities, or says that it wants none."""
        if self.path != RESPONSES:
            return "logprobs" in self.body.fields
        included = self.body.read("include", list[str])
        return isinstance(included, list) and INCLUDE_LOGPROBS in included

    @cached_property
    def wants_json(self) -> bool:
        """Whether the client asks for an answer in a format other than text."""
        if self.path == RESPONSES:
            text = self.body.read("text", TextSettings | None)
            found = text.format if isinstance(text, TextSettings) else text
        else:
            found = self.body.read("response_format", ResponseFormat | None)
        return found is not None and getattr(found, "type", None) != "text"

    @cached_property
    def messages(self) -> list[Message] | None:
        """The messages of a conversation; None if there are none, or if they are invalid."""
        return read_input(self.body) if self.path == RESPONSES else read_messages(self.body)

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt of the request."""
        if self.path == COMPLETIONS:
            return Prompt(text=self.body.read("prompt", str))
        return Prompt(messages=to_json(self.messages or ()))


def parse_request(
    path: str, body: Body, names: Collection[str], budget: str | None = None
) -> VirtualRequest | None:
    """Parse a request for one of the virtual models; return None for any other request.

    ``budget`` is the value of the header.
    """
    model = body.fields.get("model")
    if not isinstance(model, str) or model not in names:
        return None
    options = body.fields.get(OPTIONS, {})
    if not isinstance(options, Mapping) or set(options) - set(OPTION_NAMES):
        raise BadRequest(f"{OPTIONS!r} is an object with {' and '.join(OPTION_NAMES)}", OPTIONS)
    budgets = (
        (budget, BUDGET_HEADER),
        (options.get("budget"), f"{OPTIONS}.budget"),
    )
    chosen = next((parse_budget(value, name) for value, name in budgets if value is not None), None)
    if path in REFUSED_PATHS:
        raise BadRequest(f"{path} is not supported for the virtual model {model!r}", "model")
    return VirtualRequest(body, PATHS[path], model, chosen, debug=bool(options.get("debug")))


def may_name(data: bytes, names: Collection[str]) -> bool:
    """Whether a body may name one of the virtual models; some of its letters may be escaped."""
    return b"\\u00" in data or any(name.rpartition("/")[2].encode() in data for name in names)


def parse_budget(value: object, param: str) -> float:
    """Parse a budget that a request sets for itself."""
    try:
        budget = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        budget = math.nan
    if not 0 < budget < math.inf or isinstance(value, bool):
        raise BadRequest(f"budget must be a number above 0, got {str(value)[:_SHOWN]!r}", param)
    return budget


def passthrough_reason(request: VirtualRequest, answer_field: str | None = None) -> str | None:
    """Return why a request cannot be voted on; None if it can.

    Tools, images and other modes have no single answer to count. Samples at temperature 0 are all
    equal. A client that asks for several choices wants all of them. Of an answer in JSON it must be
    known which member is graded.
    """
    if request.path not in VOTED_PATHS:
        return "path"
    if reason := _settings_reason(request.body):
        return reason
    if request.wants_json and answer_field is None:
        return "format"
    if request.path == COMPLETIONS:
        return None if isinstance(request.body.read("prompt", str), str) else "prompt"
    if request.path == RESPONSES and any(map(request.body.is_set, _STORED)):
        return "prompt"
    return messages_reason(request.messages)


def _settings_reason(body: Body) -> str | None:
    if body.is_set("tools") or body.is_set("functions"):
        return "tools"
    if any(body.fields.get(name) not in (None, 1) for name in ("n", "n_cmpl", "best_of")):
        return "n"
    temperature = body.read("temperature", float | None)
    if temperature is INVALID:
        return "temperature"
    if temperature is not None and not 0 < temperature < _MAX_TEMPERATURE:
        return "temperature"
    is_odd = body.read("stream", bool | None) is INVALID
    if is_odd or any(body.is_set(name) for name in ("echo", "suffix", "audio", "background")):
        return "mode"
    return None


def has_dot_segments(path: str) -> bool:
    """Whether a path contains ``..``, however it is escaped.

    >>> has_dot_segments("files/%2e%2E/admin"), has_dot_segments("files/a..b")
    (True, False)
    """
    segments = unquote(unquote(path)).replace("\\", "/").split("/")
    return ".." in {segment.partition(";")[0] for segment in segments}


def check_name(name: str) -> str:
    """Return the name of a virtual model, or raise ConfigError if it cannot be one."""
    is_plain = name.isascii() and name.isprintable() and not set(name) & set(' "\\\t')
    if not name or not is_plain or not name.rpartition("/")[2]:
        raise ConfigError(
            f"a model name must be printable ASCII without spaces and quotes, got {name!r}"
        )
    return name
