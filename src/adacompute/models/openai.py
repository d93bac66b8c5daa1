"""OpenAI client: one logical call is one request, retried where that is safe and useful.

The only door to aiohttp and tenacity. A call sends one POST and returns the draws it brought; what
passes (a lost connection, a busy server, half an answer) is tried again with full jitter and the
server's own Retry-After, and what does not is raised at once. Every failure leaves as one of ours,
with the upstream's message and never its key. It knows nothing of budgets, prices or answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from adacompute.core.errors import AdaComputeError, ConfigError, ModelError, ModelTimeout, require
from adacompute.models.failures import Broken, Failure, Passing, Refused, read_reply
from adacompute.models.upstream import (
    Capabilities,
    Draw,
    Prompt,
    Reply,
    Retries,
    Settings,
    Timeouts,
)
from adacompute.models.wire import (
    Malformed,
    check_url,
    encode,
    one_line,
    read_draws,
    read_event,
    request_body,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import aiohttp
    import tenacity

T = TypeVar("T")
Read = Callable[[Any, float], T]

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with the name of an event (``retry``, ``failed``, ``short``) and its fields."""

_SHORTEST_SECRET = 4  # placeholders such as "x" are no secrets, and occur in words


class Upstream:
    """A model behind an OpenAI-compatible server; use it as an asynchronous context manager.

    At most `connections` requests are under way at once, the others wait here without a time limit.
    `on_event` hears of retries, failures and short replies; it must return quickly.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        capabilities: Capabilities | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        connections: int = 1000,
        on_event: OnEvent | None = None,
    ) -> None:
        self.base_url = check_url(base_url)
        self.model = model
        self.capabilities = capabilities or Capabilities()
        self._timeouts = timeouts or Timeouts()
        self._retries = retries or Retries()
        if connections < 1:
            raise ConfigError(f"connections must be 1 or more, not {connections}")
        if key and not (key.isascii() and key.isprintable() and key.strip() == key):
            raise ConfigError("the API key holds characters that no header can carry")
        self._key = key or None
        self._places = asyncio.Semaphore(connections)
        self._on_event = on_event
        self._session: aiohttp.ClientSession | None = None
        self._aiohttp: Any = None
        self._tenacity: Any = None

    async def __aenter__(self) -> Self:
        self._aiohttp = require("aiohttp", extra="serve")
        self._tenacity = require("tenacity", extra="serve")
        limits = self._timeouts
        key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = self._aiohttp.ClientSession(
            headers={"Content-Type": "application/json", "User-Agent": "adacompute", **key},
            connector=self._aiohttp.TCPConnector(limit=0),  # places are counted here
            timeout=self._aiohttp.ClientTimeout(
                total=limits.total_s, sock_connect=limits.connect_s, sock_read=limits.first_byte_s
            ),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Draw]:
        """Send one request and return every draw that it brought, at least one.

        It asks for `count` draws where the capabilities say that the server gives several, else
        for one. What came back is counted, not trusted: it may be fewer, and if it is more, all
        are returned, because all were paid for; the caller decides what to do with them.
        """
        known = self.capabilities
        asked = known.choices(count, temperature=settings.temperature, seeded=seed is not None)
        body = request_body(self.model, prompt, settings, known, count=asked, seed=seed)
        try:
            draws = await self._send(prompt.path, body, self._draws)
        except Failure as failure:
            raise self._final(failure) from None
        if len(draws) < asked:
            self._tell("short", asked=asked, got=len(draws))
        return draws

    async def draw(
        self, prompt: Prompt, settings: Settings, *, count: int, seed: int | None = None
    ) -> list[Draw]:
        """Fan out until there are `count` draws, or a few more where the server gave more.

        Several choices a call where the server gives them, else concurrent calls with seeds of
        their own (`seed` + 0, 1, …); what is missing then is drawn one by one. When a call fails
        for good, the others are cancelled and its error is raised, without the draws that had
        come: who pays for each call and must lose none uses `call`.
        """
        size = self.capabilities.choices(
            count, temperature=settings.temperature, seeded=seed is not None
        )
        plan = [range(start, min(start + size, count)) for start in range(0, count, size)]
        draws: list[Draw] = []
        while plan:
            answers = await self._fan_out(prompt, settings, plan, seed)
            draws += [draw for answer in answers for draw in answer]
            unused = [
                i for asked, got in zip(plan, answers, strict=True) for i in asked[len(got) :]
            ]
            plan = [range(i, i + 1) for i in unused[: max(0, count - len(draws))]]
        return draws

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send any body, with the same retries; a refusal is a reply here and no error."""
        try:
            return await self._send(
                path, body, lambda document, taken: Reply(200, document, latency_s=taken)
            )
        except Refused as refusal:
            return replace(refusal.reply, message=self._clean(refusal.reply.message))
        except Failure as failure:
            raise self._final(failure) from None

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """Open a stream and give its events; leaving closes the connection.

        Opening it is retried as a call is; what is lost after that is lost.
        """
        payload = encode(body)
        async with self._places:
            try:
                response = await self._persist(lambda: self._open(path, payload))
            except Failure as failure:
                raise self._final(failure) from None
            try:
                yield self._events(response)
            finally:
                response.close()

    async def _fan_out(
        self, prompt: Prompt, settings: Settings, plan: list[range], seed: int | None
    ) -> list[list[Draw]]:
        def one(asked: range) -> Coroutine[Any, Any, list[Draw]]:
            own = None if seed is None else seed + asked.start
            return self.call(prompt, settings, count=len(asked), seed=own)

        if len(plan) == 1:
            return [await one(plan[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(asked)) for asked in plan]
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, AdaComputeError):
                raise first from None
            raise
        return [task.result() for task in tasks]

    async def _send(self, path: str, body: Mapping[str, Any], read: Read[T]) -> T:
        payload = encode(body)
        return await self._persist(lambda: self._attempt(path, payload, read))

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt until it succeeds, fails for good, or has failed too often."""
        try:
            # The common case stays outside of tenacity, which costs as much as parsing a reply.
            return await attempt()
        except Passing as failure:
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
            multiplier=bounds.first_s, max=bounds.longest_s
        )

        def wait(state: tenacity.RetryCallState) -> float:
            failure = _failure(state)
            if failure.lost and state.attempt_number == 1:
                return 0.0
            own: float = jitter(state)
            return own if failure.after_s is None else failure.after_s + min(own, bounds.first_s)

        def useful(state: tenacity.RetryCallState) -> bool:
            failure = _failure(state)
            return isinstance(failure, Passing) and (failure.after_s or 0) <= bounds.longest_s

        def tell(state: tenacity.RetryCallState) -> None:
            again = {"attempt": state.attempt_number, "wait_s": state.upcoming_sleep}
            self._tell("retry", **again, cause=self._clean(str(_failure(state))))

        retrying: tenacity.AsyncRetrying = self._tenacity.AsyncRetrying(
            stop=self._tenacity.stop_after_attempt(bounds.attempts),
            wait=wait,
            retry=useful,
            before_sleep=tell,
            reraise=True,
        )
        return retrying

    async def _attempt(self, path: str, payload: bytes, read: Read[T]) -> T:
        begun = False
        async with self._places:
            start = time.perf_counter()
            request = self._request(path, payload)
            try:
                async with request as response:
                    begun = True
                    body = await response.read()
            except (self._aiohttp.ClientError, OSError) as error:
                raise self._fault(error, begun=begun) from None
            taken = time.perf_counter() - start
        document = read_reply(response.status, response.headers, body)
        try:
            return read(document, taken)
        except Malformed as error:
            raise Passing(f"cannot be understood: {error}") from None

    async def _open(self, path: str, payload: bytes) -> aiohttp.ClientResponse:
        request = self._request(path, payload)
        try:
            response: aiohttp.ClientResponse = await request
            if response.status != 200:  # noqa: PLR2004 - OK
                read_reply(response.status, response.headers, await response.read())
        except (self._aiohttp.ClientError, OSError) as error:
            raise self._fault(error, begun=False) from None
        return response

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[Mapping[str, Any]]:
        rest = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if (event := read_event(line)) is not None:
                        yield event
        except Malformed as error:
            raise self._final(Passing(f"cannot be understood: {error}")) from None
        except (self._aiohttp.ClientError, OSError) as error:
            raise self._final(self._fault(error, begun=True)) from None

    def _request(self, path: str, payload: bytes) -> Any:  # noqa: ANN401 - aiohttp's own
        if self._session is None:
            raise ConfigError("an Upstream is used inside `async with`: it is not open here")
        return self._session.post(
            f"{self.base_url}/{path}",
            data=payload,
            allow_redirects=False,  # they would lose the body, and show the key elsewhere
        )

    def _fault(self, error: Exception, *, begun: bool) -> Failure:
        """What an error on the way means, before a reply began or after."""
        limits = self._timeouts
        if isinstance(error, self._aiohttp.ConnectionTimeoutError):
            cause = f"could not be connected to within {limits.connect_s:g} s"
            return Passing(cause, ModelTimeout)
        if isinstance(error, TimeoutError) and begun:
            # Half of it may have been paid for: it is not asked again.
            silent_s, total_s = limits.first_byte_s, limits.total_s
            cause = f"began to answer, then was silent for {silent_s:g} s or took {total_s:g} s"
            return Broken(cause, ModelTimeout)
        if isinstance(error, TimeoutError):
            longest_s = min(limits.first_byte_s, limits.total_s)
            return Passing(f"did not begin to answer within {longest_s:g} s", ModelTimeout)
        if isinstance(error, self._aiohttp.ClientSSLError):
            return Broken(f"cannot be trusted: {error}")
        return Passing(f"lost the connection: {type(error).__name__} {error}", lost=not begun)

    def _final(self, failure: Failure) -> ModelError:
        """What leaves when no attempt could mend it; told before it is raised."""
        error = failure.error(f"{self.base_url} {self._clean(str(failure))}")
        self._tell("failed", cause=str(error))
        return error

    def _draws(self, document: object, taken: float) -> list[Draw]:
        counts = self.capabilities.usage_counts
        return read_draws(document, usage_counts=counts, latency_s=taken)

    def _clean(self, text: str) -> str:
        """What may be shown of an upstream's words: one line of them, and not the key."""
        secret = self._key if self._key and len(self._key) >= _SHORTEST_SECRET else None
        return one_line(text.replace(secret, "***") if secret else text)

    def _tell(self, event: str, **fields: object) -> None:
        if self._on_event is not None:
            self._on_event(event, fields)


def _failure(state: tenacity.RetryCallState) -> Any:  # noqa: ANN401 - whatever was raised
    return None if state.outcome is None else state.outcome.exception()
