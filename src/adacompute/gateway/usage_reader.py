"""Usage reader: the usage that a reply reports, parsed from its bytes on their way to the client.

A document is parsed when it is complete; of a stream, the events that have a usage. A compressed
reply is decompressed for that, and forwarded compressed. Texts are skipped, not parsed. It changes
no byte and knows nothing of prices.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from adacompute.gateway.body import read_members, read_object
from adacompute.models.model import CallUsage

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
_EVENT_MEMBERS = ("usage", "response", "message", "choices", "type")
_LAST_EVENTS = (
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
    b'"message_delta"',
)
_MARK = b'"usage"'


class UsageReader:
    """Reads the usage of one reply, and keeps the body if asked to."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], *, keep_body: bool) -> None:
        self._headers = list(headers)
        self._coding = content_coding(self._headers)
        self.kept = bytearray()
        self._keep_body = keep_body
        is_packed = self._coding in DECOMPRESSED
        self._is_readable = is_packed or self._coding == b"identity"
        self._decompressor = zlib.decompressobj(_ANY_ZLIB) if is_packed else None
        self._bytes_left = MAX_DECOMPRESSED
        self._line = b""
        self._is_skipping = False
        self._n_events = 0
        self._usage: dict[str, Any] = {}
        self._is_final = False

    def read_document(self, data: bytes) -> CallUsage | None:
        """Return the usage of a complete document; None if there is none."""
        is_plain = self._coding == b"identity"
        plain = data if is_plain else decompress(self._headers, data, MAX_DOCUMENT)
        if plain is None:
            return None
        if self._keep_body:
            self.kept += plain[:MAX_KEPT]
        found = read_members(plain, ("usage",)) if _MARK in plain else {}
        return CallUsage.reported(read_object(found["usage"])) if found else None

    def feed(self, chunk: bytes) -> None:
        """Read the next chunk of a stream."""
        try:
            for part in self._decompress(chunk):
                self._read_lines(part)
        except zlib.error:
            self._is_readable = False

    def stream_usage(self, *, is_broken: bool) -> CallUsage | None:
        """Return the usage of a stream that has ended, or that broke off.

        Without a usage it is an estimate, one token for each event, or None. What a stream that
        broke off reports counts only if it came with the last event.
        """
        known = CallUsage.reported(self._usage)
        if known is not None and (self._is_final or not is_broken):
            return known
        tokens = {"prompt_tokens": 0, "completion_tokens": self._n_events}
        return CallUsage(tokens, is_estimated=True)

    def _decompress(self, chunk: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield chunk if self._is_readable else b""
            return
        while chunk and self._bytes_left > 0:  # a decompression bomb is not read to its end
            part = self._decompressor.decompress(chunk, DECOMPRESSED_CHUNK)
            chunk = self._decompressor.unconsumed_tail
            self._bytes_left -= len(part) or len(chunk)
            yield part

    def _read_lines(self, part: bytes) -> None:
        if self._keep_body and len(self.kept) < MAX_KEPT:
            self.kept += part
        if b"\r" in part:
            part = part.replace(b"\r", b"\n")
        *lines, rest = (self._line + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and not self._is_skipping:
                self._n_events += 1
                if _MARK in line:
                    self._read_event(line[5:])
            self._is_skipping = False
        self._is_skipping = self._is_skipping or len(rest) > MAX_LINE
        self._line = b"" if self._is_skipping else rest

    def _read_event(self, data: bytes) -> None:
        """Add the usage of an event: later ones replace earlier ones."""
        found = read_members(data, _EVENT_MEMBERS)
        for outer in ("response", "message"):
            if outer in found:
                found = {**found, **read_members(found[outer], ("usage",))}
        if usage := read_object(found.get("usage", b"")):
            self._usage |= usage
            has_no_choice = found.get("choices") == b"[]"
            self._is_final = has_no_choice or found.get("type") in _LAST_EVENTS


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
