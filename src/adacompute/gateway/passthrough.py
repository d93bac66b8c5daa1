"""Passing: a request that is not voted on, sent on and answered as if nobody stood between.

Status, end-to-end headers and body bytes are the upstream's, events come as they come. What it cost
is read from the bytes that go by, without holding them up. It makes no decisions.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from adacompute.core.errors import ModelError, ModelTimeout
from adacompute.gateway.exchange import JSON, Exchange
from adacompute.gateway.openai_api import write_error
from adacompute.gateway.request_model import UNBOUNDED_TOKENS
from adacompute.models.relay import ConnectionInterrupted, Relay, RelayedResponse

WHOLE = 8_000_000
"""Replies up to this size are sent when they are complete: half of one becomes an error."""

PACKED = "the upstream's words came packed in a way that is not read here: accept gzip, or none"

LONGEST_BILL = 64
"""Bytes that are looked at again with the next part: a count may be cut in two."""

UNPACKED_MOST = 64_000_000
UNPACKED_PIECE = 65_536
KEPT = 2_000_000
OK = 200
WRONG = 400
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,12})')
_COMPLETION = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,12})')
_LIMIT = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d{1,9})')
_N = re.compile(rb'"n"\s*:\s*(\d{1,4})')
_UNPACKED = (b"gzip", b"x-gzip", b"deflate")
_ANY_ZLIB = zlib.MAX_WBITS | 32
_EVENT = re.compile(rb"^data: ?\{", re.MULTILINE)


@dataclass(frozen=True)
class Forwarded:
    """What went by: the status, what it was billed, and the body where it was asked for."""

    status: int
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    body: bytes = b""
    events: bool = False


async def forward(
    exchange: Exchange,
    relay: Relay,
    body: bytes,
    tell: Callable[[Forwarded], None],
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    keep: bool = False,
) -> Forwarded:
    """Send a request on and its reply back, with headers of ours added to it.

    ``tell`` hears what it cost, even if it breaks off: then at most as much as it may have.
    """
    try:
        passed = await _pass(exchange, relay, body, headers, keep=keep)
    except (asyncio.CancelledError, ConnectionInterrupted, ModelTimeout):
        tell(Forwarded(exchange.status, len(body), most_tokens(body), estimated=True))
        raise
    tell(passed)
    return passed


def most_tokens(body: bytes) -> int:
    """Tokens that a request can be billed at most, as far as it sets a limit.

    >>> most_tokens(b'{"max_tokens": 20, "n": 3}')
    60
    """
    limit, count = (_last(pattern, body) for pattern in (_LIMIT, _N))
    return (UNBOUNDED_TOKENS if limit is None else limit) * max(1, count or 1)


class _Reading:
    """What is read of a reply while it goes by: its bill, its events, all of it where asked.

    A compressed reply is unpacked for that, beside the one that is passed on.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], *, keep: bool) -> None:
        coding = _coding(headers)
        self.legible = coding in {b"identity", *_UNPACKED}
        self.kept = bytearray()
        self._keep = keep
        self._unpack = zlib.decompressobj(_ANY_ZLIB) if coding in _UNPACKED else None
        self._left = UNPACKED_MOST
        self._events = 0
        self._line = b""
        self._tail = b""
        self._prompt: int | None = None
        self._completion: int | None = None

    def feed(self, chunk: bytes) -> None:
        """Read the next part."""
        try:
            for piece in self._plain(chunk):
                self._look(piece)
        except zlib.error:
            self.legible = False

    def bill(self, status: int, body: bytes, *, events: bool, broken: bool = False) -> Forwarded:
        """What it cost: as told, else by its events, else at most; ``body`` is the request's."""
        told = self._completion
        guessed = 0 if status != OK else self._events if self.legible else most_tokens(body)
        tokens = max(guessed if told is None else told, most_tokens(body) if broken else 0)
        unsaid = broken or (told is None and status == OK)
        return Forwarded(status, self._prompt or 0, tokens, unsaid, bytes(self.kept), events)

    def _plain(self, chunk: bytes) -> Iterator[bytes]:
        if self._unpack is None:
            yield chunk if self.legible else b""
            return
        while chunk and self._left > 0:  # who packs a thousandfold is not read to the end
            piece = self._unpack.decompress(chunk, UNPACKED_PIECE)
            chunk = self._unpack.unconsumed_tail
            self._left -= len(piece) or len(chunk)
            yield piece

    def _look(self, piece: bytes) -> None:
        seen = self._tail + piece
        self._prompt = _last(_PROMPT, seen, self._prompt)
        self._completion = _last(_COMPLETION, seen, self._completion)
        self._tail = seen[-LONGEST_BILL:]
        lines = self._line + piece
        self._events += len(_EVENT.findall(lines))
        last = lines.rpartition(b"\n")[2]
        # Half of "data: {" may be an event yet; a longer line was counted, or is none.
        self._line = last if len(last) < len(b"data: {") else b"-"
        if self._keep and len(self.kept) < KEPT:
            self.kept += piece


async def _pass(
    exchange: Exchange,
    relay: Relay,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    keep: bool,
) -> Forwarded:
    sent = exchange.unpacked if keep else exchange.headers
    async with relay.send(exchange.method, exchange.target, sent, body) as relayed:
        told = [*relayed.headers, *headers]
        reading = _Reading(relayed.headers, keep=keep)
        length = dict(relayed.headers).get(b"content-length", b"")
        events = b"event-stream" in dict(relayed.headers).get(b"content-type", b"")
        small = not length or (length.isdigit() and int(length) <= WHOLE)
        whole = relayed.status >= WRONG or (small and not events)
        if whole and exchange.method != "HEAD":
            return await _whole(exchange, relayed, body, told, reading)
        if events:  # an error may have to be added to it
            told = [(name, value) for name, value in told if name != b"content-length"]
        await exchange.start(relayed.status, told)
        return await _stream(exchange, relayed, body, reading, events=events)


async def _whole(
    exchange: Exchange,
    relayed: RelayedResponse,
    body: bytes,
    headers: list[tuple[bytes, bytes]],
    reading: _Reading,
) -> Forwarded:
    """Send a reply once it is complete, or stream what turns out to be large."""
    parts: list[bytes] = []
    size = 0
    async for chunk in relayed.chunks:
        parts.append(chunk)
        reading.feed(chunk)
        size += len(chunk)
        if size > WHOLE and relayed.status >= WRONG and relayed.redact is not None:
            raise ConnectionInterrupted(
                f"the upstream answered {relayed.status} with more than can be searched"
            )
        if size > WHOLE:
            await exchange.start(relayed.status, headers)
            await exchange.write(b"".join(parts))
            return await _stream(exchange, relayed, body, reading, events=False)
    data = b"".join(parts)
    if relayed.status >= WRONG:
        headers, data = shown(relayed, headers, data)
    await exchange.reply(relayed.status, headers, data)
    return reading.bill(relayed.status, body, events=False)


def shown(
    relayed: RelayedResponse, headers: list[tuple[bytes, bytes]], data: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """An error as a client may see it: without the upstream's key, which its words may quote."""
    if relayed.redact is None:
        return headers, data
    plain = unpack(relayed.headers, data)
    bare = without_coding(headers)
    if plain is None:
        bare = [(name, value) for name, value in bare if name != b"content-type"]
        return [JSON, *bare], write_error(PACKED, "upstream_error")
    clean = relayed.redact(plain)
    return (headers, data) if clean == plain else (bare, clean)


def unpack(headers: Iterable[tuple[bytes, bytes]], data: bytes) -> bytes | None:
    """A whole body as it was before it was packed; None for what cannot be read here."""
    coding = _coding(headers)
    if coding not in _UNPACKED:
        return data if coding == b"identity" else None
    packed = zlib.decompressobj(_ANY_ZLIB)
    try:
        plain = packed.decompress(data, WHOLE)
    except zlib.error:
        return None
    return plain if packed.eof and not packed.unused_data else None


def without_coding(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a body that is no longer packed."""
    return [(name, value) for name, value in headers if name != b"content-encoding"]


def _coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    told = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    return b", ".join(told) or b"identity"


async def _stream(
    exchange: Exchange, relayed: RelayedResponse, body: bytes, reading: _Reading, *, events: bool
) -> Forwarded:
    """Pass on each part as it comes; a stream that breaks off ends in an event that says so."""
    broken: ModelError | None = None
    try:
        async for chunk in relayed.chunks:
            await exchange.write(chunk)
            reading.feed(chunk)
    except ModelError as error:
        broken = error
    if broken is None:
        await exchange.write(b"", more=False)
    else:
        await exchange.fail(502, str(broken), "upstream_error")
    return reading.bill(relayed.status, body, events=events, broken=broken is not None)


def _last(pattern: re.Pattern[bytes], data: bytes, before: int | None = None) -> int | None:
    found = pattern.findall(data)
    return int(found[-1]) if found else before
