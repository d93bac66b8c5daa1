"""Upstreams: clients of a server whose calls nobody accounts for, and samples drawn with them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from adacompute.core.errors import RequestRejected
from adacompute.models.calls import UNTRACKED
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.formats.openai_format import encode, request_body
from adacompute.models.messages import Prompt, Sample, Settings
from adacompute.models.openai import ParsedReply, Upstream


def open_upstream(base_url: str, model: str, **options: Any) -> Upstream:  # noqa: ANN401 - its own
    """Return a client without an account; the options are those of an endpoint and its limits."""
    return Upstream(base_url, model, **{"tracker": UNTRACKED, **with_limits(options)})


def with_limits(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of an endpoint, with those that are limits together."""
    names = options.keys() & {one.name for one in fields(EndpointLimits)}
    limits = EndpointLimits(**{name: options.pop(name) for name in names})
    return {"limits": limits, **options}


async def draw_samples(
    upstream: Upstream,
    prompt: Prompt,
    settings: Settings,
    *,
    count: int = 1,
    seed: int | None = None,
) -> list[Sample]:
    """Send one request for several samples, if the server is known to give them."""
    known = upstream.capabilities
    n = known.choices(count, temperature=settings.temperature, seeded=seed is not None)
    body = request_body(upstream.model, prompt, settings, known, count=n, seed=seed)
    reply = await upstream.post_bytes(prompt.path, encode(body))
    if not isinstance(reply, ParsedReply):
        raise RequestRejected(reply.message)
    return list(reply.samples)
