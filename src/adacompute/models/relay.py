"""Relay: a request sent on as it is, and what comes back handed on as it comes.

Bytes are not touched: bodies keep their compression, events their pace, headers their values. Only
what belongs to one connection stays behind (hop-by-hop headers), and so do the sender's credentials
unless told otherwise. Nothing that may have been served is sent again: whoever asked may be told of
a failure, and ask again. Only what went to a connection that the upstream had closed is.

One thing cannot be kept: a value of a request's header that is no UTF-8 is sent as the UTF-8 of
its Latin-1 characters, because aiohttp writes nothing else.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import ConfigError, ModelError, ModelTimeout, require
from adacompute.models.endpoint import (
    CURRENT_CONNECTION,
    Connection,
    ConnectionOwner,
    make_connector,
)
from adacompute.models.messages import Timeouts
from adacompute.models.openai_format import check_url

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
_NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_CREDENTIALS = frozenset({b"authorization", b"api-key", b"x-api-key", b"cookie"})
_AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
IDLE_S = 4.0
"""How long a connection is kept for the next request: common servers close idle ones after 5 s, and
what is sent at that moment is lost."""

_LONGEST_HEADER = 65_536
_LARGE = 2**20
_STATUSES = range(200, 600)
_SHORTEST_SECRET = 4  # placeholders such as "x" are no secrets, and occur in words
_ILLEGAL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ConnectionInterrupted(ModelError):  # noqa: N818 - it names what happened
    """A request or a reply that broke off: it may be billed all the same."""


@dataclass(frozen=True, eq=False)
class RelayedResponse:
    """What an upstream answers: its status and headers, and its body as it arrives.

    ``clean`` takes the key out of what is to be shown: some servers quote it in their errors. It is
    None where there is no key.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    chunks: AsyncIterator[bytes]
    clean: Callable[[bytes], bytes] | None


class Relay(ConnectionOwner):
    """One upstream's address for requests of others; use it as an asynchronous context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        forward_key: bool = False,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.base_url = check_url(base_url)
        self._key = key
        self._secret = (key or "").encode() if len(key or "") >= _SHORTEST_SECRET else b""
        self._forward_key = forward_key
        self._timeouts = timeouts or Timeouts()
        self._aiohttp: Any = None
        self._url: Any = None

    async def __aenter__(self) -> Self:
        self._aiohttp = require("aiohttp", extra="serve")
        self._url = require("yarl", extra="serve").URL
        limits = self._timeouts
        self._session = self._aiohttp.ClientSession(
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC,
            cookie_jar=self._aiohttp.DummyCookieJar(),
            connector=make_connector(self._aiohttp, keepalive_timeout=IDLE_S),
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            # A stream may last as long as it has something to say.
            timeout=self._aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_s, sock_read=limits.first_byte_s
            ),
        )
        return self

    @asynccontextmanager
    async def send(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[RelayedResponse]:
        """Send a request to a path below the base URL, its query included."""
        response = await self._open(method, path, self.to_send(headers), body)
        try:
            if response.status not in _STATUSES:
                raise ConnectionInterrupted(
                    f"{self.base_url} answered with the status {response.status}"
                )
            told, chunks = end_to_end(response.raw_headers), self._read(response)
            yield RelayedResponse(
                response.status, told, chunks, self.clean if self._secret else None
            )
        finally:
            response.release()  # half read, it closes the connection, and the upstream may stop

    async def _open(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise ConfigError("a relay is used inside `async with`: it is not open here")
        url = self._url(f"{self.base_url}/{path}", encoded=True)
        while True:
            # What is large is written piece by piece, so that others are served meanwhile.
            data = io.BytesIO(body) if len(body) > _LARGE else body or None
            CURRENT_CONNECTION.set(connection := Connection())
            request = self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False
            )
            try:
                return await request
            except (self._aiohttp.ClientError, OSError, ValueError) as error:
                if not connection.is_stale(error, self._aiohttp):
                    raise self._failed(error) from None

    def clean(self, data: bytes) -> bytes:
        """Take the key out of bytes that are to be shown."""
        return data.replace(self._secret, b"***") if self._secret else data

    async def _read(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (self._aiohttp.ClientError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> ModelError:
        if isinstance(error, TimeoutError):
            waited = f"{self._timeouts.first_byte_s:g} s"
            return ModelTimeout(f"{self.base_url} was silent for {waited}")
        said = f"{self.base_url} failed: {type(error).__name__}"
        unsent = isinstance(error, (self._aiohttp.ClientConnectorError, ValueError))
        return ModelError(said) if unsent else ConnectionInterrupted(said)

    def to_send(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
        """Leave out what belongs to the sender's connection, and who it is unless configured."""
        kept = list(headers)
        unsent = _NOT_SENT | _named(kept) | (frozenset() if self._forward_key else _CREDENTIALS)
        sent = [(_text(name), _text(value)) for name, value in kept if name not in unsent]
        if self._key and not (self._forward_key and any(n == "authorization" for n, _ in sent)):
            sent.append(("authorization", f"Bearer {self._key}"))
        return sent


def end_to_end(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Leave out what belongs to the upstream's connection, and what no header may hold."""
    lower = [(name.lower(), value) for name, value in headers]
    unsent = HOP_BY_HOP | _named(lower)
    return [(n, v) for n, v in lower if n not in unsent and not _ILLEGAL.search(v)]


def _named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Headers that a connection names as its own; a length is not for it to take away."""
    values = [value for name, value in headers if name == b"connection"]
    names = {name.strip().lower() for value in values for name in value.split(b",")}
    return frozenset(names - {b"content-length"})


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
