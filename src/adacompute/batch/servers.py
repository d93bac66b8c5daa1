"""Servers: the clients of the servers that a batch samples from.

Nothing is probed here, because the calls of a probe would not count against the total. What an
earlier probe found out about a server is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adacompute.batch.job import BatchJob
from adacompute.models.capabilities_cache import cache_path, load_cached
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream

MAX_PER_CALL = 16
"""Samples that one call asks for at most, where the servers give several."""


@dataclass(frozen=True)
class Servers:
    """Base URLs, the capabilities of each, and the API key for all."""

    base_urls: tuple[str, ...]
    capabilities: tuple[Capabilities, ...]
    api_key: str | None = None

    @classmethod
    def find(cls, base_urls: Sequence[str], model: str, api_key: str | None) -> Servers:
        """Return servers with what is known about them on this machine."""
        path = cache_path()
        known = tuple(load_cached(path, url, model) or Capabilities() for url in base_urls)
        return cls(tuple(base_urls), known, api_key)

    def run(self, job: BatchJob) -> dict[str, Any]:
        """Run a batch on these servers."""
        model, settings = job.arms[0].model, job.arms[0].settings
        upstreams = [
            Upstream(
                url,
                model,
                capabilities=known,
                api_key=self.api_key,
                max_connections=job.settings.concurrency,
            )
            for url, known in zip(self.base_urls, self.capabilities, strict=True)
        ]
        n = min(
            known.choices(MAX_PER_CALL, temperature=settings.temperature, seeded=True)
            for known in self.capabilities
        )
        job.settings = replace(job.settings, samples_per_call=n)
        return asyncio.run(job.run(upstreams))
