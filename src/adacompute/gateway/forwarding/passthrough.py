"""Pass-through: a request that is not voted on, forwarded to the upstream unchanged.

Status, end-to-end headers and body bytes of the reply are the upstream's, and events are forwarded
as they arrive. The call is recorded when it starts and, with the usage that the reply reports, when
it ends. It makes no decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adacompute.core.errors import ModelError, ModelTimeout
from adacompute.gateway.connection.exchange import JSON, Exchange, Headers
from adacompute.gateway.forwarding.usage_reader import UsageReader, decompress
from adacompute.gateway.requests.openai_replies import write_error
from adacompute.models.calls import NO_USAGE, UNTRACKED, CallTracker, StartedCall
from adacompute.models.connection.relay import ConnectionInterrupted, Relay, RelayedResponse
from adacompute.models.formats.failures import INTERMEDIARY_STATUSES
from adacompute.models.model import CallUsage

MAX_BUFFERED = 8_000_000
"""Replies up to this size are sent when they are complete: a partial one becomes an error."""

COMPRESSED_ERROR = (
    "the upstream's error is compressed in a way that cannot be searched for secrets: "
    "accept gzip or no compression"
)
REASON_HEADER = b"x-adacompute-passthrough"
"""Header of a forwarded reply that says why its request was not voted on."""

SUCCESS = range(200, 300)
BAD_REQUEST = 400
_MAY_BE_BILLED = (ConnectionInterrupted, ModelTimeout)


@dataclass(frozen=True)
class ReplyHandling:
    """What is done with a reply: the headers that it gets, and whether its body is kept.

    ``counts_all`` says that the upstream is known to count the tokens of all choices of a reply.
    """

    headers: Sequence[tuple[bytes, bytes]] = ()
    keep_body: bool = False
    counts_all: bool = False


@dataclass(frozen=True)
class Forwarded:
    """What was forwarded: the status, and the body where it was kept."""

    status: int
    body: bytes = b""
    is_stream: bool = False


async def forward(
    exchange: Exchange,
    relay: Relay,
    body: bytes,
    tracker: CallTracker,
    handling: ReplyHandling | None = None,
) -> Forwarded:
    """Forward a request, and its reply.

    ``tracker`` is notified of the call if it may cost something: methods other than POST do not.
    """
    handling = handling or ReplyHandling()
    observer = tracker if exchange.method == "POST" else UNTRACKED
    calls = [await observer.start(exchange.path, body, 1)]

    async def repeat() -> None:
        calls[-1].end(None)
        calls.append(await observer.start(exchange.path, body, len(calls) + 1))

    sent = exchange.headers_without_compression if handling.keep_body else exchange.headers
    try:
        async with relay.send(
            exchange.method, exchange.target, sent, body, on_repeat=repeat
        ) as relayed:
            return await _ForwardedReply(exchange, relayed, calls[-1], handling).send()
    except BaseException as error:
        is_billed = not isinstance(error, ModelError) or isinstance(error, _MAY_BE_BILLED)
        calls[-1].end(None if is_billed and relay.was_sent() else NO_USAGE)
        raise


class _ForwardedReply:
    """One reply on its way; its call ends before the last byte is sent."""

    def __init__(
        self,
        exchange: Exchange,
        relayed: RelayedResponse,
        call: StartedCall,
        handling: ReplyHandling,
    ) -> None:
        kinds = [value for name, value in relayed.headers if name == b"content-type"]
        self._exchange = exchange
        self._relayed = relayed
        self._call = call
        self._headers: Headers = [*relayed.headers, *handling.headers]
        self._reader = UsageReader(
            relayed.headers, keep_body=handling.keep_body, counts_all=handling.counts_all
        )
        self._is_stream = any(b"event-stream" in kind for kind in kinds)

    async def send(self) -> Forwarded:
        """Send the reply: once it is complete if it is small, else as it arrives."""
        status, exchange = self._relayed.status, self._exchange
        length = dict(self._relayed.headers).get(b"content-length", b"")
        is_small = not length or (length.isdigit() and int(length) <= MAX_BUFFERED)
        is_buffered = status >= BAD_REQUEST or (is_small and not self._is_stream)
        if is_buffered and exchange.method != "HEAD":
            await self._send_buffered()
        else:
            if self._is_stream:  # an error may have to be added to it
                self._headers = [one for one in self._headers if one[0] != b"content-length"]
            await exchange.start(status, self._headers)
            await self._send_chunks()
        return Forwarded(status, bytes(self._reader.kept), self._is_stream)

    async def _send_buffered(self) -> None:
        """Send a reply once it is complete, or as it arrives if it turns out to be large."""
        relayed, exchange = self._relayed, self._exchange
        parts: list[bytes] = []
        size = 0
        async for chunk in relayed.chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_BUFFERED and relayed.status >= BAD_REQUEST and relayed.redact is not None:
                raise ConnectionInterrupted(
                    f"the upstream answered {relayed.status} with an error that is too large to "
                    "search"
                )
            if size > MAX_BUFFERED:
                await exchange.start(relayed.status, self._headers)
                await exchange.write(b"".join(parts))
                await self._send_chunks()
                return
        headers, data = self._headers, b"".join(parts)
        is_success = relayed.status in SUCCESS
        self._end_call(self._reader.read_document(data) if is_success else None)
        if relayed.status >= BAD_REQUEST:
            headers, data = redact_error(relayed, headers, data)
        await exchange.reply(relayed.status, headers, data)

    async def _send_chunks(self) -> None:
        """Send each chunk as it arrives; a stream that breaks off ends in an event with an error.

        A call whose usage arrived is charged for it even if the client disconnects.
        """
        failure: ModelError | None = None
        exchange, reader = self._exchange, self._reader
        is_broken = True
        try:
            async for chunk in self._relayed.chunks:
                if self._is_stream:
                    reader.feed(chunk)
                await exchange.write(chunk)
            is_broken = False
        except ModelError as error:
            failure = error
        finally:
            usage = reader.stream_usage(is_broken=is_broken) if self._is_stream else None
            self._end_call(usage)
        if failure is None:
            await exchange.write(b"", more=False)
        else:
            await exchange.fail(502, str(failure), "upstream_error")

    def _end_call(self, usage: CallUsage | None) -> None:
        status = self._relayed.status
        is_free = status not in SUCCESS and status not in INTERMEDIARY_STATUSES
        self._call.end(NO_USAGE if is_free else usage)


def redact_error(relayed: RelayedResponse, headers: Headers, data: bytes) -> tuple[Headers, bytes]:
    """Return an error without the upstream's API key, which its message may quote."""
    if relayed.redact is None:
        return headers, data
    plain = decompress(relayed.headers, data, MAX_BUFFERED)
    plain_headers = without_coding(headers)
    if plain is None:
        kept = [(name, value) for name, value in plain_headers if name != b"content-type"]
        return [JSON, *kept], write_error(COMPRESSED_ERROR, "upstream_error")
    redacted = relayed.redact(plain)
    return (headers, data) if redacted == plain else (plain_headers, redacted)


def without_coding(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a body that is no longer compressed."""
    return [(name, value) for name, value in headers if name != b"content-encoding"]
