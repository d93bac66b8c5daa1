"""Request model: the samples of one request, drawn from the upstream as the client wrote it.

It fits the ``Model`` protocol. A round is one call where the server returns several choices, else
concurrent calls; each sends the client's own body with as little changed as a sample needs. The
usage of every call is reported: as the server reports it or, for a call that was cut off, as an
upper bound. It decides nothing and extracts no answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adacompute.core.errors import RequestRejected
from adacompute.gateway.accounting.call_log import CallRecorder
from adacompute.gateway.requests.answer_field import find_answer
from adacompute.gateway.requests.contract import (
    Judged,
    bound_call,
    limit_output,
    priced_tier,
)
from adacompute.gateway.requests.fields import COMPLETIONS, OPTIONS, chat_length_fields
from adacompute.gateway.requests.openai_replies import without_logprobs
from adacompute.gateway.requests.openai_requests import VirtualRequest
from adacompute.models.calls import CallTracker
from adacompute.models.connection.relay import Headers, end_to_end_headers
from adacompute.models.formats.body import DROP
from adacompute.models.formats.openai_format import (
    parse_choices_with_source,
)
from adacompute.models.formats.responses_format import INCLUDE_LOGPROBS, RESPONSES
from adacompute.models.messages import Capabilities, Reply, Sample
from adacompute.models.model import CallUsage, OnUsage
from adacompute.models.openai import ParsedReply, Upstream
from adacompute.policies.bundles.arm_settings import ArmEdits
from adacompute.sampling.fan_out import fan_out
from adacompute.spending.attempts import CallBound, UsageTracker

SEEDS = 2**31
"""Seeds that every server accepts."""

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")
_ENCODING = ("utf-8", "surrogateescape")
_FORWARDED_HEADERS = ("x-request-id", "openai-", "x-ratelimit-")


class UpstreamRejected(RequestRejected):
    """A request that the upstream rejects; the client gets its status and message."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.reply = reply


@dataclass(frozen=True)
class SampledChoice:
    """The reply that a sample came in: a document and its choice, or the events of a stream.

    ``headers`` are those of the reply that are passed on to the client.
    """

    document: Mapping[str, Any]
    choice: Mapping[str, Any]
    events: tuple[bytes, ...] = ()
    headers: Headers = ()


@dataclass(frozen=True)
class Target:
    """Where calls go, and the client's headers that may go there, with the key of this upstream."""

    upstream: Upstream
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class RequestModel:
    """The model as one request samples it; each sample's ``raw`` is its ``SampledChoice``.

    ``targets`` are those of arms that another upstream serves, and of all others (None). ``query``
    is the client's and goes with each call. With ``want_logprobs``, log-probabilities are asked
    for; a client that did not ask for them does not see them. With ``answer_field``, the text of a
    sample is what this pointer names in its JSON. ``arms`` are the edits that make each arm of it.
    No more than ``max_samples`` are drawn; a request that wants more gets fewer. No sample has more
    than ``max_output_tokens``.
    ``recorder`` records every call. ``calls`` is the usage of all calls so far, and ``n_received``
    the number of samples.
    """

    targets: Mapping[str | None, Target]
    request: VirtualRequest
    model: str
    query: str = ""
    want_logprobs: bool = False
    answer_field: str | None = None
    arms: Mapping[str, ArmEdits] = field(default_factory=dict)
    max_samples: int = SEEDS
    max_output_tokens: int | None = None
    recorder: CallRecorder | None = None
    calls: list[CallUsage] = field(default_factory=list)
    n_received: int = 0
    _n_asked: int = 0

    async def sample(
        self, prompt: str, n: int, *, arm: str | None = None, on_usage: OnUsage
    ) -> AsyncGenerator[Sample, None]:
        """Yield samples as they arrive; the prompt is that of the client's body."""
        del prompt
        n = min(n, self.max_samples - self._n_asked)
        if n <= 0:
            return
        body = self.request.body
        temperature = body.read("temperature", float | None)
        native = self._target(arm).upstream.capabilities.choices(
            n,
            temperature=1.0 if temperature is None else temperature,
            seeded=body.fields.get("seed") is not None,
        )

        async def call(size: int, first: int) -> list[Sample]:
            self._n_asked = max(self._n_asked, first + size)
            return await self._call(size, first, arm, on_usage)

        is_single = self.request.stream or self.request.path == RESPONSES
        per_call = 1 if is_single else native
        samples = fan_out(call, n, per_call=per_call, start=self._n_asked)
        try:
            async for sample in samples:
                self.n_received += 1
                pointer = self.answer_field
                yield sample if pointer is None else at_pointer(sample, pointer)
        finally:
            await samples.aclose()

    async def _call(self, n: int, first: int, arm: str | None, on_usage: OnUsage) -> list[Sample]:
        """Make one call, and report its usage whatever becomes of it."""
        edits = self.arms.get(arm or "") or ArmEdits(arm or self.model, {})
        body, path, target = self.request.body, self.request.path, self._target(arm)
        known = target.upstream.capabilities
        changes = self._changes(n, first, edits.model, known) | dict(edits.fields)
        fields = {**body.fields, **changes}
        if edits.model != target.upstream.model:  # only the other one was probed
            known = replace(known, max_tokens="unknown", max_completion_tokens="unknown")
        length, max_tokens = write_length(fields, path, self.max_output_tokens, known)
        payload = body.edit(changes | length)
        judged = self.request.judged or Judged({})
        if "service_tier" in edits.fields:  # the operator's own
            judged = replace(judged, tier=priced_tier(edits.fields["service_tier"]))
        bound = bound_call(
            judged,
            path,
            edits.model,
            n=max(n, edits.fields.get("best_of") or 1),
            max_tokens=max_tokens,
            body_bytes=len(payload),
        )
        reply = await target.upstream.post_bytes(
            self.request.path + self.query,
            payload,
            stream=self.request.stream,
            headers=target.headers,
            tracker=self._tracker(bound, on_usage),
        )
        if not isinstance(reply, ParsedReply):
            raise UpstreamRejected(reply.message, reply)
        document = reply.document
        if reply.events:
            raw = SampledChoice(document, {}, reply.events)
            return [replace(reply.samples[0], raw=raw)]
        if self.request.path == RESPONSES:
            raw = SampledChoice(document, {}, (), _forwarded_headers(reply.headers))
            return [replace(reply.samples[0], raw=raw)]
        choices = document["choices"]
        if len(choices) > 1:  # in the order of the samples
            choices = [choice for _, choice in parse_choices_with_source(document)]
        if not self.request.has_logprobs:
            choices = without_logprobs(choices)
        headers = _forwarded_headers(reply.headers)
        return [
            replace(sample, raw=SampledChoice(document, choice, (), headers))
            for sample, choice in zip(reply.samples, choices, strict=True)
        ]

    def _target(self, arm: str | None) -> Target:
        return self.targets.get(arm) or self.targets[None]

    def _tracker(self, bound: CallBound, on_usage: OnUsage) -> CallTracker:
        """Return what is notified of the attempts of a call."""
        if self.recorder is not None:
            return replace(self.recorder, on_usage=on_usage, bound=bound)
        return UsageTracker(on_usage, bound)

    def _changes(self, n: int, first: int, model: str, known: Capabilities) -> dict[str, Any]:
        """Return the changes to the client's body that a sample and the server need."""
        body = self.request.body
        judged = self.request.judged
        changes: dict[str, Any] = {} if judged is None else dict(judged.changes)
        changes |= {"model": model, OPTIONS: DROP, "n": DROP}
        if body.read("model", str) == model:
            del changes["model"]
        if n > 1:
            changes["n"] = n
        seed = body.read("seed", int)
        if first and type(seed) is int and seed >= 0:  # a negative seed means any
            changes["seed"] = (seed + first) % SEEDS
        has_logprobs = known.logprobs not in {"rejected", "missing"}
        if self.want_logprobs and has_logprobs and not self.request.has_logprobs:
            changes |= self._logprob_changes()
        if self.request.path == RESPONSES:
            return changes
        if self.request.stream and known.stream_usage != "rejected":
            options = body.read("stream_options", dict[str, Any])
            options = options if isinstance(options, Mapping) else {}
            changes["stream_options"] = {**options, "include_usage": True}
        return changes

    def _logprob_changes(self) -> dict[str, Any]:
        """Return the changes that ask for the log-probabilities that the policy needs."""
        if self.request.path == RESPONSES:
            included = self.request.body.read("include", list[str])
            included = included if isinstance(included, list) else []
            return {"include": [*included, INCLUDE_LOGPROBS]}
        return {"logprobs": True if self.request.path != COMPLETIONS else 1}


def at_pointer(sample: Sample, pointer: str) -> Sample:
    """Return a sample whose text is what a pointer names in its JSON."""
    return replace(sample, text=find_answer(sample.text, pointer))


def _forwarded_headers(headers: Mapping[str, str]) -> Headers:
    """Headers of a reply that the client gets: request ids and rate limits."""
    kept = [(name, value) for name, value in headers.items() if _is_forwarded(name)]
    return end_to_end_headers([(name.encode(), value.encode(*_ENCODING)) for name, value in kept])


def _is_forwarded(name: str) -> bool:
    return name.lower().startswith(_FORWARDED_HEADERS)


def write_length(
    fields: Mapping[str, Any], path: str, limit: int | None, known: Capabilities
) -> tuple[dict[str, Any], int | None]:
    """Return changes by which a server takes the largest output, and how much that is.

    Without a limit, a field that the server is known not to honour is renamed.
    """
    given = {name: value for name, value in fields.items() if value is not DROP}
    changes, max_tokens = limit_output(given, path, limit, chat_length_fields(known.kind, known))
    if limit is None and path != RESPONSES:
        for name, other in (_MAX_TOKENS, _MAX_TOKENS[::-1]):
            useless = getattr(known, name) in {"ignored", "rejected"}
            is_alone = name in given and other not in given
            if is_alone and useless and known.max_tokens_field == other:
                changes = {name: DROP, other: given[name]}
    return changes, max_tokens
