"""Streams: a complete stream of events, as it came and as what it says.

Events are kept byte for byte, so that whoever waits for them gets the server's own; what they add
up to is read beside that. It opens no connection and passes nothing on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adacompute.models.failures import TransientFailure, check_reply
from adacompute.models.messages import Sample
from adacompute.models.openai_format import (
    MalformedReply,
    estimate_tokens,
    parse_usage,
    read_count,
    read_event,
    read_text,
)

_BETWEEN = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = b"[DONE]"


@dataclass(frozen=True)
class ParsedStream:
    """A stream: its events without the last mark and the bill, and what they say together."""

    events: tuple[bytes, ...]
    last: Mapping[str, Any]
    text: str
    finish: str | None
    usage: Mapping[str, Any]

    def draw(self, latency_s: float) -> Sample:
        """Read the draw that it is; tokens that were not billed are estimated from its events."""
        told = read_count(self.usage, "completion_tokens")
        return Sample(
            text=self.text,
            finish_reason=self.finish,
            prompt_tokens=read_count(self.usage, "prompt_tokens"),
            cached_tokens=0,
            completion_tokens=max(len(self.events), estimate_tokens(self.text))
            if told is None
            else told,
            reasoning_tokens=0,
            mean_logprob=None,
            is_estimated=told is None,
            latency_s=latency_s,
            samples_per_call=1,
        )


def read_stream(status: int, headers: Mapping[str, str], body: bytes) -> ParsedStream:
    """Read a good reply's events; anything else, half a stream too, is raised as what it is."""
    check_reply(status, headers, body, kind="event-stream")
    try:
        return _read(body)
    except MalformedReply as error:
        raise TransientFailure(f"cannot be understood: {error}", paid=True) from None


def _read(body: bytes) -> ParsedStream:
    events: list[bytes] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    last: Mapping[str, Any] = {}
    finish = None
    for raw in _BETWEEN.split(body):
        documents = [event for line in raw.splitlines() if (event := read_event(line)) is not None]
        for document in documents:
            if document.get("error"):
                raise MalformedReply("its stream holds an error")
            usage = parse_usage(document) or usage
            text, ended = read_text(document)
            texts.append(text)
            finish, last = ended or finish, document
        if documents and any(document.get("choices") for document in documents):
            events.append(raw + b"\n\n")
    if finish is None and _DONE not in body[-64:]:
        raise MalformedReply("its stream ends before the answer does")
    if not events:
        raise MalformedReply("its stream holds no choices")
    return ParsedStream(tuple(events), last, "".join(texts), finish, usage)
