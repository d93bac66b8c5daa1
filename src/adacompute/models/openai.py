"""OpenAI client: a model behind a server that speaks the OpenAI format.

A call is one request, retried like every endpoint's, and returns the samples of its reply. The
client knows nothing of budgets, prices or answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from adacompute.models.calls import CallTracker, StartedCall
from adacompute.models.connection.endpoint import Endpoint, ReplyReader, track
from adacompute.models.connection.http_session import MAX_REPLY_BYTES, HttpError
from adacompute.models.formats.failures import Failure, Rejection, TransientFailure, parse_reply
from adacompute.models.formats.openai_format import (
    MalformedReply,
    content_bytes,
    encode,
    parse_samples,
    sampled_usage,
)
from adacompute.models.formats.responses_format import RESPONSES, to_completion
from adacompute.models.formats.stream_events import EventReader, parse_event
from adacompute.models.formats.streams import parse_stream
from adacompute.models.messages import Capabilities, Reply, Sample
from adacompute.models.model import CallUsage, merge_usage, parse_usage

if TYPE_CHECKING:
    import aiohttp

_OK = 200


@dataclass(frozen=True)
class ParsedReply(Reply):
    """A reply with samples, its usage and headers, and its events if it is a stream."""

    usage: CallUsage | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    events: tuple[bytes, ...] = ()


class Upstream(Endpoint):
    """A model behind an OpenAI-compatible server; use it as an asynchronous context manager.

    The options are those of an endpoint.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        capabilities: Capabilities | None = None,
        **options: Any,  # noqa: ANN401 - an endpoint's own
    ) -> None:
        super().__init__(base_url, **options)
        self.model = model
        self.capabilities = capabilities or Capabilities()

    def copy(self, **options: Any) -> Upstream:  # noqa: ANN401 - an endpoint's own
        """Return another client of the same model at the same address, with the same key."""
        return Upstream(self.base_url, self.model, api_key=self._api_key, **options)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send any JSON body, with retries; a rejection is returned as a reply, not raised."""

        def read(document: object, latency_s: float) -> Reply:
            return Reply(_OK, document, "", latency_s)

        def usage_of(reply: Reply) -> CallUsage:
            # Until it is known what the usage of several choices counts, it is not used.
            has_one = body.get("n", 1) == 1
            text_bytes = content_bytes(reply.document)
            usage = parse_usage(reply.document)
            return CallUsage.of(usage, is_counted=has_one, text_bytes=text_bytes)

        return await self._post(path, body, ReplyReader(read, usage_of=usage_of))

    async def post_bytes(
        self,
        path: str,
        body: bytes,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        tracker: CallTracker | None = None,
    ) -> Reply:
        """Send an encoded body with headers; the reply is a `ParsedReply`, or a rejection.

        If the body asks for a stream, it is read to its end, and the document is what its events
        add up to; a stream that breaks off is retried. `tracker` is notified of every attempt.
        """
        endpoint = path.partition("?")[0]

        def parse(status: int, reply_headers: Mapping[str, str], data: bytes) -> Any:  # noqa: ANN401 - a pair
            if stream:
                return parse_stream(status, reply_headers, data, path=endpoint), reply_headers
            return parse_reply(status, reply_headers, data), reply_headers

        def read(parsed: Any, latency_s: float) -> Reply:  # noqa: ANN401 - a pair
            document, reply_headers = parsed
            events: tuple[bytes, ...] = ()
            if stream:
                samples, completion = [document.to_sample(latency_s)], document.completion
                document, events = document.document, document.events
            else:
                completion = to_completion(document) if endpoint == RESPONSES else document
                samples = self._parse_samples(completion, latency_s)
            counts = self.capabilities.usage
            usage = sampled_usage(completion, samples, prompt_bytes=len(body), usage_counts=counts)
            return ParsedReply(
                _OK,
                document,
                latency_s=latency_s,
                samples=tuple(samples),
                usage=usage,
                headers=reply_headers,
                events=events,
            )

        reader = ReplyReader(read, parse, usage_of=attrgetter("usage"))
        return await self._post(path, body, reader, headers=headers, tracker=tracker)

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any] | bytes,
        reader: ReplyReader[Reply],
        **options: Any,  # noqa: ANN401 - those of _send
    ) -> Reply:
        try:
            return await self._send(path, body, reader, **options)
        except Rejection as rejection:
            return replace(rejection.reply, message=self._redact(rejection.reply.message))
        except Failure as failure:
            raise self._to_error(failure) from None

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """Open a stream and yield an iterator over its events; leaving closes the connection.

        Opening is retried like a call; a failure after that is raised.
        """
        payload, tracker = encode(body), self._find_tracker(None)
        calls: list[StartedCall] = []

        async def attempt() -> aiohttp.ClientResponse:
            while True:
                calls.append(await tracker.start(path, payload, len(calls) + 1))
                try:
                    with track(calls[-1]):
                        return await self._open_stream(f"{self.base_url}/{path}", payload)
                except TransientFailure as failure:
                    if not failure.is_stale:
                        raise

        async with self._slots:
            try:
                response = await self._with_retries(attempt)
            except Failure as failure:
                raise self._to_error(failure) from None
            usage: list[CallUsage | None] = []
            try:
                yield self._events(response, usage.append)
            finally:
                response.close()
                calls[-1].end(usage[0] if usage else None)

    async def _open_stream(self, url: str, payload: bytes) -> aiohttp.ClientResponse:
        session = self._get_session()
        try:
            response = await session.open("POST", url, payload)
            if response.status != _OK:
                parse_reply(response.status, response.headers, await session.read(response))
        except HttpError as error:
            error.has_begun = False  # no sample has begun, so a retry is safe
            raise self._to_failure(error) from None
        return response

    async def _events(
        self, response: aiohttp.ClientResponse, on_end: Callable[[CallUsage | None], None]
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the events of a stream; a complete one reports its usage at its end."""
        reader, text_bytes = EventReader(MAX_REPLY_BYTES), 0
        usage: dict[str, Any] = {}
        try:
            async for chunk in self._get_session().chunks(response):
                for event in map(parse_event, reader.feed(chunk)):
                    usage = merge_usage(usage, event.get("usage"))
                    text_bytes += content_bytes(event)
                    yield event
                if reader.bytes_skipped:
                    raise self._to_error(TransientFailure("an event of its stream is too large"))
            on_end(CallUsage.of(parse_usage({"usage": usage}), text_bytes=text_bytes))
        except MalformedReply as error:
            raise self._to_error(TransientFailure(f"cannot be parsed: {error}")) from None
        except HttpError as error:
            raise self._to_error(self._to_failure(error)) from None

    def _parse_samples(self, document: object, latency_s: float) -> list[Sample]:
        usage_counts = self.capabilities.usage
        return parse_samples(document, usage_counts=usage_counts, latency_s=latency_s)
