"""HTTP session: connections to a server, and why a request failed; the only client of aiohttp.

A session reuses connections. A request that fails on the network raises ``HttpError``, which says
at which point it failed and whether the server can have processed it; ``was_sent`` says so of a
request that was cancelled. The module knows nothing of what is sent, of statuses or of retries.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakSet

from adacompute.core.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import aiohttp
    import yarl

    from adacompute.models.messages import Timeouts

STALE_S = 1.0
"""A reused connection that ends within this time, without a byte of a reply, had been closed before
the request arrived. It is longer than a round trip and shorter than most replies take."""

IDLE_S = 4.0
"""How long a relay keeps an idle connection. Common servers close idle connections after 5 s, and a
request sent at that moment is lost."""

_MAX_HEADER_BYTES = 65_536
_AUTOMATIC_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")

MAX_REPLY_BYTES = 16_000_000
"""Size of a reply that is held in memory, decompressed, if no other limit is given."""

Stage = Literal[
    "connect_timeout", "timeout", "untrusted", "unreachable", "invalid", "lost", "too_large"
]


class HttpError(Exception):
    """A request that failed on the network.

    ``stage`` says how: no connection in time, no bytes in time, an untrusted certificate, an
    unreachable server, a request that could not be written, a lost connection, or a reply that is
    too large to be held in memory. ``has_begun`` says that the reply had begun, and ``is_stale``
    that the server had closed the connection before the request, so it did not process it.
    """

    def __init__(
        self,
        stage: Stage,
        message: str,
        *,
        cause: str,
        has_begun: bool = False,
        is_stale: bool = False,
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause
        self.has_begun = has_begun
        self.is_stale = is_stale


class HttpReply(NamedTuple):
    """A complete reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection:
    """What is known of the connection of the request that starts now."""

    def __init__(self) -> None:
        self.is_acquired = False
        self.is_reused = False
        self._start = time.perf_counter()

    def is_stale(self, error: Exception) -> bool:
        """Whether the server had closed the connection before the request arrived."""
        import aiohttp

        is_lost = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
        is_other = isinstance(error, (aiohttp.ClientConnectorError, TimeoutError))
        # Part of a reply's head is an object in the message of ServerDisconnectedError.
        has_no_reply = isinstance(getattr(error, "message", ""), str)
        is_early = time.perf_counter() - self._start < STALE_S
        return self.is_reused and is_lost and not is_other and has_no_reply and is_early


_CURRENT_CONNECTION: ContextVar[_Connection] = ContextVar("_CURRENT_CONNECTION")
"""Connection of the request that this task sends next, or sent last."""


def was_sent() -> bool:
    """Whether the last request of this task got a connection, so that bytes of it may be sent."""
    connection = _CURRENT_CONNECTION.get(None)
    return connection is not None and connection.is_acquired


class HttpSession:
    """An open session; made by ``open_json_session`` or ``open_relay_session``."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        import aiohttp

        self._session = session
        self._errors = (aiohttp.ClientError, OSError)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def post(
        self, url: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """Send a POST request and read the complete reply; redirects are not followed."""
        _CURRENT_CONNECTION.set(connection := _Connection())
        has_begun = False
        # A redirect would lose the body, and show the key to another server.
        request = self._session.post(
            _parse_url(url, encoded=False), data=data, headers=headers, allow_redirects=False
        )
        try:
            async with request as response:
                has_begun = True
                body = await self._read_limited(response)
                return HttpReply(response.status, response.headers, body)
        except self._errors as error:
            is_stale = not has_begun and connection.is_stale(error)
            raise _translate(error, has_begun=has_begun, is_stale=is_stale) from None

    async def open(
        self,
        method: str,
        url: str,
        data: Any,  # noqa: ANN401 - bytes or a file
        headers: Any = None,  # noqa: ANN401 - pairs or a mapping
        *,
        encoded: bool = False,
    ) -> aiohttp.ClientResponse:
        """Send a request and return once the reply begins; ``encoded`` sends the URL unchanged."""
        _CURRENT_CONNECTION.set(connection := _Connection())
        try:
            return await self._session.request(
                method,
                _parse_url(url, encoded=encoded),
                data=data,
                headers=headers,
                allow_redirects=False,
            )
        except (*self._errors, ValueError) as error:
            raise _translate(error, is_stale=connection.is_stale(error)) from None

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Read the rest of a reply, within the limit on its size."""
        try:
            return await self._read_limited(response)
        except self._errors as error:
            raise _translate(error, has_begun=True) from None

    async def _read_limited(self, response: aiohttp.ClientResponse) -> bytes:
        """Read a reply piece by piece: each is decompressed only when it is read."""
        parts: list[bytes] = []
        size = 0
        async for chunk in response.content.iter_any():
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_REPLY_BYTES:
                response.close()
                message = f"a reply of more than {MAX_REPLY_BYTES / 1e6:g} MB"
                raise HttpError("too_large", message, cause="TooLarge", has_begun=True)
        return b"".join(parts)

    def chunks(
        self,
        response: aiohttp.ClientResponse,
        to_error: Callable[[HttpError], Exception] = lambda error: error,
    ) -> AsyncIterator[bytes]:
        """Return the bytes of a reply as they arrive; ``to_error`` translates its failure."""
        return _Chunks(response.content.readany, self._errors, to_error)


class _Chunks:
    """What is read until nothing more comes; an asynchronous generator would be slower."""

    __slots__ = ("_errors", "_read", "_to_error")

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        errors: tuple[type[Exception], ...],
        to_error: Callable[[HttpError], Exception],
    ) -> None:
        self._read = read
        self._errors = errors
        self._to_error = to_error

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._read()
        except self._errors as error:
            raise self._to_error(_translate(error, has_begun=True)) from None
        if not chunk:
            raise StopAsyncIteration
        return chunk


@lru_cache(maxsize=64)
def _parse_url(url: str, *, encoded: bool) -> yarl.URL:
    import yarl

    return yarl.URL(url, encoded=encoded)


def open_json_session(timeouts: Timeouts, api_key: str | None = None) -> HttpSession:
    """Open a session for JSON requests, with the key in every request."""
    with needs_extra("serve"):
        import aiohttp

    key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return HttpSession(
        aiohttp.ClientSession(
            headers={"Content-Type": "application/json", "User-Agent": "adacompute", **key},
            connector=_make_connector(),
            timeout=aiohttp.ClientTimeout(
                total=timeouts.total_s,
                sock_connect=timeouts.connect_s,
                sock_read=timeouts.first_byte_s,
            ),
        )
    )


def open_relay_session(timeouts: Timeouts) -> HttpSession:
    """Open a session that adds no headers, keeps no cookies and decompresses nothing."""
    with needs_extra("serve"):
        import aiohttp

    return HttpSession(
        aiohttp.ClientSession(
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=_make_connector(keepalive_timeout=IDLE_S),
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            # No total limit: a stream may last as long as it sends data.
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=timeouts.connect_s, sock_read=timeouts.first_byte_s
            ),
        )
    )


class SessionOwner:
    """Base of clients that hold a session while they are open."""

    _session: HttpSession | None = None

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _get_session(self) -> HttpSession:
        if self._session is None:
            raise ConfigError(f"{type(self).__name__} is not open: use it in `async with`")
        return self._session


def _make_connector(**options: Any) -> aiohttp.BaseConnector:  # noqa: ANN401 - aiohttp's own
    """Make a connector without a limit that notes when a request gets a connection, and which.

    aiohttp's tracing would report it too, but makes a request about a fifth slower.
    """
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0, **options)
    connect, used = connector.connect, WeakSet[Any]()

    async def connect_and_note(*request: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
        acquired = await connect(*request, **options)
        is_reused = acquired.protocol in used
        if not is_reused:
            used.add(acquired.protocol)
        if (connection := _CURRENT_CONNECTION.get(None)) is not None:
            connection.is_acquired, connection.is_reused = True, is_reused
        return acquired

    connector.connect = connect_and_note  # type: ignore[method-assign]
    return connector


def _translate(error: Exception, *, has_begun: bool = False, is_stale: bool = False) -> HttpError:
    import aiohttp

    message, cause = str(error), type(error).__name__
    stage: Stage = "lost"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        stage = "connect_timeout"
    elif isinstance(error, TimeoutError):
        stage = "timeout"
    elif isinstance(error, aiohttp.ClientSSLError):
        stage = "untrusted"
    elif isinstance(error, aiohttp.ClientConnectorError):
        stage, message = "unreachable", str(error.os_error.strerror)
    elif isinstance(error, ValueError):
        stage = "invalid"
    return HttpError(stage, message, cause=cause, has_begun=has_begun, is_stale=is_stale)
