"""Metrics: the numbers that an operator watches, for Prometheus.

This is the only module that uses prometheus-client. Every name is declared in the tables below,
against which the dashboard and the documentation are checked. Several worker processes share their
numbers through a directory that the server makes. Counts are added up in memory and shown to the
other processes by ``flush``, so a process that is killed loses those since the last one. It knows
nothing of requests.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal

from adacompute.core.errors import needs_extra

PREFIX: Final = "adacompute_"
SHARED_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that names the directory shared by the workers."""

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
DECISION_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
SHARES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0)
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requests_total": ("Requests by model, path and status.", ("model", "path", "status")),
    "passthrough_requests_total": (
        "Requests forwarded unchanged, by reason.",
        ("model", "reason"),
    ),
    "rejected_requests_total": ("Requests that the gateway rejected, by reason.", ("reason",)),
    "samples_total": ("Samples drawn.", ("model",)),
    "calls_total": (
        "Calls to the upstream by purpose: vote, forward, probe or scorer.",
        ("model", "purpose"),
    ),
    "tokens_total": (
        "Tokens charged, by kind: prompt or completion.",
        ("model", "purpose", "kind"),
    ),
    "estimated_tokens_total": (
        "Tokens charged at their upper bound because no usage arrived.",
        ("model", "purpose", "kind"),
    ),
    "contradicted_usage_total": (
        "Calls whose reported tokens contradict the reply: none of its prompt or its text.",
        ("model", "purpose"),
    ),
    "cost_total": ("Money spent, by the token prices.", ("model", "purpose")),
    "lost_call_rows_total": ("Rows of the account of calls that could not be written.", ()),
    "lost_decisions_total": ("Decisions that could not be written to the decision log.", ()),
    "unparsed_samples_total": ("Samples whose answer could not be parsed.", ("model",)),
    "incomplete_requests_total": (
        "Requests answered with fewer samples than the policy asked for.",
        ("model",),
    ),
    "unmatched_prompts_total": ("Requests in which no question was found.", ("model",)),
    "grader_failures_total": (
        "Samples that were not graded, by reason.",
        ("grader", "reason"),
    ),
    "scorer_failures_total": ("Requests whose samples the scorer failed to score.", ("model",)),
    "upstream_failures_total": ("Calls that failed after all retries.", ("model",)),
    "retries_total": ("Calls that were retried.", ("model",)),
    "refused_retries_total": (
        "Calls that were not retried because too many others were.",
        ("model",),
    ),
    "cap_refusals_total": ("Calls that were not made because a cap was reached.", ("cap",)),
    "cap_overruns_total": (
        "What calls used beyond the most that was reserved for them, in the unit of the cap.",
        ("cap",),
    ),
    "removed_headers_total": (
        "Headers and parts of queries that may choose a payer or target, removed from requests.",
        (),
    ),
    "worker_deaths_total": ("Worker processes that died and were replaced.", ()),
    "reloads_total": ("Configurations read again, by result: applied or rejected.", ("result",)),
}
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "decision_duration_seconds": ("Time for all decisions of a request.", DECISION_SECONDS),
    "request_duration_seconds": ("Time from a request to its answer.", REQUEST_SECONDS),
    "samples_per_request": ("Samples drawn for a request.", COUNTS),
    "agreement": ("Share of the parsed answers that agree with the most frequent one.", SHARES),
    "p_correct": ("How likely the answer is right, where the bundle can say.", SHARES),
}
GAUGES: Mapping[str, str] = {
    "price": "Price of the last request at the default budget.",
    "debt": "What requests cost beyond the default budget, in the unit of the bundle; "
    "negative if they cost less.",
    "budget": "Default budget, in the unit of the bundle.",
    "request_cost_mean": "Mean cost of the last 1000 requests, in the unit of the bundle.",
    "feature_drift": "How much farther questions are than the training questions; 1 is none. "
    "Absent before 200 requests.",
    "agreement_drift": "Agreement of two samples, relative to the training questions; 1 is none. "
    "Absent before 200 requests with two samples.",
}
CAP_GAUGES: Mapping[str, tuple[str, Literal["mostrecent", "livesum"]]] = {
    "cap_limit": ("Caps, in their unit.", "mostrecent"),
    "cap_spent": ("Spent under a cap in this period, by all replicas.", "mostrecent"),
    "cap_held": ("Spent or leased under a cap in this period, by all replicas.", "mostrecent"),
    "cap_lease_left": ("What is left of the leases of this host.", "livesum"),
    "cap_reserved": ("Reserved for calls in progress on this host.", "livesum"),
}
STORE_GAUGES: Mapping[str, str] = {
    "store_unreachable_since_seconds": "Unix time since when the store of caps does not answer; 0 "
    "if it does.",
    "store_recovering_until_seconds": "Unix time until when, at the latest, the store of caps "
    "waits for replicas after a restart; 0 if it does not.",
}
NOT_READY: Final = "not_ready"
NOT_READY_HELP: Final = "1 for each cause of a 503 of /ready, otherwise 0."
CAUSES: Final = ("starting", "store", "stopping", "ended")
"""States for which /ready answers 503."""

MEANS: Final = ("request_cost_mean", "feature_drift", "agreement_drift")
"""Gauges that are means over the last requests, of all workers together."""

IN_FLIGHT: Final = "requests_in_flight"
IN_FLIGHT_HELP: Final = "Requests in flight."
_SUM, _COUNT = "_window_sum", "_window_count"
"""A mean is stored as a sum and a count in each process: means cannot be added up."""


class Metrics:
    """The numbers of one process, or of all that share a directory."""

    def __init__(self) -> None:
        with needs_extra("serve"):
            import prometheus_client as prometheus

        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
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
                PREFIX + name,
                text,
                ("model",),
                multiprocess_mode="mostrecent",
                **own,
            )
            for name, text in GAUGES.items()
            if name not in MEANS
        }
        self._cap_gauges = {
            name: prometheus.Gauge(PREFIX + name, text, ("cap",), multiprocess_mode=mode, **own)
            for name, (text, mode) in CAP_GAUGES.items()
        }
        self._store_gauges = {
            name: prometheus.Gauge(PREFIX + name, text, multiprocess_mode="livemax", **own)
            for name, text in STORE_GAUGES.items()
        }
        self._windows = {
            name: prometheus.Gauge(
                PREFIX + name, name, ("model",), multiprocess_mode="livesum", **own
            )
            for mean in MEANS
            for name in (mean + _SUM, mean + _COUNT)
        }
        self._in_flight = prometheus.Gauge(
            PREFIX + IN_FLIGHT, IN_FLIGHT_HELP, multiprocess_mode="livesum", **own
        )
        self._not_ready = prometheus.Gauge(
            PREFIX + NOT_READY, NOT_READY_HELP, ("cause",), multiprocess_mode="mostrecent", **own
        )
        self._children: dict[tuple[str, ...], Any] = {}
        self._pending: dict[tuple[str, ...], float] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter; others see it after the next ``flush``."""
        key = (name, *labels)
        self._pending[key] = self._pending.get(key, 0) + by

    def flush(self) -> None:
        """Show what was counted to all processes: adding up here first is faster."""
        pending, self._pending = self._pending, {}
        for key, value in pending.items():
            child = self._children.get(key)
            if child is None:
                name, *labels = key
                counter = self._in_flight if name == IN_FLIGHT else self._counters[name]
                child = self._children[key] = counter.labels(*labels) if labels else counter
            child.inc(value)

    def observe(self, name: str, model: str, value: float) -> None:
        """Add to a histogram."""
        child = self._children.get((name, model))
        if child is None:
            child = self._children[name, model] = self._histograms[name].labels(model)
        child.observe(value)

    def set_gauge(self, name: str, model: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[name].labels(model).set(value)

    def set_cap(self, name: str, cap: str, value: float) -> None:
        """Set a gauge of a cap."""
        self._cap_gauges[name].labels(cap).set(value)

    def set_store(self, name: str, at: float) -> None:
        """Set a gauge of the store of caps."""
        self._store_gauges[name].set(at)

    def set_state(self, state: str) -> None:
        """Show whether /ready answers 503, and why."""
        for cause in CAUSES:
            self._not_ready.labels(cause).set(cause == state)

    def set_mean(self, name: str, model: str, values: Collection[float]) -> None:
        """Set a gauge to the mean of values, and of those of all other processes."""
        self._windows[name + _SUM].labels(model).set(sum(values))
        self._windows[name + _COUNT].labels(model).set(len(values))

    def add_in_flight(self, by: int) -> None:
        """Change the number of requests in flight."""
        self.count(IN_FLIGHT, by=by)

    def total(self, name: str) -> float | None:
        """Return the sum of a counter over all labels; None if it was never counted."""
        values = [
            sample.value
            for family in self._shared_registry().collect()
            for sample in family.samples
            if sample.name == PREFIX + name
        ]
        return sum(values) if values else None

    def scrape(self) -> bytes:
        """Return all numbers in the format of Prometheus."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self._shared_registry()))

    def _shared_registry(self) -> Any:  # noqa: ANN401 - prometheus-client's
        """Return the numbers of this process, or of all that share a directory."""
        self.flush()
        from prometheus_client import CollectorRegistry
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        own: Any = self._registry
        if SHARED_DIRECTORY in os.environ:
            own = MultiProcessCollector(None)  # type: ignore[no-untyped-call]
        registry.register(_WithMeans(own))
        return registry


class _WithMeans:
    """Collects what another collector does, with means instead of their sums and counts."""

    def __init__(self, collector: Any) -> None:  # noqa: ANN401 - prometheus-client's
        self._collector = collector

    def collect(self) -> Iterator[Any]:
        """Yield all families of metrics."""
        from prometheus_client.core import GaugeMetricFamily

        windows: dict[str, dict[str, float]] = {}
        for family in self._collector.collect():
            if family.name.endswith((_SUM, _COUNT)):
                windows[family.name] = {one.labels["model"]: one.value for one in family.samples}
            else:
                yield family
        for name in MEANS:
            family = GaugeMetricFamily(PREFIX + name, GAUGES[name], labels=["model"])
            for model, count in windows.get(PREFIX + name + _COUNT, {}).items():
                if count:
                    total = windows[PREFIX + name + _SUM][model]
                    family.add_metric([model], total / count)
            yield family


def forget_process(pid: int) -> None:
    """Remove the requests in flight of a process that has ended; what it counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)  # type: ignore[no-untyped-call]
