"""Probe: the stage that finds out what an upstream does with n, seeds, log-probabilities and usage.

Findings are cached for a week, so that collections do not probe the same server again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from adacompute.collection.plan import KEY_VARIABLE, LevelSpec
from adacompute.models.capabilities_cache import cache_path, describe, load_cached, save_cached
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe
from adacompute.stages.inputs import (
    read_api_key,
)

PROBE_TTL_S = 7 * 24 * 3600.0


def probe_run(*, base_url: str, model: str, api_key_env: str = KEY_VARIABLE) -> dict[str, Any]:
    """Find out what an upstream really does, in words and as the other stages use it."""
    spec = LevelSpec("probe", model, base_url, api_key_env)

    async def ask() -> Capabilities:
        async with Upstream(base_url, model, key=read_api_key(api_key_env)) as upstream:
            return await find_capabilities(upstream, spec, fresh=True)

    found = asyncio.run(ask())
    words = ("what", "found", "so")
    findings = [dict(zip(words, row, strict=True)) for row in describe(found)]
    asked = {"base_url": base_url, "model": model}
    return {**asked, "capabilities": found.to_json(), "findings": findings}


async def find_capabilities(
    upstream: Upstream, spec: LevelSpec, *, fresh: bool = False
) -> Capabilities:
    """What was found out about a server lately, or what it answers now."""
    place = cache_path()
    known = None if fresh else load_cached(place, spec.base_url, spec.model)
    if known is None:
        known = await probe(upstream)
        save_cached(place, spec.base_url, spec.model, known, ttl_s=PROBE_TTL_S)
    return known
