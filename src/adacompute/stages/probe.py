"""Probe: the stage that finds out what an upstream does with n, seeds, log-probabilities and usage.

The result is cached for a week, so that collections do not probe the same server again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from adacompute.collection.arms import API_KEY_ENV
from adacompute.models.capabilities_cache import cache_path, describe, load_cached, save_cached
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe
from adacompute.stages.inputs import read_api_key

CACHE_TTL_S = 7 * 24 * 3600.0


def probe_run(*, base_url: str, model: str, api_key_env: str = API_KEY_ENV) -> dict[str, Any]:
    """Probe an upstream, and return its capabilities with an explanation of each."""

    async def run_probe() -> Capabilities:
        async with Upstream(base_url, model, api_key=read_api_key(api_key_env)) as upstream:
            return await find_capabilities(upstream, base_url, model, fresh=True)

    capabilities = asyncio.run(run_probe())
    keys = ("feature", "found", "consequence")
    findings = [dict(zip(keys, row, strict=True)) for row in describe(capabilities)]
    return {
        "base_url": base_url,
        "model": model,
        "capabilities": capabilities.to_json(),
        "findings": findings,
    }


async def find_capabilities(
    upstream: Upstream, base_url: str, model: str, *, fresh: bool = False
) -> Capabilities:
    """Return the cached capabilities of a server; with ``fresh`` or without a cache, probe it."""
    path = cache_path()
    known = None if fresh else load_cached(path, base_url, model)
    if known is None:
        known = await probe(upstream)
        save_cached(path, base_url, model, known, ttl_s=CACHE_TTL_S)
    return known
