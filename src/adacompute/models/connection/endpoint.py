"""Endpoint: an HTTP address that takes JSON, with retries where they are safe and useful.

Transient failures (a lost connection, a busy server, an incomplete reply) are retried with full
jitter and the server's Retry-After; others are raised immediately. Every failure is raised as a
``ModelError`` with the server's message and without the API key. This is the only module that
imports tenacity. It knows nothing of what is sent, of budgets or of prices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from adacompute.core.errors import ConfigError, ModelError, ModelTimeout, RateLimited, needs_extra
from adacompute.models.calls import NO_USAGE, CallTracker, StartedCall
from adacompute.models.connection.http_session import (
    HttpError,
    SessionOwner,
    open_json_session,
    was_sent,
)
from adacompute.models.connection.retry_budget import RetryBudget
from adacompute.models.formats.failures import (
    Failure,
    PermanentFailure,
    TransientFailure,
    parse_reply,
)
from adacompute.models.formats.openai_format import (
    MalformedReply,
    check_url,
    encode,
    shorten,
)
from adacompute.models.messages import RetryPolicy, Timeouts
from adacompute.models.model import CallUsage

if TYPE_CHECKING:
    from typing import Self

    import tenacity

T = TypeVar("T")

OnEvent = Callable[[str, Mapping[str, object]], None]
"""Called with the name of an event and its fields.

The events are ``retry``, ``retry_refused`` and ``failed``.
"""

MIN_SECRET_CHARS = 4
"""Shorter keys are placeholders such as "x": they occur in words and are not redacted."""


IS_RUNNING = ": is the server running?"


class Unavailable(RateLimited):
    """A server that failed and said in Retry-After when to try again."""


class Unreachable(ModelError):  # noqa: N818 - it names the state
    """A server to which there was no connection, so that nothing was sent."""


@dataclass(frozen=True)
class EndpointLimits:
    """Limits of the calls of an endpoint.

    At most `max_connections` requests are in flight; others wait without a time limit.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    max_connections: int = 1000

    def __post_init__(self) -> None:
        if self.max_connections < 1:
            raise ConfigError(f"max_connections must be 1 or more, not {self.max_connections}")


@dataclass(frozen=True)
class ReplyReader(Generic[T]):
    """How a reply is read: `parse` makes a document of it, and `read` a result of the document.

    `read` gets the latency in seconds, too. `usage_of` returns the usage that a result reports.
    """

    read: Callable[[Any, float], T]
    parse: Callable[[int, Mapping[str, str], bytes], Any] = parse_reply
    usage_of: Callable[[T], CallUsage | None] = lambda _: None


class Endpoint(SessionOwner):
    """One server at one address; use it as an asynchronous context manager.

    `on_event` is called for retries and failures and must return quickly. `tracker` is notified of
    the attempts of calls that have no tracker of their own. `retry_budget`, which several endpoints
    may share, limits the retries of all calls together. A reply that is too large, decompressed, is
    a failure that is not retried.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        limits: EndpointLimits | None = None,
        on_event: OnEvent | None = None,
        tracker: CallTracker | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> None:
        self.base_url = check_url(base_url)
        self._limits = limits = limits or EndpointLimits()
        if api_key and not (
            api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key
        ):
            raise ConfigError("the API key has characters that are not allowed in a header")
        self._api_key = api_key or None
        self._slots = asyncio.Semaphore(limits.max_connections)
        self._on_event = on_event
        self._tracker = tracker
        self._retry_budget = retry_budget

    async def __aenter__(self) -> Self:
        self._session = open_json_session(self._limits.timeouts, self._api_key)
        return self

    async def _send(
        self,
        path: str,
        body: Mapping[str, Any] | bytes,
        reader: ReplyReader[T],
        *,
        headers: Mapping[str, str] | None = None,
        tracker: CallTracker | None = None,
    ) -> T:
        """Send a request, with retries, and return what `reader` makes of the reply.

        `tracker` is notified of every attempt. A request on a connection that the server seems to
        have closed before is repeated immediately and is no retry.
        """
        payload = body if isinstance(body, bytes) else encode(body)
        tracker, n_attempts = self._find_tracker(tracker), 0

        async def attempt() -> T:
            nonlocal n_attempts
            while True:
                n_attempts += 1
                number = n_attempts
                try:
                    async with self._slots:
                        call = await tracker.start(path, payload, number)
                        with track(call):
                            result = await self._attempt(path, payload, reader, headers)
                            call.end(reader.usage_of(result))
                        return result
                except TransientFailure as failure:
                    if not failure.is_stale:
                        raise

        return await self._with_retries(attempt)

    def _find_tracker(self, tracker: CallTracker | None) -> CallTracker:
        """Return the tracker of a call: nothing is sent of which no account is kept."""
        if (found := tracker or self._tracker) is None:
            raise ConfigError(f"a call to {self.base_url} needs a tracker, which pays for it")
        return found

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, fails permanently, or the retries are used up."""
        if self._retry_budget is not None:
            self._retry_budget.record_call()
        try:
            # The first attempt bypasses tenacity, which costs as much time as parsing a reply.
            return await attempt()
        except TransientFailure as failure:
            first = [failure]

        async def attempt_again() -> T:
            if first:
                raise first.pop()
            return await attempt()

        result: T = await self._make_retrying()(attempt_again)
        return result

    def _make_retrying(self) -> tenacity.AsyncRetrying:
        with needs_extra("serve"):
            import tenacity

        policy = self._limits.retries
        jitter = tenacity.wait_random_exponential(
            multiplier=policy.initial_wait_s, max=policy.max_wait_s
        )

        def wait(state: tenacity.RetryCallState) -> float:
            failure = _failure(state)
            if failure.connection_lost and state.attempt_number == 1:
                return 0.0
            wait_s = jitter(state)
            if failure.retry_after_s is None:
                return wait_s
            return float(failure.retry_after_s + min(wait_s, policy.initial_wait_s))

        def should_retry(state: tenacity.RetryCallState) -> bool:
            failure = _failure(state)
            if not isinstance(failure, TransientFailure):
                return False
            if (failure.retry_after_s or 0) > policy.max_wait_s:
                return False
            return state.attempt_number >= policy.max_attempts or self._takes_retry(failure)

        def report(state: tenacity.RetryCallState) -> None:
            fields = {"attempt": state.attempt_number, "wait_s": state.upcoming_sleep}
            self._report("retry", **fields, cause=self._redact(str(_failure(state))))

        return tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(policy.max_attempts),
            wait=wait,
            retry=should_retry,
            before_sleep=report,
            reraise=True,
        )

    def _takes_retry(self, failure: TransientFailure) -> bool:
        """Take a retry from the budget; report it if there is none left."""
        if self._retry_budget is None or self._retry_budget.take():
            return True
        self._report("retry_refused", cause=self._redact(str(failure)))
        return False

    async def _attempt(
        self,
        path: str,
        payload: bytes,
        reader: ReplyReader[T],
        headers: Mapping[str, str] | None,
    ) -> T:
        start, url = time.perf_counter(), _join(self.base_url, path)
        try:
            reply = await self._get_session().post(url, payload, headers)
        except HttpError as error:
            raise self._to_failure(error) from None
        latency_s = time.perf_counter() - start
        document = reader.parse(reply.status, reply.headers, reply.body)
        try:
            return reader.read(document, latency_s)
        except MalformedReply as error:
            raise TransientFailure(f"cannot be parsed: {error}", may_be_billed=True) from None

    def _to_failure(self, error: HttpError) -> Failure:
        """Say what a network error means for the request."""
        limits = self._limits.timeouts
        if error.stage == "connect_timeout":
            cause = f"could not be connected to within {limits.connect_s:g} s"
            return TransientFailure(cause, ModelTimeout)
        if error.stage == "timeout" and error.has_begun:
            # Part of the reply may be billed, so the request is not repeated.
            pause_s, total_s = limits.first_byte_s, limits.total_s
            cause = f"began to answer, then was silent for {pause_s:g} s or took {total_s:g} s"
            return PermanentFailure(cause, ModelTimeout, may_be_billed=True)
        if error.stage == "timeout":
            limit_s = min(limits.first_byte_s, limits.total_s)
            cause = f"did not begin to answer within {limit_s:g} s"
            return TransientFailure(cause, ModelTimeout, may_be_billed=True)
        if error.stage in {"too_large", "untrusted"}:
            is_large = error.stage == "too_large"
            cause = f"sent {error}" if is_large else f"cannot be trusted: {error}"
            return PermanentFailure(cause, may_be_billed=is_large)
        if error.stage == "unreachable":
            failure = TransientFailure(f"cannot be reached ({error}){IS_RUNNING}", Unreachable)
            failure.advice = IS_RUNNING
            return failure
        return TransientFailure(
            f"lost the connection: {error.cause} {error}",
            connection_lost=not error.has_begun,
            is_stale=error.is_stale,
            may_be_billed=True,
        )

    def _to_error(self, failure: Failure) -> ModelError:
        """Turn a final failure into the error to raise, and report it."""
        retry_after_s = failure.retry_after_s if isinstance(failure, TransientFailure) else None
        says_when = retry_after_s is not None and failure.error_type is ModelError
        error_type = Unavailable if says_when else failure.error_type
        error = error_type(f"{self.base_url} {self._redact(str(failure))}")
        error.advice = failure.advice
        if isinstance(error, RateLimited):
            error.retry_after_s = retry_after_s or 0.0
        self._report("failed", cause=str(error))
        return error

    def _redact(self, text: str) -> str:
        """One line of a server's message, shortened and without the API key."""
        key = self._api_key or ""
        return shorten(text.replace(key, "***") if len(key) >= MIN_SECRET_CHARS else text)

    def _report(self, event: str, **fields: object) -> None:
        if self._on_event is not None:
            self._on_event(event, fields)


def _join(url: str, path: str) -> str:
    return f"{url}/{path}" if path else url


@contextmanager
def track(call: StartedCall) -> Iterator[None]:
    """Report the end of an attempt that fails or is cancelled; it is free if it was not sent."""
    try:
        yield
    except BaseException as error:
        is_free = not was_sent() or (isinstance(error, Failure) and not error.may_be_billed)
        call.end(NO_USAGE if is_free else None)
        raise


def _failure(state: tenacity.RetryCallState) -> Any:  # noqa: ANN401 - whatever was raised
    return None if state.outcome is None else state.outcome.exception()
