"""Relay: forwards a request unchanged and passes the reply on as it arrives.

Bytes are not touched: bodies keep their compression, events their timing, headers their values.
Only hop-by-hop headers are removed, and the client's credentials unless ``forward_key`` is set. A
request that the upstream may have processed is not sent again: the client gets the failure and can
repeat it. Only a request on a connection that the upstream had already closed is sent again.

One exception: a request header value that is not UTF-8 is sent as the UTF-8 of its Latin-1
characters, because aiohttp writes nothing else.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adacompute.core.errors import ModelError, ModelTimeout
from adacompute.models.connection.endpoint import MIN_SECRET_CHARS, Unreachable
from adacompute.models.connection.http_session import (
    MAX_REPLY_BYTES,
    HttpError,
    SessionOwner,
    open_relay_session,
    was_sent,
)
from adacompute.models.formats.openai_format import check_url
from adacompute.models.messages import Timeouts

if TYPE_CHECKING:
    from typing import Self

    import aiohttp

Headers = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_CREDENTIALS = frozenset({b"authorization", b"api-key", b"x-api-key", b"cookie"})
_NOT_FORWARDED_WITHOUT_KEY = _NOT_FORWARDED | _CREDENTIALS
_CHUNKED_WRITE_BYTES = 2**20
_VALID_STATUSES = range(200, 600)
_CONTROL_CHARS = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ConnectionInterrupted(ModelError):  # noqa: N818 - it names what happened
    """A request or reply that broke off; the upstream may still bill it."""


@dataclass(frozen=True, eq=False)
class RelayedResponse:
    """An upstream's reply: its status and headers, and its body as it arrives.

    ``redact`` removes the API key from bytes that are shown to the client, because some servers
    quote it in their errors. It is None if there is no key.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    chunks: AsyncIterator[bytes]
    redact: Callable[[bytes], bytes] | None

    async def read(self, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
        """Read the whole body; raise ConnectionInterrupted if it is larger than allowed."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise ConnectionInterrupted(
                    f"the upstream sent a reply of more than {max_bytes / 1e6:g} MB"
                )
        return b"".join(parts)


class Relay(SessionOwner):
    """One upstream for forwarded requests; use it as an asynchronous context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        forward_key: bool = False,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.base_url = check_url(base_url)
        self._api_key = api_key
        self._secret = (api_key or "").encode() if len(api_key or "") >= MIN_SECRET_CHARS else b""
        self._forward_key = forward_key
        self._timeouts = timeouts or Timeouts()

    async def __aenter__(self) -> Self:
        self._session = open_relay_session(self._timeouts)
        return self

    def send(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        on_repeat: Callable[[], Awaitable[None]] | None = None,
    ) -> AbstractAsyncContextManager[RelayedResponse]:
        """Send a request to a path below the base URL, including its query.

        ``on_repeat`` is called before a request is sent again; an error of it prevents that.
        """
        sent = self.request_headers(headers)
        return _Sending(self._open(method, path, sent, body, on_repeat), self._to_relayed)

    def _to_relayed(self, response: aiohttp.ClientResponse) -> RelayedResponse:
        if response.status not in _VALID_STATUSES:
            raise ConnectionInterrupted(
                f"{self.base_url} answered with the status {response.status}"
            )
        chunks = self._get_session().chunks(response, self._to_error)
        kept = end_to_end_headers(response.raw_headers)
        return RelayedResponse(response.status, kept, chunks, self.redact if self._secret else None)

    async def _open(
        self,
        method: str,
        path: str,
        headers: list[tuple[str, str]],
        body: bytes,
        on_repeat: Callable[[], Awaitable[None]] | None,
    ) -> aiohttp.ClientResponse:
        session, url = self._get_session(), f"{self.base_url}/{path}"
        while True:
            # A large body is written in pieces, so that it does not block other requests.
            data = io.BytesIO(body) if len(body) > _CHUNKED_WRITE_BYTES else body or None
            try:
                return await session.open(method, url, data, headers, encoded=True)
            except HttpError as error:
                if not error.is_stale:
                    raise self._to_error(error) from None
                if on_repeat is not None:
                    await on_repeat()

    def was_sent(self) -> bool:
        """Whether bytes of the request that this task sent last can have reached the upstream."""
        return was_sent()

    def redact(self, data: bytes) -> bytes:
        """Replace the API key in bytes that are shown to the client."""
        return data.replace(self._secret, b"***") if self._secret else data

    def _to_error(self, error: HttpError) -> ModelError:
        if error.stage in {"connect_timeout", "timeout"}:
            return ModelTimeout(f"{self.base_url} was silent for {self._timeouts.first_byte_s:g} s")
        message = f"{self.base_url} failed: {error.cause}"
        if error.stage == "unreachable":
            return Unreachable(message)
        return ConnectionInterrupted(message) if error.stage == "lost" else ModelError(message)

    def request_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """Headers to forward: without hop-by-hop headers and, unless configured, credentials."""
        given = list(headers)
        removed = _NOT_FORWARDED if self._forward_key else _NOT_FORWARDED_WITHOUT_KEY
        if named := _connection_headers(given):
            removed |= named
        kept = [(_decode(name), _decode(value)) for name, value in given if name not in removed]
        has_client_key = self._forward_key and any(name == "authorization" for name, _ in kept)
        if self._api_key and not has_client_key:
            kept.append(("authorization", f"Bearer {self._api_key}"))
        return kept


class _Sending:
    """A request that is sent when its block begins, and whose connection is free when it ends.

    If the reply is not read to its end, the connection is closed, so that the upstream can stop
    generating.
    """

    __slots__ = ("_opening", "_response", "_to_relayed")

    def __init__(
        self,
        opening: Awaitable[aiohttp.ClientResponse],
        to_relayed: Callable[[aiohttp.ClientResponse], RelayedResponse],
    ) -> None:
        self._opening = opening
        self._to_relayed = to_relayed

    async def __aenter__(self) -> RelayedResponse:
        self._response = await self._opening
        try:
            return self._to_relayed(self._response)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._response.release()


def end_to_end_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Remove hop-by-hop headers, and headers with control characters."""
    lower = [(name.lower(), value) for name, value in headers]
    named = _connection_headers(lower)
    removed = HOP_BY_HOP | named if named else HOP_BY_HOP
    return [(n, v) for n, v in lower if n not in removed and not _CONTROL_CHARS.search(v)]


def _connection_headers(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Headers that a Connection header names; Content-Length cannot be removed this way."""
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return frozenset()
    names = {name.strip().lower() for value in values for name in value.split(b",")}
    return frozenset(names - {b"content-length"})


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
