"""Stream events: pure functions that parse the events of a streamed reply.

The parts of a choice are joined to the choice of a reply that is not streamed, so that both are
parsed alike. This module knows nothing of connections or of whole streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adacompute.models.openai_format import MalformedReply, parse_json, reasoning_of, text_of


def parse_event(line: bytes) -> Mapping[str, Any] | None:
    """Parse one line of a stream: its JSON object, or None if the line carries no data."""
    name, _, data = line.partition(b":")
    if name.strip() != b"data" or data.strip() in {b"", b"[DONE]"}:
        return None
    document = parse_json(data)
    if not isinstance(document, dict):
        raise MalformedReply(
            f"an event of its stream is a JSON {type(document).__name__}, not an object"
        )
    return document


def parse_delta(document: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what one stream event adds to the first choice, reasoning too, and why it ends."""
    raw = document.get("choices")
    choice = _as_dict(raw[0]) if isinstance(raw, list) and raw else {}
    message = _message_delta(choice)
    finish_reason = choice.get("finish_reason")
    text = message["content"] + message["reasoning_content"]
    return text, finish_reason if isinstance(finish_reason, str) else None


def join_deltas(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the parts of a streamed choice to the choice of a reply that is not streamed.

    >>> join_deltas([{"delta": {"content": "4"}}, {"delta": {"content": "2"}}])["message"]
    {'role': 'assistant', 'content': '42', 'reasoning_content': ''}
    """
    message = {"role": "assistant", "content": "", "reasoning_content": ""}
    logprobs: dict[str, list[Any]] = {}
    finish_reason = None
    is_chat = True
    for part in parts:
        is_chat = is_chat and not isinstance(part.get("text"), str)
        for name, text in _message_delta(part).items():
            message[name] += text
        for name, values in _as_dict(part.get("logprobs")).items():
            logprobs.setdefault(name, []).extend(values if isinstance(values, list) else ())
        reason = part.get("finish_reason")
        finish_reason = reason if isinstance(reason, str) else finish_reason
    content: dict[str, Any] = {"message": message} if is_chat else {"text": message["content"]}
    return {"index": 0, **content, "logprobs": logprobs or None, "finish_reason": finish_reason}


def _message_delta(choice: Mapping[str, Any]) -> dict[str, str]:
    """Return the text and the reasoning that one stream event adds to a choice."""
    if not isinstance(choice.get("delta"), dict) and isinstance(choice.get("text"), str):
        return {"content": choice["text"], "reasoning_content": ""}
    delta = _as_dict(choice.get("delta"))
    return {"content": text_of(delta.get("content")), "reasoning_content": reasoning_of(delta)}


def _as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
