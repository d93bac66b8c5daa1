"""Adapters: models from an asynchronous function, an OpenAI client, or our own HTTP client.

Each fits the ``Model`` protocol. The OpenAI client is used through its public methods and is never
imported, so the ``openai`` package is not a dependency. They know nothing of policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from adacompute.core.errors import (
    DataError,
    ModelError,
    ModelTimeout,
    RateLimited,
    RequestRejected,
)
from adacompute.core.signals import SCORE
from adacompute.models.formats.openai_format import (
    MalformedReply,
    encode,
    parse_samples,
    request_body,
    sampled_usage,
)
from adacompute.models.messages import Capabilities, Prompt, Sample, Settings
from adacompute.models.model import CallUsage, Model, OnUsage
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.models.templates import Template
from adacompute.policies.bundles.arm_settings import ArmSettings
from adacompute.sampling.fan_out import fan_out
from adacompute.spending.attempts import CallBound, ReportedAttempt, UsageTracker

SampleFunction = Callable[..., Awaitable[Iterable[str | Sample]]]
"""``async f(prompt, n)`` that returns n texts or Samples; an arm is passed as ``arm=``."""

UNKNOWN_USAGE = CallUsage(is_estimated=True)


@dataclass(frozen=True)
class FunctionModel:
    """A model from ``async f(prompt, n)``; usage is what its Samples say, if they say any."""

    function: SampleFunction

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Call the function once and yield what it returns."""
        options = {} if arm is None else {"arm": arm}
        try:
            given = await self.function(prompt, n, **options)
        except BaseException:
            on_usage(UNKNOWN_USAGE)
            raise
        samples = _as_samples(given)
        on_usage(_usage_of(samples))
        for sample in samples:
            yield sample


def _as_samples(given: Iterable[str | Sample]) -> list[Sample]:
    if isinstance(given, str):
        raise DataError("a model must return a list of samples, not one text")
    listed: list[Any] = list(given)
    for one in listed:
        if not isinstance(one, str | Sample):
            kind = type(one).__name__
            raise DataError(f"a model must return texts or Samples, not a {kind}")
    samples = (one if isinstance(one, Sample) else Sample(one) for one in listed)
    return [replace(sample, samples_per_call=len(listed)) for sample in samples]


def _usage_of(samples: list[Sample]) -> CallUsage:
    if all(sample.completion_tokens is None for sample in samples):
        return UNKNOWN_USAGE
    tokens = {"completion_tokens": sum(sample.completion_tokens or 0 for sample in samples)}
    if samples[0].prompt_tokens is not None:
        tokens["prompt_tokens"] = samples[0].prompt_tokens
    is_known = "prompt_tokens" in tokens and all(
        sample.completion_tokens is not None and not sample.is_estimated for sample in samples
    )
    return CallUsage(tokens, is_estimated=not is_known)


@dataclass(frozen=True)
class PromptedModel:
    """A model behind a server: a template, settings and concurrent calls.

    ``call`` makes one call to it, for one sample or for up to ``samples_per_call`` where the server
    gives several; it is given the prompt, the number, the model, its settings and ``on_usage``.
    """

    call: Callable[[Prompt, int, str, Settings, OnUsage], Awaitable[list[Sample]]]
    model: str
    template: Template = field(default_factory=Template)
    settings: Settings = field(default_factory=Settings)
    samples_per_call: int = 1
    arms: Sequence[ArmSettings] = ()

    def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Make concurrent calls and yield their samples as they arrive."""
        unknown = ArmSettings(arm or "", arm or self.model)
        one = next((known for known in self.arms if known.name == arm), unknown)
        rendered = (one.template or self.template).render(prompt)
        settings = one.settings or self.settings

        async def call(size: int, _: int) -> list[Sample]:
            return await self.call(rendered, size, one.model, settings, on_usage)

        return fan_out(call, n, per_call=self.samples_per_call)


@dataclass(frozen=True, eq=False)
class ScoredModel:
    """A model whose samples get a score; ``score`` returns None for a sample that has none."""

    model: Model
    score: Callable[[Sample], Awaitable[float | None]]

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield samples; those of a call are scored at the same time."""
        of_call: list[Sample] = []
        async with aclosing(self.model.sample(prompt, n, arm=arm, on_usage=on_usage)) as samples:
            async for sample in samples:
                of_call.append(sample)
                if len(of_call) == sample.samples_per_call:
                    for one in await self._score_all(of_call):
                        yield one
                    of_call = []
        for one in await self._score_all(of_call):
            yield one

    async def _score_all(self, samples: list[Sample]) -> list[Sample]:
        scores = await asyncio.gather(*map(self.score, samples))
        return [
            sample if score is None else replace(sample, signals={SCORE: score})
            for sample, score in zip(samples, scores, strict=True)
        ]


async def call_upstream(
    upstream: Upstream, prompt: Prompt, n: int, model: str, settings: Settings, on_usage: OnUsage
) -> list[Sample]:
    """Call our own client of an OpenAI-compatible server, which must be open."""
    payload = encode(request_body(model, prompt, settings, upstream.capabilities, count=n))
    tracker = UsageTracker(on_usage, _bound(model, n, settings, len(payload)))
    reply = await upstream.post_bytes(prompt.path, payload, tracker=tracker)
    if not isinstance(reply, ParsedReply):
        raise RequestRejected(reply.message)
    return list(reply.samples)


async def call_client(
    client: Any,  # noqa: ANN401 - openai's, which is not imported
    prompt: Prompt,
    n: int,
    model: str,
    settings: Settings,
    on_usage: OnUsage,
) -> list[Sample]:
    """Call an ``openai.AsyncOpenAI`` client, or one with the same methods."""
    size = len(str(prompt.messages or prompt.text))
    body = request_body(model, prompt, replace(settings, extra={}), Capabilities(), count=n)
    if settings.extra:
        body["extra_body"] = dict(settings.extra)
    endpoint = client.completions if prompt.messages is None else client.chat.completions
    attempt = ReportedAttempt(_bound(model, n, settings, size), on_usage)
    try:
        reply = await endpoint.create(**body)
        document = reply if isinstance(reply, Mapping) else reply.model_dump()
        samples = parse_samples(document)
    except BaseException as error:
        attempt.end(None)
        if (translated := _translate(error)) is not error:
            raise translated from error
        raise
    attempt.end(sampled_usage(document, samples, prompt_bytes=size))
    return samples


def _bound(model: str, n: int, settings: Settings, size: int) -> CallBound:
    return CallBound.of(model, n=n, max_tokens=settings.max_tokens, body_bytes=size)


def _translate(error: BaseException) -> BaseException:
    """Return an error of the openai package as one of ours, and any other as it is."""
    if isinstance(error, MalformedReply):
        return ModelError(f"the client returned a reply that cannot be parsed: {error}")
    if not type(error).__module__.startswith("openai"):
        return error
    status = getattr(error, "status_code", None)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return RateLimited(str(error))
    if isinstance(status, int) and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return RequestRejected(str(error))
    timed_out = "Timeout" in type(error).__name__
    return ModelTimeout(str(error)) if timed_out else ModelError(str(error))
