"""Server: the client of the server that a batch samples from.

Nothing is probed here, because the calls of a probe would not count against the total. What an
earlier probe found out about the server is used.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from adacompute.batch.job import BatchJob
from adacompute.models.capabilities_cache import cache_path, load_cached
from adacompute.models.connection.endpoint import EndpointLimits
from adacompute.models.messages import Capabilities
from adacompute.models.openai import Upstream

MAX_PER_CALL = 16
"""Samples that one call asks for at most, where the server gives several."""


@dataclass(frozen=True)
class Server:
    """The base URL, the capabilities and the API key of a server."""

    base_url: str
    capabilities: Capabilities
    api_key: str | None = None

    @classmethod
    def find(cls, base_url: str, model: str, api_key: str | None) -> Server:
        """Return a server with what is known about it on this machine."""
        known = load_cached(cache_path(), base_url, model)
        return cls(base_url, known or Capabilities(), api_key)

    def run(self, job: BatchJob) -> dict[str, Any]:
        """Run a batch on this server."""
        model, settings = job.arms[0].model, job.arms[0].settings
        upstream = Upstream(
            self.base_url,
            model,
            capabilities=self.capabilities,
            api_key=self.api_key,
            limits=EndpointLimits(max_connections=job.settings.concurrency),
        )
        n = self.capabilities.choices(MAX_PER_CALL, temperature=settings.temperature, seeded=True)
        job.settings = replace(job.settings, samples_per_call=n)
        return asyncio.run(job.run(upstream))
