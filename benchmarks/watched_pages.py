"""Watched pages: what /ready and /metrics of gateways say about the store of accounts, and when.

A field or a metric that a gateway does not have is left out. This module judges nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

WATCH_S = 0.5
STORE_METRICS = (
    "adacompute_store_unreachable_since_seconds",
    "adacompute_store_recovering_until_seconds",
)


@dataclass
class WatchedPages:
    """What the pages of gateways said, and when."""

    n_ready: Counter[str] = field(default_factory=Counter)
    store: dict[str, list[float]] = field(default_factory=dict)
    metrics: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    async def watch(
        self, session: aiohttp.ClientSession, addresses: Callable[[], Sequence[str]]
    ) -> None:
        """Read the pages at addresses, which may change, until cancelled."""
        while True:
            for address in addresses():
                await self._read(session, address)
            await asyncio.sleep(WATCH_S)

    async def _read(self, session: aiohttp.ClientSession, address: str) -> None:
        now, status = time.monotonic(), "none"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with session.get(f"{address}/ready") as page:
                status, document = str(page.status), await page.json()
            if "store" in document:
                self.store.setdefault(str(document["store"]), []).append(now)
            async with session.get(f"{address}/metrics") as page:
                text = await page.text()
            for name in STORE_METRICS:
                values = re.findall(rf"^{name}(?:{{.*}})? (\S+)", text, re.MULTILINE)
                if values:
                    found = self.metrics.setdefault(name, [])
                    found.append((now, max(map(float, values))))
        self.n_ready[status] += 1

    def describe(self, event_at: float) -> dict[str, Any]:
        """Return what was said, with the first and the last time since an event.

        Of metrics, these are the times at which the value was above 0.
        """
        metrics = {}
        for name, found in self.metrics.items():
            times = [when - event_at for when, value in found if value > 0]
            largest = max(value for _, value in found)
            metrics[name] = {"max": largest, "between_s": _limits(times)}
        store = {
            text: _limits([when - event_at for when in times]) for text, times in self.store.items()
        }
        return {"ready": self.n_ready, "store": store, "metrics": metrics}


def _limits(times: Sequence[float]) -> list[float]:
    return [round(min(times), 1), round(max(times), 1)] if times else []
