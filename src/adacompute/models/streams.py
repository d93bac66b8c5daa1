"""Streams: a complete stream of server-sent events, as bytes and as the sample it contains.

The events are kept byte for byte, so that they can be passed on unchanged. This module opens no
connection.
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
    parse_count,
    parse_delta,
    parse_event,
    parse_usage,
)

_SEPARATOR = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DONE = b"[DONE]"


@dataclass(frozen=True)
class ParsedStream:
    """A complete stream: its events without usage and ``[DONE]``, and what they add up to."""

    events: tuple[bytes, ...]
    last_event: Mapping[str, Any]
    text: str
    finish_reason: str | None
    usage: Mapping[str, Any]

    def to_sample(self, latency_s: float) -> Sample:
        """Return the stream as a sample; tokens that were not reported are estimated."""
        reported = parse_count(self.usage, "completion_tokens")
        estimated = max(len(self.events), estimate_tokens(self.text))
        return Sample(
            text=self.text,
            finish_reason=self.finish_reason,
            prompt_tokens=parse_count(self.usage, "prompt_tokens"),
            completion_tokens=estimated if reported is None else reported,
            is_estimated=reported is None,
            latency_s=latency_s,
        )


def parse_stream(status: int, headers: Mapping[str, str], body: bytes) -> ParsedStream:
    """Parse a successful reply; raise any other, or an incomplete stream, as the failure it is."""
    check_reply(status, headers, body, content_type="event-stream")
    try:
        return _parse(body)
    except MalformedReply as error:
        raise TransientFailure(f"cannot be parsed: {error}", may_be_billed=True) from None


def _parse(body: bytes) -> ParsedStream:
    events: list[bytes] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    last_event: Mapping[str, Any] = {}
    finish_reason = None
    for raw in _SEPARATOR.split(body):
        documents = [event for line in raw.splitlines() if (event := parse_event(line)) is not None]
        for document in documents:
            if document.get("error"):
                raise MalformedReply("its stream holds an error")
            usage = parse_usage(document) or usage
            text, reason = parse_delta(document)
            texts.append(text)
            finish_reason, last_event = reason or finish_reason, document
        if any(document.get("choices") for document in documents):
            events.append(raw + b"\n\n")
    if finish_reason is None and _DONE not in body[-64:]:
        raise MalformedReply("its stream ends before the answer does")
    if not events:
        raise MalformedReply("its stream holds no choices")
    return ParsedStream(tuple(events), last_event, "".join(texts), finish_reason, usage)
