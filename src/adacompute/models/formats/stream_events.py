"""Stream events: the one reader of server-sent events, and what the events of a reply say.

The parts of a choice are joined to the choice of a reply that is not streamed, so that both are
parsed alike. Each line of data is an event of its own, as all known servers write them. This module
knows nothing of connections or of whole streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from adacompute.models.formats.openai_format import (
    MalformedReply,
    parse_json,
    reasoning_of,
    text_of,
)

DONE = b"[DONE]"
_FIELD = b"data:"


class EventReader:
    r"""Reads a stream from chunks of any size; a line above ``max_line`` bytes is skipped.

    >>> reader = EventReader(max_line=1_000)
    >>> reader.feed(b": ping\r\n\r\ndata: 1\n\nda"), reader.feed(b"ta: 2\n\ndata: [DONE]\n\n")
    ([b' 1'], [b' 2'])
    """

    def __init__(self, max_line: int) -> None:
        self.bytes_skipped = 0
        self._max_line = max_line
        self._rest = b""
        self._is_skipping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that end in the next chunk."""
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        *lines, rest = (self._rest + chunk).split(b"\n")
        found = event_data(lines[self._is_skipping :])
        self._is_skipping = len(rest) > self._max_line or (self._is_skipping and not lines)
        self.bytes_skipped += len(rest) * self._is_skipping
        self._rest = b"" if self._is_skipping else rest
        return found


def event_data(lines: Iterable[bytes]) -> list[bytes]:
    """Return the data in lines of a stream, without the mark of its end."""
    found = [line[len(_FIELD) :] for line in lines if line.startswith(_FIELD)]
    return [data for data in found if data.strip() not in {b"", DONE}]


def edit_data(event: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return an event with its data changed, and every other byte as it was."""
    lines = event.splitlines(keepends=True)
    return b"".join(
        _FIELD + edit(line[len(_FIELD) :]) if line.startswith(_FIELD) else line for line in lines
    )


def parse_event(data: bytes) -> Mapping[str, Any]:
    """Parse the data of an event, which must be a JSON object."""
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
