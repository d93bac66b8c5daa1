"""Usage reader: the usage that a reply reports, parsed from its bytes on their way to the client.

A document is parsed when it is complete, a stream event by event: the usage, the choices that came
and the bytes of their texts, which say whether the usage can be right. A compressed reply is
decompressed for that, and forwarded compressed. It changes no byte and knows nothing of prices.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from adacompute.models.formats.body import (
    MAX_ELEMENTS,
    count_elements,
    read_elements,
    read_json,
    read_members,
)
from adacompute.models.formats.openai_format import content_bytes
from adacompute.models.formats.stream_events import DONE, EventReader
from adacompute.models.model import CallUsage, merge_usage, parse_usage

MAX_DOCUMENT = 8_000_000
"""Bytes of a document, decompressed, whose usage is read."""

MAX_LINE = 4_000_000
"""Bytes of a line of a stream that is read; longer lines are skipped."""

MAX_DECOMPRESSED = 64_000_000
DECOMPRESSED_CHUNK = 65_536
MAX_KEPT = 2_000_000
DECOMPRESSED = (b"gzip", b"x-gzip", b"deflate")
"""Content codings that are decompressed here."""

_ANY_ZLIB = zlib.MAX_WBITS | 32
_CONTENT = ("choices", "delta", "output", "content")
_DOCUMENT_MEMBERS = ("usage", *_CONTENT)
_EVENT_MEMBERS = ("type", "choices", "delta")
_OUTER_MEMBERS = ("usage", "response", "message")
_LAST_EVENTS = (
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
    b'"message_delta"',
)
_MARK = b'"usage"'


class UsageReader:
    """Reads the usage of one reply, and keeps the body if asked to.

    ``counts_all`` says that the server is known to count all choices of a reply. If it is not, the
    usage of a reply with several choices is an estimate.
    """

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        keep_body: bool,
        counts_all: bool = False,
    ) -> None:
        self._headers = list(headers)
        self._coding = content_coding(self._headers)
        self.kept = bytearray()
        self._keep_body = keep_body
        is_packed = self._coding in DECOMPRESSED
        self._is_readable = is_packed or self._coding == b"identity"
        self._decompressor = zlib.decompressobj(_ANY_ZLIB) if is_packed else None
        self._bytes_left = MAX_DECOMPRESSED
        self._events = EventReader(MAX_LINE)
        self._counts_all = counts_all
        self._indexes: set[object] = set()
        self._text_bytes = 0
        self._n_bytes_counted = 0
        self._usage: dict[str, Any] = {}
        self._is_final = False

    def read_document(self, data: bytes) -> CallUsage | None:
        """Return the usage of a complete document; None if it cannot be read."""
        is_plain = self._coding == b"identity"
        plain = data if is_plain else decompress(self._headers, data, MAX_DOCUMENT)
        if plain is None:
            return None
        if self._keep_body:
            self.kept += plain[:MAX_KEPT]
        found = read_members(plain, _DOCUMENT_MEMBERS)
        usage = parse_usage({"usage": read_json(found.get("usage", b"null"))})
        if usage.get("prompt_tokens") and usage.get("completion_tokens") and _has_one_choice(found):
            return CallUsage.of(usage, n_samples=1)  # the text cannot contradict it
        n_choices = self._read_content(found, plain)
        return self._to_usage(usage, n_choices)

    def feed(self, chunk: bytes) -> None:
        """Read the next chunk of a stream."""
        try:
            for part in self._decompress(chunk):
                if self._keep_body and len(self.kept) < MAX_KEPT:
                    self.kept += part
                skipped = self._events.bytes_skipped
                for data in self._events.feed(part):
                    self._read_event(data)
                self._text_bytes += self._events.bytes_skipped - skipped
        except zlib.error:
            self._is_readable = False

    def stream_usage(self, *, is_broken: bool) -> CallUsage:
        """Return the usage of a stream that has ended, or that broke off.

        A usage after which more text came is an estimate. What a stream that broke off reports
        counts only if it came with the last event, because more may have been generated.
        """
        has_more = self._text_bytes > self._n_bytes_counted
        usage = parse_usage({"usage": self._usage})
        if (is_broken and not self._is_final) or (self._usage and has_more):
            return self._to_usage(usage, None, is_counted=False)
        return self._to_usage(usage, len(self._indexes) or None)

    def _to_usage(
        self, usage: Mapping[str, Any], n_choices: int | None, *, is_counted: bool = True
    ) -> CallUsage:
        return CallUsage.of(
            usage,
            is_counted=is_counted and (self._counts_all or (n_choices or 1) == 1),
            n_samples=n_choices,
            text_bytes=self._text_bytes,
        )

    def _read_content(self, found: Mapping[str, bytes], data: bytes) -> int | None:
        """Add the bytes of the texts in a document or event, and return how many choices it has.

        What cannot be parsed, or has too many elements, is counted with all of its bytes.
        """
        n_choices = None
        if not found and data.strip() != DONE:
            self._text_bytes += len(data)
        for name in _CONTENT:
            if (value := found.get(name, b"null")) == b"null":
                continue
            parsed = read_json(value) if count_elements(value) <= MAX_ELEMENTS else None
            self._text_bytes += len(value) if parsed is None else content_bytes({name: parsed})
            if name == "choices" and isinstance(parsed, list):
                n_choices = len(parsed)
                for choice in parsed:
                    if isinstance(choice, dict):
                        self._indexes.add(str(choice.get("index") or 0))
        return n_choices

    def _decompress(self, chunk: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield chunk if self._is_readable else b""
            return
        while chunk and self._bytes_left > 0:  # a decompression bomb is not read to its end
            part = self._decompressor.decompress(chunk, DECOMPRESSED_CHUNK)
            chunk = self._decompressor.unconsumed_tail
            self._bytes_left -= len(part) or len(chunk)
            yield part

    def _read_event(self, data: bytes) -> None:
        """Add the text and the usage of an event."""
        found = read_members(data, _EVENT_MEMBERS)
        self._read_content(found, data)
        if _MARK not in data:
            return
        found |= read_members(data, _OUTER_MEMBERS)
        for outer in ("response", "message"):
            if outer in found:
                found = {**found, **read_members(found[outer], ("usage",))}
        if usage := read_json(found.get("usage", b"null")):
            self._usage = merge_usage(self._usage, usage)
            self._n_bytes_counted = self._text_bytes
            has_no_choice = found.get("choices") == b"[]"
            self._is_final = has_no_choice or found.get("type") in _LAST_EVENTS


def _has_one_choice(found: Mapping[str, bytes]) -> bool:
    """Whether a document has exactly one choice, which need not be parsed to know that."""
    choices = found.get("choices", b"")
    return count_elements(choices) <= MAX_ELEMENTS and len(read_elements(choices)) == 1


def decompress(headers: Iterable[tuple[bytes, bytes]], data: bytes, max_bytes: int) -> bytes | None:
    """Return a whole body without compression; None if it cannot be decompressed here."""
    coding = content_coding(headers)
    if coding not in DECOMPRESSED:
        return data if coding == b"identity" else None
    decompressor = zlib.decompressobj(_ANY_ZLIB)
    try:
        plain = decompressor.decompress(data, max_bytes)
    except zlib.error:
        return None
    return plain if decompressor.eof and not decompressor.unused_data else None


def content_coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the content coding of a reply, ``identity`` if it has none."""
    codings = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    return b", ".join(codings) or b"identity"
