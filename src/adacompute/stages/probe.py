"""Probe: the stage that finds out what an upstream does with n, seeds, log-probabilities and usage.

The result is cached for a week, so that collections do not probe the same server again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from adacompute.core.errors import ModelError
from adacompute.models.capabilities_cache import cache_path, describe, load_cached, save_cached
from adacompute.models.messages import Capabilities
from adacompute.models.model import CallUsage, sum_usage
from adacompute.models.openai import Upstream
from adacompute.models.probe import probe
from adacompute.options.definition import takes
from adacompute.options.main import ProbeOptions
from adacompute.spending.attempts import UsageTracker
from adacompute.stages.inputs import read_api_key

CACHE_TTL_S = 7 * 24 * 3600.0


@takes(ProbeOptions)
def probe_run(options: ProbeOptions) -> dict[str, Any]:
    """Probe an upstream, and return its capabilities with an explanation of each."""
    base_url, model = options.base_url, options.model
    calls: list[CallUsage] = []

    async def run_probe() -> Capabilities:
        tracker = UsageTracker(calls.append)
        key = read_api_key(options.api_key_env)
        async with Upstream(base_url, model, api_key=key, tracker=tracker) as upstream:
            return await find_capabilities(upstream, base_url, model, fresh=True)

    capabilities = asyncio.run(run_probe())
    keys = ("feature", "found", "consequence")
    findings = [dict(zip(keys, row, strict=True)) for row in describe(capabilities)]
    return {
        "base_url": base_url,
        "model": model,
        "capabilities": capabilities.to_json(),
        "findings": findings,
        "usage": sum_usage(calls),
    }


async def find_capabilities(
    upstream: Upstream,
    base_url: str,
    model: str,
    *,
    fresh: bool = False,
    is_complete: Callable[[], bool] = lambda: True,
) -> Capabilities:
    """Return the cached capabilities of a server; with ``fresh`` or without a cache, probe it.

    What a probe found is kept if ``is_complete`` says so afterwards; else nothing is known.
    """
    path = cache_path()
    known = None if fresh else load_cached(path, base_url, model)
    if known is None:
        try:
            known = await probe(upstream)
        except ModelError:
            if is_complete():
                raise
        if known is None or not is_complete():
            return Capabilities()
        save_cached(path, base_url, model, known, ttl_s=CACHE_TTL_S)
    return known
