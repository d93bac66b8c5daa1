"""Servers: the clients of the servers that a batch samples from.

Nothing is probed here, because the calls of a probe would not count against the total. What an
earlier probe found out about the servers is used, if it is the same of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adacompute.batch.job import BatchJob
from adacompute.models.capabilities_cache import cache_path, load_common
from adacompute.models.connection.addresses import Addresses
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream

MAX_PER_CALL = 16
"""Samples that one call asks for at most, where the servers give several."""


@dataclass(frozen=True)
class Servers:
    """Base URLs, the capabilities and the API key of all."""

    base_urls: tuple[str, ...]
    capabilities: Capabilities
    api_key: str | None = None

    @classmethod
    def find(cls, base_urls: Sequence[str], model: str, api_key: str | None) -> Servers:
        """Return servers with what is known about them on this machine."""
        known = load_common(cache_path(), base_urls, model)
        return cls(tuple(base_urls), known or Capabilities(), api_key)

    def run(self, job: BatchJob) -> dict[str, Any]:
        """Run a batch on these servers."""
        model, settings = job.arms[0].model, job.arms[0].settings
        upstream = Upstream(
            Addresses(self.base_urls),
            model,
            capabilities=self.capabilities,
            api_key=self.api_key,
            limits=EndpointLimits(max_connections=job.settings.concurrency),
        )
        n = self.capabilities.choices(MAX_PER_CALL, temperature=settings.temperature, seeded=True)
        job.settings = replace(job.settings, samples_per_call=n)
        return asyncio.run(job.run(upstream))
