"""Endpoint: an HTTP address that is sent JSON, with retries where they are safe and useful.

The only door to aiohttp and tenacity. What passes (a lost connection, a busy server, half an
answer) is tried again with full jitter and the server's own Retry-After, and what does not is
raised at once. Every failure leaves as one of ours, with the upstream's message and never its key.
It knows nothing of what is sent, nor of budgets or prices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from adacompute.core.errors import ConfigError, ModelError, ModelTimeout, RateLimited, require
from adacompute.models.failures import Failure, PermanentFailure, TransientFailure, read_reply
from adacompute.models.messages import RetryPolicy, Timeouts
from adacompute.models.openai_format import MalformedReply, check_url, encode, one_line

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import aiohttp
    import tenacity

T = TypeVar("T")
Read = Callable[[Any, float], T]
Parse = Callable[[int, Mapping[str, str], bytes], Any]

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with the name of an event (``retry``, ``failed``, ``short``) and its fields."""

STALE_S = 1.0
"""How soon a connection that the server had closed already is found out: longer than a round trip,
shorter than most replies take, so that what was being answered is not taken for it."""

_SHORTEST_SECRET = 4  # placeholders such as "x" are no secrets, and occur in words


class Unavailable(RateLimited):
    """An upstream that failed, and said for how long it should not be asked again."""


class Connection:
    """What is known of the connection that a request is sent on from now."""

    def __init__(self) -> None:
        self.reused = False
        self._start = time.perf_counter()

    def is_stale(self, error: Exception, aiohttp: Any) -> bool:  # noqa: ANN401 - the module
        """Whether it had been closed before a request came, which then was not served.

        It was used before, and ended soon and without a byte of a reply; half a head of one is the
        error's message.
        """
        ends = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
        never = (aiohttp.ClientConnectorError, TimeoutError)
        silent = isinstance(error, ends) and not isinstance(error, never)
        silent = silent and isinstance(getattr(error, "message", ""), str)
        return self.reused and silent and time.perf_counter() - self._start < STALE_S


CURRENT_CONNECTION: ContextVar[Connection] = ContextVar("CURRENT_CONNECTION")
"""What the request that is sent next in this task is to know of its connection."""


def make_connector(aiohttp: Any, **options: Any) -> Any:  # noqa: ANN401 - aiohttp's own
    """Make a connector that notes whether a request's connection served another before.

    Tracing would tell it too, and makes a request take about a fifth longer here.
    """
    connector = aiohttp.TCPConnector(limit=0, **options)
    connect, used = connector.connect, WeakSet[Any]()

    async def note(*request: Any, **options: Any) -> Any:  # noqa: ANN401 - aiohttp's own
        held = await connect(*request, **options)
        if (connection := CURRENT_CONNECTION.get(None)) is not None:
            connection.reused = held.protocol in used
        used.add(held.protocol)
        return held

    connector.connect = note
    return connector


class ConnectionOwner:
    """What holds a session of aiohttp for as long as it is open."""

    _session: aiohttp.ClientSession | None = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class Endpoint(ConnectionOwner):
    """One server's address; use it as an asynchronous context manager.

    At most `connections` requests are under way at once, the others wait here without a time limit.
    `on_event` hears of retries and failures; it must return quickly.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        timeouts: Timeouts | None = None,
        retries: RetryPolicy | None = None,
        connections: int = 1000,
        on_event: OnEvent | None = None,
    ) -> None:
        self.base_url = check_url(base_url)
        self._timeouts = timeouts or Timeouts()
        self._retries = retries or RetryPolicy()
        if connections < 1:
            raise ConfigError(f"connections must be 1 or more, not {connections}")
        if key and not (key.isascii() and key.isprintable() and key.strip() == key):
            raise ConfigError("the API key holds characters that no header can carry")
        self._key = key or None
        self._places = asyncio.Semaphore(connections)
        self._on_event = on_event
        self._aiohttp: Any = None
        self._tenacity: Any = None

    async def __aenter__(self) -> Self:
        self._aiohttp = require("aiohttp", extra="serve")
        self._tenacity = require("tenacity", extra="serve")
        limits = self._timeouts
        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = self._aiohttp.ClientSession(
            headers={"Content-Type": "application/json", "User-Agent": "adacompute", **key},
            connector=make_connector(self._aiohttp),  # places are counted here
            timeout=self._aiohttp.ClientTimeout(
                total=limits.total_s, sock_connect=limits.connect_s, sock_read=limits.first_byte_s
            ),
        )
        return self

    async def _send(
        self,
        path: str,
        body: Mapping[str, Any] | bytes,
        read: Read[T],
        parse: Parse = read_reply,
        on_waste: Callable[[], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send until it is answered; `on_waste` hears of every attempt that may be billed too.

        What went to a connection that the server had closed was not served. For who keeps such an
        account it is no attempt: it is sent again at once, at last on a connection that is new.
        """
        payload = body if isinstance(body, bytes) else encode(body)

        async def attempt() -> T:
            while True:
                try:
                    return await self._attempt(path, payload, read, parse, headers)
                except Failure as failure:
                    if on_waste is None or not failure.paid:
                        raise
                    if not (isinstance(failure, TransientFailure) and failure.stale):
                        on_waste()
                        raise

        return await self._with_retries(attempt)

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, fails for good, or has failed too often."""
        try:
            # The common case stays outside of tenacity, which costs as much as parsing a reply.
            return await attempt()
        except TransientFailure as failure:
            first = [failure]

        async def again() -> T:
            if first:
                raise first.pop()
            return await attempt()

        result: T = await self._retrying()(again)
        return result

    def _retrying(self) -> tenacity.AsyncRetrying:
        bounds = self._retries
        jitter = self._tenacity.wait_random_exponential(
            multiplier=bounds.initial_wait_s, max=bounds.max_wait_s
        )

        def wait(state: tenacity.RetryCallState) -> float:
            failure = _failure(state)
            if failure.lost and state.attempt_number == 1:
                return 0.0
            own: float = jitter(state)
            return (
                own
                if failure.retry_after_s is None
                else failure.retry_after_s + min(own, bounds.initial_wait_s)
            )

        def useful(state: tenacity.RetryCallState) -> bool:
            failure = _failure(state)
            return (
                isinstance(failure, TransientFailure)
                and (failure.retry_after_s or 0) <= bounds.max_wait_s
            )

        def tell(state: tenacity.RetryCallState) -> None:
            again = {"attempt": state.attempt_number, "wait_s": state.upcoming_sleep}
            self._tell("retry", **again, cause=self._clean(str(_failure(state))))

        retrying: tenacity.AsyncRetrying = self._tenacity.AsyncRetrying(
            stop=self._tenacity.stop_after_attempt(bounds.max_attempts),
            wait=wait,
            retry=useful,
            before_sleep=tell,
            reraise=True,
        )
        return retrying

    async def _attempt(
        self,
        path: str,
        payload: bytes,
        read: Read[T],
        parse: Parse,
        headers: Mapping[str, str] | None,
    ) -> T:
        begun = False
        async with self._places:
            start, connection = time.perf_counter(), Connection()
            CURRENT_CONNECTION.set(connection)
            request = self._request(path, payload, headers)
            try:
                async with request as response:
                    begun = True
                    body = await response.read()
            except (self._aiohttp.ClientError, OSError) as error:
                failure = self._fault(error, begun=begun)
                if isinstance(failure, TransientFailure) and not begun:
                    failure.stale = connection.is_stale(error, self._aiohttp)
                raise failure from None
            taken = time.perf_counter() - start
        document = parse(response.status, response.headers, body)
        try:
            return read(document, taken)
        except MalformedReply as error:
            raise TransientFailure(f"cannot be understood: {error}", paid=True) from None

    def _request(self, path: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - aiohttp's own
        if self._session is None:
            raise ConfigError("an endpoint is used inside `async with`: it is not open here")
        return self._session.post(
            f"{self.base_url}/{path}" if path else self.base_url,
            data=payload,
            headers=headers,
            allow_redirects=False,  # they would lose the body, and show the key elsewhere
        )

    def _fault(self, error: Exception, *, begun: bool) -> Failure:
        """What an error on the way means, before a reply began or after."""
        limits = self._timeouts
        if isinstance(error, self._aiohttp.ConnectionTimeoutError):
            cause = f"could not be connected to within {limits.connect_s:g} s"
            return TransientFailure(cause, ModelTimeout)
        if isinstance(error, TimeoutError) and begun:
            # Half of it may have been paid for: it is not asked again.
            silent_s, total_s = limits.first_byte_s, limits.total_s
            cause = f"began to answer, then was silent for {silent_s:g} s or took {total_s:g} s"
            return PermanentFailure(cause, ModelTimeout, paid=True)
        if isinstance(error, TimeoutError):
            longest_s = min(limits.first_byte_s, limits.total_s)
            cause = f"did not begin to answer within {longest_s:g} s"
            return TransientFailure(cause, ModelTimeout, paid=True)
        if isinstance(error, self._aiohttp.ClientSSLError):
            return PermanentFailure(f"cannot be trusted: {error}")
        if isinstance(error, self._aiohttp.ClientConnectorError):
            return TransientFailure(
                f"cannot be reached ({error.os_error.strerror}): is the server running?"
            )
        cause = f"lost the connection: {type(error).__name__} {error}"
        return TransientFailure(cause, lost=not begun, paid=True)

    def _final(self, failure: Failure) -> ModelError:
        """What leaves when no attempt could mend it; told before it is raised."""
        retry_after_s = failure.retry_after_s if isinstance(failure, TransientFailure) else None
        waits = retry_after_s is not None and failure.error is ModelError
        kind = Unavailable if waits else failure.error
        error = kind(f"{self.base_url} {self._clean(str(failure))}")
        if isinstance(error, RateLimited):
            error.retry_after_s = retry_after_s or 0.0
        self._tell("failed", cause=str(error))
        return error

    def _clean(self, text: str) -> str:
        """What may be shown of an upstream's words: one line of them, and not the key."""
        secret = self._key if self._key and len(self._key) >= _SHORTEST_SECRET else None
        return one_line(text.replace(secret, "***") if secret else text)

    def _tell(self, event: str, **fields: object) -> None:
        if self._on_event is not None:
            self._on_event(event, fields)


def _failure(state: tenacity.RetryCallState) -> Any:  # noqa: ANN401 - whatever was raised
    return None if state.outcome is None else state.outcome.exception()
