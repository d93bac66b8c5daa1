"""Responses format: replies of OpenAI's Responses API, parsed and written by pure functions.

A response is converted to the format of a chat completion, so that samples and tokens are parsed in
one place. Its usage is converted back when a reply is written. This module reads no requests, opens
no connection and knows nothing of votes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adacompute.models.formats.openai_format import MalformedReply
from adacompute.models.model import CHAT_USAGE_NAMES

RESPONSES = "responses"
"""Path of the endpoint, relative to the base URL."""

INCLUDE_LOGPROBS = "message.output_text.logprobs"
"""Value of a request's ``include`` that asks for log-probabilities."""

FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")
"""Types of the events that end a stream and hold the whole response."""

_REQUIRED_DETAILS = {
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
_ENDED = ("completed", "incomplete")
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def to_completion(document: object) -> dict[str, Any]:
    """Convert a response to a chat completion with one choice; MalformedReply if it is none."""
    if not isinstance(document, dict) or not isinstance(document.get("output"), list):
        raise MalformedReply("its reply holds no output; does it support /v1/responses?")
    status = document.get("status", "completed")
    if status not in _ENDED:
        raise MalformedReply(f"its response has the status {str(status)[:20]!r}")
    parts = list(_text_parts(document["output"]))
    logprobs = [one for part in parts for one in _as_list(part.get("logprobs"))]
    message = {
        "role": "assistant",
        "content": "".join(str(part["text"]) for part in parts),
        "reasoning_content": "".join(_reasoning_texts(document["output"])),
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": logprobs} if logprobs else None,
        "finish_reason": _finish_reason(document),
    }
    return {"choices": [choice], "usage": document.get("usage")}


def find_response(events: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the response in the final event of a stream; MalformedReply if there is none."""
    for event in events:
        if event.get("type") == "error":
            raise MalformedReply("its stream holds an error")
        response = event.get("response")
        if event.get("type") in FINAL_EVENTS and isinstance(response, dict):
            return response
    raise MalformedReply("its stream ends before the response does")


def from_chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a ``usage`` object of a chat completion to that of a response.

    The details that clients require are added.

    >>> from_chat_usage({"prompt_tokens": 5, "total_tokens": 5})["input_tokens_details"]
    {'cached_tokens': 0}
    """
    names = {chat: own for own, chat in CHAT_USAGE_NAMES.items()}
    found = {names.get(name, name): value for name, value in usage.items()}
    for name, required in _REQUIRED_DETAILS.items():
        details = found.get(name)
        found[name] = required | (details if isinstance(details, dict) else {})
    return found


def without_response_logprobs(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a response, or an event of one, with empty lists of log-probabilities.

    >>> without_response_logprobs({"delta": "4", "logprobs": [{"logprob": -0.1}]})
    {'delta': '4', 'logprobs': []}
    """
    if isinstance(value, list):
        return [without_response_logprobs(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: [] if name == "logprobs" and isinstance(one, list) else without_response_logprobs(one)
        for name, one in value.items()
    }


def _text_parts(output: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the texts of the messages that answer; commentary on the way is no answer."""
    for item in _as_dicts(output):
        if item.get("type") == "message" and item.get("phase") != "commentary":
            for part in _as_dicts(item.get("content")):
                if part.get("type") == "output_text" and isinstance(part.get("text"), str):
                    yield part


def _reasoning_texts(output: list[Any]) -> Iterator[str]:
    for item in _as_dicts(output):
        if item.get("type") == "reasoning":
            for name in ("summary", "content"):
                for part in _as_dicts(item.get(name)):
                    yield part["text"] if isinstance(part.get("text"), str) else ""


def _finish_reason(document: Mapping[str, Any]) -> str:
    details = document.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return _FINISH_REASONS.get(reason, "stop") if isinstance(reason, str) else "stop"


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in _as_list(value) if isinstance(one, dict)]
