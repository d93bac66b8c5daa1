"""OpenAI client: a model behind a server that speaks the OpenAI format.

A call is one request, retried as every endpoint's is, and returns the draws it brought. It knows
nothing of budgets, prices or answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from adacompute.core.errors import AdaComputeError
from adacompute.models.endpoint import Endpoint, Parse, Read
from adacompute.models.failures import Failure, Refused, TransientFailure, read_reply
from adacompute.models.messages import Capabilities, Prompt, Reply, Sample, Settings
from adacompute.models.openai_format import (
    MalformedReply,
    encode,
    parse_samples,
    read_event,
    request_body,
)
from adacompute.models.streams import read_stream

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True)
class ParsedReply(Reply):
    """A reply with draws in it, and the headers that it came with."""

    headers: Mapping[str, str] = field(default_factory=dict)


class Upstream(Endpoint):
    """A model behind an OpenAI-compatible server; use it as an asynchronous context manager.

    `on_event` hears of short replies too; the other options are an endpoint's.
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

    async def call(
        self, prompt: Prompt, settings: Settings, *, count: int = 1, seed: int | None = None
    ) -> list[Sample]:
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
    ) -> list[Sample]:
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
        draws: list[Sample] = []
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
        return await self._post(path, body, lambda document, taken: Reply(200, document, "", taken))

    async def ask(
        self,
        path: str,
        body: bytes,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        on_waste: Callable[[], None] | None = None,
    ) -> Reply:
        """Send someone else's body and headers; the reply is `Answered`, or a refusal.

        Of a body that asks for a stream the document is `Streamed`, once it is complete: half a
        stream is no answer, and is asked for again as any half answer is. `on_waste` hears of every
        attempt that failed and may be billed all the same.
        """

        def parse(status: int, told: Mapping[str, str], data: bytes) -> Any:  # noqa: ANN401 - a pair
            return (read_stream if stream else read_reply)(status, told, data), told

        def read(parsed: Any, taken: float) -> Reply:  # noqa: ANN401 - JSON or Streamed, and headers
            document, told = parsed
            draws = [document.draw(taken)] if stream else self._draws(document, taken)
            return ParsedReply(200, document, "", taken, tuple(draws), told)

        return await self._post(path, body, read, parse, on_waste, headers)

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any] | bytes,
        read: Read[Reply],
        parse: Parse = read_reply,
        on_waste: Callable[[], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        try:
            return await self._send(path, body, read, parse, on_waste, headers)
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
                response = await self._with_retries(lambda: self._open(path, payload))
            except Failure as failure:
                raise self._final(failure) from None
            try:
                yield self._events(response)
            finally:
                response.close()

    async def _fan_out(
        self, prompt: Prompt, settings: Settings, plan: list[range], seed: int | None
    ) -> list[list[Sample]]:
        def one(asked: range) -> Coroutine[Any, Any, list[Sample]]:
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
        except MalformedReply as error:
            raise self._final(TransientFailure(f"cannot be understood: {error}")) from None
        except (self._aiohttp.ClientError, OSError) as error:
            raise self._final(self._fault(error, begun=True)) from None

    def _draws(self, document: object, taken: float) -> list[Sample]:
        counts = self.capabilities.usage
        return parse_samples(document, usage_counts=counts, latency_s=taken)
