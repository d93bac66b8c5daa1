"""Streams: a complete stream of server-sent events, as bytes and as the reply it adds up to.

The events are kept byte for byte, so that they can be passed on unchanged. What they add up to has
the format of a reply that was not streamed, so that both give the same samples. This module opens
no connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adacompute.models.formats.failures import TransientFailure, check_reply
from adacompute.models.formats.openai_format import MalformedReply, content_bytes, parse_samples
from adacompute.models.formats.responses_format import RESPONSES, find_response, to_completion
from adacompute.models.formats.stream_events import DONE, event_data, join_deltas, parse_event
from adacompute.models.messages import Sample
from adacompute.models.model import merge_usage

_SEPARATOR = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(frozen=True)
class ParsedStream:
    """A complete stream: its events without usage and ``[DONE]``, and the reply they add up to.

    ``completion`` is that reply as a chat completion or a text completion.
    """

    events: tuple[bytes, ...]
    document: Mapping[str, Any]
    completion: Mapping[str, Any]

    def to_sample(self, latency_s: float) -> Sample:
        """Return the stream as a sample; an estimate of its tokens is at least one per event."""
        sample = parse_samples(self.completion, latency_s=latency_s)[0]
        if not sample.is_estimated:
            return sample
        n_tokens = max(len(self.events), sample.completion_tokens or 0)
        return replace(sample, completion_tokens=n_tokens)


def parse_stream(
    status: int, headers: Mapping[str, str], body: bytes, *, path: str = ""
) -> ParsedStream:
    """Parse a successful reply; raise any other, or an incomplete stream, as the failure it is.

    ``path`` is that of the endpoint: the events of the Responses API have a format of their own.
    """
    check_reply(status, headers, body, content_type="event-stream")
    try:
        return _parse_response(body) if path == RESPONSES else _parse(body)
    except MalformedReply as error:
        raise TransientFailure(f"cannot be parsed: {error}", may_be_billed=True) from None


def split_events(body: bytes) -> Iterator[tuple[bytes, Sequence[Mapping[str, Any]]]]:
    """Yield each event of a stream, as bytes and as the JSON objects of its lines."""
    for raw in _SEPARATOR.split(body):
        documents = [parse_event(data) for data in event_data(raw.splitlines())]
        if any(document.get("error") for document in documents):
            raise MalformedReply("its stream holds an error")
        yield raw + b"\n\n", documents


def _parse(body: bytes) -> ParsedStream:
    events: list[bytes] = []
    chunks: list[Mapping[str, Any]] = []
    usage: Mapping[str, Any] = {}
    for raw, documents in split_events(body):
        for document in documents:
            if found := merge_usage(document.get("usage")):
                usage = merge_usage(usage, found)
            elif content_bytes(document.get("choices")):
                usage = {}  # it did not count this text
        if any(document.get("choices") for document in documents):
            events.append(raw)
            chunks += documents
    if not events:
        raise MalformedReply("its stream holds no choices")
    choice = join_deltas(_first_choices(chunks))
    if choice["finish_reason"] is None and DONE not in body[-64:]:
        raise MalformedReply("its stream ends before the answer does")
    document = {**chunks[0], "choices": [choice], "usage": usage}
    return ParsedStream(tuple(events), document, document)


def _parse_response(body: bytes) -> ParsedStream:
    events = [(raw, documents) for raw, documents in split_events(body) if documents]
    document = find_response(one for _, documents in events for one in documents)
    return ParsedStream(tuple(raw for raw, _ in events), document, to_completion(document))


def _first_choices(chunks: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the choice with index 0, which is the only one that is asked for."""
    for chunk in chunks:
        found = chunk.get("choices")
        for choice in found if isinstance(found, list) else ():
            if isinstance(choice, dict) and not choice.get("index"):
                yield choice
