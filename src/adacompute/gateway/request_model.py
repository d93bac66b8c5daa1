"""Drawing: the samples of one request, bought from the upstream as the client wrote it.

A round is one call where the server gives several choices, else concurrent calls; each sends the
client's own body with as little changed as a draw needs. When no draw still under way can change
the vote, they are cancelled. Every call that was made is billed: by its own account, or, when it
was cut off, by an upper bound that says so. It decides nothing and extracts no answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adacompute.core.errors import ModelError, RateLimited
from adacompute.gateway.body import DROP
from adacompute.gateway.openai_api import FIELD, VirtualRequest, clean_usage
from adacompute.models.messages import Capabilities, Reply, Sample
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.openai_format import parse_choices_with_source, parse_usage
from adacompute.models.relay import Headers, end_to_end_headers
from adacompute.models.streams import ParsedStream

SEEDS = 2**31
UNBOUNDED_TOKENS = 4096
"""Tokens charged for a draw that was cut off and had no limit."""

_NAMES = ("max_tokens", "max_completion_tokens")
_AS_READ = ("utf-8", "surrogateescape")
_TELLING = ("x-request-id", "openai-", "x-ratelimit-")


class UpstreamRejected(ModelError):  # noqa: N818 - it names what happened
    """A request that the upstream will not take: its status and words are the client's to see."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.reply = reply


@dataclass(frozen=True)
class SampledChoice:
    """One draw with what it came in: a reply's document and choice, or a stream's events.

    ``headers`` are those of its reply that say something of it.
    """

    draw: Sample
    document: Mapping[str, Any]
    choice: Mapping[str, Any]
    events: tuple[bytes, ...] = ()
    headers: Headers = ()


@dataclass(frozen=True)
class CallUsage:
    """What one call cost in tokens; ``estimated`` where the upstream did not say."""

    usage: Mapping[str, Any]
    estimated: bool


@dataclass(eq=False)
class RequestModel:
    """Draws of one request: those that came, and the bills of all calls that were made.

    ``headers`` and ``query`` are the client's and travel with each call.
    With ``likely`` they come with log-probabilities, which a client that wants none never sees.
    """

    upstream: Upstream
    asked: VirtualRequest
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    likely: bool = False
    drawn: list[SampledChoice] = field(default_factory=list)
    bills: list[CallUsage] = field(default_factory=list)
    sent: int = 0

    async def buy(
        self, count: int, *, model: str | None = None
    ) -> AsyncIterator[list[SampledChoice]]:
        """Draw so many more, and give them as they come; leaving early cancels the rest.

        A reply that holds fewer than were asked for is made up for by single draws. A call that
        fails is raised after the others have come: they are paid for.
        """
        settings = self.asked.body.content
        temperature = settings.get("temperature")
        native = self.upstream.capabilities.choices(
            count,
            temperature=1.0 if temperature is None else float(temperature),
            seeded=settings.get("seed") is not None,
        )
        size = 1 if self.asked.stream else native
        calls: dict[asyncio.Task[list[SampledChoice]], int] = {}

        def call(size: int) -> asyncio.Task[list[SampledChoice]]:
            task = asyncio.ensure_future(self._call(size, self.sent, model or self.model))
            self.sent += size
            calls[task] = size
            return task

        pending = {call(min(size, count - start)) for start in range(0, count, size)}
        failed: list[BaseException] = []
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (error := task.exception()) is not None:
                        failed.append(error)
                        continue
                    drawn = task.result()
                    pending |= {call(1) for _ in range(calls[task] - len(drawn))}
                    self.drawn += drawn
                    yield drawn
            if failed:
                raise max(failed, key=_weight)
        finally:
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _call(self, count: int, number: int, model: str) -> list[SampledChoice]:
        """Make one call, and bill it whatever becomes of it."""
        payload = self.asked.body.edit(self._changes(count, number, model))
        path = self.asked.path + self.query

        def waste() -> None:
            self.bills.append(self._most(count, len(payload)))

        try:
            reply = await self.upstream.post_bytes(
                path,
                payload,
                stream=self.asked.stream,
                headers=self.headers,
                on_billed_failure=waste,
            )
        except asyncio.CancelledError:
            waste()
            raise
        if not isinstance(reply, ParsedReply):
            raise UpstreamRejected(reply.message, reply)
        document = reply.document
        told = document.usage if isinstance(document, ParsedStream) else parse_usage(document)
        usage = clean_usage(told)
        tokens = sum(draw.completion_tokens or 0 for draw in reply.samples)
        estimated = "prompt_tokens" not in usage or any(draw.is_estimated for draw in reply.samples)
        bill = {"prompt_tokens": len(payload), **usage, "completion_tokens": tokens}
        self.bills.append(CallUsage(bill, estimated))
        if isinstance(document, ParsedStream):
            return [SampledChoice(reply.samples[0], document.last_event, {}, document.events)]
        choices = [given for _, given in parse_choices_with_source(document)]
        if "logprobs" not in self.asked.body.content:
            choices = [
                {**given, "logprobs": None} if "logprobs" in given else given for given in choices
            ]
        pairs = zip(reply.samples, choices, strict=True)
        headers = _telling(reply.headers)
        return [SampledChoice(draw, document, choice, (), headers) for draw, choice in pairs]

    def _most(self, count: int, sent_bytes: int) -> CallUsage:
        """What a call that was cut off can have cost: a token is at least one byte."""
        limits = [self.asked.body.content.get(name) for name in _NAMES]
        told = (limit for limit in limits if type(limit) is int and 0 < limit < SEEDS)
        limit = next(told, UNBOUNDED_TOKENS)
        return CallUsage({"prompt_tokens": sent_bytes, "completion_tokens": count * limit}, True)

    def _changes(self, count: int, number: int, model: str) -> dict[str, Any]:
        """What a draw needs changed in the client's body, and what the server demands."""
        content = self.asked.body.content
        changes: dict[str, Any] = {"model": model, FIELD: DROP, "n": DROP}
        if content["model"] == model:
            del changes["model"]
        if count > 1:
            changes["n"] = count
        seed = content.get("seed")
        if number and type(seed) is int and seed >= 0:  # one below 0 means any
            changes["seed"] = (seed + number) % SEEDS
        known = self.upstream.capabilities
        given = known.logprobs not in {"rejected", "missing"}
        if self.likely and given and not self.asked.stream and "logprobs" not in content:
            changes["logprobs"] = 1 if self.asked.path == "completions" else True
        if self.asked.stream and known.stream_usage != "rejected":
            options = content.get("stream_options")
            options = options if isinstance(options, Mapping) else {}
            changes["stream_options"] = {**options, "include_usage": True}
        return changes | _rename_limit(content, known)


def _telling(headers: Mapping[str, str]) -> Headers:
    """Headers of a reply that say something of its draws: how they are called, what is left."""
    told = [(name, value) for name, value in headers.items() if name.lower().startswith(_TELLING)]
    return end_to_end_headers([(name.encode(), value.encode(*_AS_READ)) for name, value in told])


def _weight(error: BaseException) -> tuple[bool, bool, float]:
    """Which of several failures is told: our own, what no waiting mends, the longest wait."""
    wait = error.retry_after_s if isinstance(error, RateLimited) else -1.0
    return not isinstance(error, ModelError), isinstance(error, UpstreamRejected), wait


def _rename_limit(content: Mapping[str, Any], known: Capabilities) -> dict[str, Any]:
    """Give a limit of tokens the name that the server takes it by, where that is known."""
    for name in _NAMES:
        other = _NAMES[1 - _NAMES.index(name)]
        useless = getattr(known, name) in {"ignored", "rejected"}
        if name in content and other not in content and useless and known.max_tokens_field == other:
            return {name: DROP, other: content[name]}
    return {}
