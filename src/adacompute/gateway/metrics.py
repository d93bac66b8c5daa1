"""Metrics: what an operator watches, in Prometheus's words.

The only door to prometheus-client. Every name is declared in one table, which the dashboard and the
documentation are checked against. Several worker processes share one account through a directory
of the server's making. It knows nothing of requests: it is told numbers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adacompute.core.errors import require

PREFIX: Final = "adacompute_"
SHARED: Final = "PROMETHEUS_MULTIPROC_DIR"

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
QUICK = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
SHARES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests_total": ("Requests by model, path and status.", ("model", "path", "status")),
    "passthrough_requests_total": (
        "Requests passed on as they were, by reason.",
        ("model", "reason"),
    ),
    "samples_total": ("Samples drawn.", ("model",)),
    "calls_total": ("Calls made to the upstream for draws.", ("model",)),
    "tokens_total": ("Tokens billed, by kind: prompt or completion.", ("model", "kind")),
    "estimated_tokens_total": (
        "Those of them that the upstream did not account: at most so many.",
        ("model", "kind"),
    ),
    "cost_total": ("Money spent, by the token prices.", ("model",)),
    "unparsed_samples_total": ("Draws whose answer could not be read.", ("model",)),
    "incomplete_requests_total": (
        "Requests answered with fewer draws than were wanted.",
        ("model",),
    ),
    "unmatched_prompts_total": ("Requests whose question could not be told.", ("model",)),
    "audit_samples_total": ("Samples drawn only for audits.", ("model",)),
    "audit_agreements_total": (
        "Audited requests whose answer agrees with that of the largest level.",
        ("model",),
    ),
    "audit_requests_total": (
        "Requests audited: sampled to the largest level after the answer.",
        ("model",),
    ),
    "scorer_failures_total": ("Requests whose draws the scorer failed to score.", ("model",)),
    "rejected_requests_total": ("Requests refused by the gateway, by reason.", ("reason",)),
    "upstream_failures_total": ("Calls that failed for good.", ("model",)),
    "retries_total": ("Calls that were attempted again.", ("model",)),
}
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "decision_duration_seconds": ("Time to decide, all decisions of a request together.", QUICK),
    "request_duration_seconds": ("Time from a request to its answer.", SECONDS),
    "samples_per_request": ("Samples drawn for a request.", COUNTS),
    "agreement": ("Share of the readable answers that agree with the one given.", SHARES),
}
GAUGES: Mapping[str, str] = {
    "price": "Price of the default budget.",
    "budget": "Default budget, in the unit of the bundle.",
    "request_cost_mean": "Mean cost of the last thousand requests, in the unit of the bundle.",
    "feature_drift": "Mean squared distance of features from the training questions', 1 if none.",
    "agreement_drift": "Agreement of two samples over that of the training questions, 1 if none.",
}


def names() -> list[str]:
    """Every name as it is scraped, with the parts that histograms have."""
    parts = [f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")]
    return [PREFIX + name for name in (*COUNTERS, *GAUGES, *parts, "requests_in_flight")]


class Metrics:
    """Numbers of one process, or of all that share a directory."""

    def __init__(self) -> None:
        prometheus = require("prometheus_client", extra="serve")
        prometheus.disable_created_metrics()
        if SHARED in os.environ:
            _bury(Path(os.environ[SHARED]))
        self._prometheus: Any = prometheus
        self._registry = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._counters = {
            name: prometheus.Counter(PREFIX + name, text, labels, **own)
            for name, (text, labels) in COUNTERS.items()
        }
        self._histograms = {
            name: prometheus.Histogram(PREFIX + name, text, ("model",), buckets=buckets, **own)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._gauges = {
            name: prometheus.Gauge(
                PREFIX + name, text, ("model",), multiprocess_mode="mostrecent", **own
            )
            for name, text in GAUGES.items()
        }
        self._open = prometheus.Gauge(
            f"{PREFIX}requests_in_flight", "Requests under way.", multiprocess_mode="livesum", **own
        )
        self._children: dict[tuple[str, ...], Any] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        child = self._children.get((name, *labels))
        if child is None:
            child = self._children[name, *labels] = self._counters[name].labels(*labels)
        child.inc(by)

    def observe(self, name: str, model: str, value: float) -> None:
        """Add to a histogram."""
        child = self._children.get((name, model))
        if child is None:
            child = self._children[name, model] = self._histograms[name].labels(model)
        child.observe(value)

    def show(self, name: str, model: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name].labels(model).set(value)

    def enter(self, by: int) -> None:
        """Count requests that are under way."""
        self._open.inc(by)

    def scrape(self) -> bytes:
        """Write all numbers for Prometheus."""
        registry = self._registry
        if SHARED in os.environ:
            registry = self._prometheus.CollectorRegistry()
            require("prometheus_client.multiprocess", extra="serve").MultiProcessCollector(registry)
        return bytes(self._prometheus.generate_latest(registry))


def _bury(shared: Path) -> None:
    """Forget the requests under way of workers that were killed."""
    prometheus = require("prometheus_client.multiprocess", extra="serve")
    for left in shared.glob("gauge_livesum_*.db"):
        process = int(left.stem.rpartition("_")[2])
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            prometheus.mark_process_dead(process)
