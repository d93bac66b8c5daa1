"""Pass-through: a request that is not voted on, forwarded to the upstream unchanged.

Status, end-to-end headers and body bytes of the reply are the upstream's, and events are forwarded
as they arrive. The usage is read from the bytes on their way, without delaying them. It makes no
decisions.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from adacompute.core.errors import ModelError, ModelTimeout
from adacompute.gateway.exchange import JSON, Exchange, Headers
from adacompute.gateway.openai_replies import write_error
from adacompute.models.model import UNBOUNDED_TOKENS
from adacompute.models.relay import ConnectionInterrupted, Relay, RelayedResponse

MAX_BUFFERED = 8_000_000
"""Replies up to this size are sent when they are complete: a partial one becomes an error."""

COMPRESSED_ERROR = (
    "the upstream's error is compressed in a way that cannot be searched for secrets: "
    "accept gzip or no compression"
)
OVERLAP = 64
"""Bytes that are searched again with the next chunk: a number may be split between two."""

MAX_DECOMPRESSED = 64_000_000
DECOMPRESSED_CHUNK = 65_536
MAX_KEPT = 2_000_000
OK = 200
BAD_REQUEST = 400
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,12})')
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d{1,9})')
_N = re.compile(rb'"n"\s*:\s*(\d{1,4})')
_DECOMPRESSED = (b"gzip", b"x-gzip", b"deflate")
_ANY_ZLIB = zlib.MAX_WBITS | 32
_EVENT = re.compile(rb"^data: ?\{", re.MULTILINE)


@dataclass(frozen=True)
class Forwarded:
    """What was forwarded: the status, the tokens used, and the body where it was kept."""

    status: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_estimated: bool = False
    body: bytes = b""
    is_stream: bool = False


async def forward(
    exchange: Exchange,
    relay: Relay,
    body: bytes,
    on_done: Callable[[Forwarded], None],
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    keep_body: bool = False,
) -> Forwarded:
    """Forward a request, and its reply with some headers of ours.

    ``on_done`` receives what was used; if the reply is cut off, it is an upper bound.
    """
    try:
        forwarded = await _forward(exchange, relay, body, headers, keep_body=keep_body)
    except (asyncio.CancelledError, ConnectionInterrupted, ModelTimeout):
        on_done(Forwarded(exchange.status, len(body), max_tokens(body), is_estimated=True))
        raise
    on_done(forwarded)
    return forwarded


def max_tokens(body: bytes) -> int:
    """Return the most completion tokens that a request can use, by the limit that it sets.

    >>> max_tokens(b'{"max_tokens": 20, "n": 3}')
    60
    """
    limit, n = (_last(pattern, body) for pattern in (_MAX_TOKENS, _N))
    return (UNBOUNDED_TOKENS if limit is None else limit) * max(1, n or 1)


class _UsageReader:
    """Reads the usage of a reply on its way, counts its events, and keeps the body if asked to.

    A compressed reply is decompressed for that; it is forwarded compressed.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], *, keep_body: bool) -> None:
        coding = _coding(headers)
        self.is_readable = coding in {b"identity", *_DECOMPRESSED}
        self.kept = bytearray()
        self._keep_body = keep_body
        self._decompressor = zlib.decompressobj(_ANY_ZLIB) if coding in _DECOMPRESSED else None
        self._bytes_left = MAX_DECOMPRESSED
        self._n_events = 0
        self._line = b""
        self._tail = b""
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None

    def feed(self, chunk: bytes) -> None:
        """Read the next chunk."""
        try:
            for part in self._decompress(chunk):
                self._search(part)
        except zlib.error:
            self.is_readable = False

    def result(
        self, status: int, request: bytes, *, is_stream: bool, is_broken: bool = False
    ) -> Forwarded:
        """Return the usage: as reported, else by the number of events, else an upper bound."""
        known = self._completion_tokens
        guess = 0
        if status == OK:
            guess = self._n_events if self.is_readable else max_tokens(request)
        bound = max_tokens(request) if is_broken else 0
        tokens = max(guess if known is None else known, bound)
        is_estimated = is_broken or (known is None and status == OK)
        prompt_tokens, kept = self._prompt_tokens or 0, bytes(self.kept)
        return Forwarded(status, prompt_tokens, tokens, is_estimated, kept, is_stream)

    def _decompress(self, chunk: bytes) -> Iterator[bytes]:
        if self._decompressor is None:
            yield chunk if self.is_readable else b""
            return
        while chunk and self._bytes_left > 0:  # a decompression bomb is not read to its end
            part = self._decompressor.decompress(chunk, DECOMPRESSED_CHUNK)
            chunk = self._decompressor.unconsumed_tail
            self._bytes_left -= len(part) or len(chunk)
            yield part

    def _search(self, part: bytes) -> None:
        seen = self._tail + part
        self._prompt_tokens = _last(_PROMPT_TOKENS, seen, self._prompt_tokens)
        self._completion_tokens = _last(_COMPLETION_TOKENS, seen, self._completion_tokens)
        self._tail = seen[-OVERLAP:]
        lines = self._line + part
        self._n_events += len(_EVENT.findall(lines))
        last = lines.rpartition(b"\n")[2]
        # A part of "data: {" may still become an event; a longer line was counted, or is none.
        self._line = last if len(last) < len(b"data: {") else b"-"
        if self._keep_body and len(self.kept) < MAX_KEPT:
            self.kept += part


async def _forward(
    exchange: Exchange,
    relay: Relay,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    keep_body: bool,
) -> Forwarded:
    sent = exchange.headers_without_compression if keep_body else exchange.headers
    async with relay.send(exchange.method, exchange.target, sent, body) as relayed:
        reply_headers = [*relayed.headers, *headers]
        reader = _UsageReader(relayed.headers, keep_body=keep_body)
        length = dict(relayed.headers).get(b"content-length", b"")
        is_stream = b"event-stream" in dict(relayed.headers).get(b"content-type", b"")
        is_small = not length or (length.isdigit() and int(length) <= MAX_BUFFERED)
        is_buffered = relayed.status >= BAD_REQUEST or (is_small and not is_stream)
        if is_buffered and exchange.method != "HEAD":
            return await _send_buffered(exchange, relayed, body, reply_headers, reader)
        if is_stream:  # an error may have to be added to it
            reply_headers = [one for one in reply_headers if one[0] != b"content-length"]
        await exchange.start(relayed.status, reply_headers)
        return await _stream(exchange, relayed, body, reader, is_stream=is_stream)


async def _send_buffered(
    exchange: Exchange,
    relayed: RelayedResponse,
    body: bytes,
    headers: Headers,
    reader: _UsageReader,
) -> Forwarded:
    """Send a reply once it is complete, or stream it if it turns out to be large."""
    parts: list[bytes] = []
    size = 0
    async for chunk in relayed.chunks:
        parts.append(chunk)
        reader.feed(chunk)
        size += len(chunk)
        if size > MAX_BUFFERED and relayed.status >= BAD_REQUEST and relayed.redact is not None:
            raise ConnectionInterrupted(
                f"the upstream answered {relayed.status} with an error that is too large to search"
            )
        if size > MAX_BUFFERED:
            await exchange.start(relayed.status, headers)
            await exchange.write(b"".join(parts))
            return await _stream(exchange, relayed, body, reader, is_stream=False)
    data = b"".join(parts)
    if relayed.status >= BAD_REQUEST:
        headers, data = redact_error(relayed, headers, data)
    await exchange.reply(relayed.status, headers, data)
    return reader.result(relayed.status, body, is_stream=False)


def redact_error(relayed: RelayedResponse, headers: Headers, data: bytes) -> tuple[Headers, bytes]:
    """Return an error without the upstream's API key, which its message may quote."""
    if relayed.redact is None:
        return headers, data
    plain = decompress(relayed.headers, data)
    plain_headers = without_coding(headers)
    if plain is None:
        kept = [(name, value) for name, value in plain_headers if name != b"content-type"]
        return [JSON, *kept], write_error(COMPRESSED_ERROR, "upstream_error")
    redacted = relayed.redact(plain)
    return (headers, data) if redacted == plain else (plain_headers, redacted)


def decompress(headers: Iterable[tuple[bytes, bytes]], data: bytes) -> bytes | None:
    """Return a whole body without compression; None if it cannot be decompressed here."""
    coding = _coding(headers)
    if coding not in _DECOMPRESSED:
        return data if coding == b"identity" else None
    decompressor = zlib.decompressobj(_ANY_ZLIB)
    try:
        plain = decompressor.decompress(data, MAX_BUFFERED)
    except zlib.error:
        return None
    return plain if decompressor.eof and not decompressor.unused_data else None


def without_coding(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a body that is no longer compressed."""
    return [(name, value) for name, value in headers if name != b"content-encoding"]


def _coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    codings = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    return b", ".join(codings) or b"identity"


async def _stream(
    exchange: Exchange,
    relayed: RelayedResponse,
    body: bytes,
    reader: _UsageReader,
    *,
    is_stream: bool,
) -> Forwarded:
    """Forward each chunk as it arrives; a stream that breaks off ends in an event with an error."""
    failure: ModelError | None = None
    try:
        async for chunk in relayed.chunks:
            await exchange.write(chunk)
            reader.feed(chunk)
    except ModelError as error:
        failure = error
    if failure is None:
        await exchange.write(b"", more=False)
    else:
        await exchange.fail(502, str(failure), "upstream_error")
    is_broken = failure is not None
    return reader.result(relayed.status, body, is_stream=is_stream, is_broken=is_broken)


def _last(pattern: re.Pattern[bytes], data: bytes, before: int | None = None) -> int | None:
    found = pattern.findall(data)
    return int(found[-1]) if found else before
