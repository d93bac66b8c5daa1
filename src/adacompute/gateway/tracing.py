"""Tracing: one span for each request that was decided on, in OpenTelemetry's words for models.

The only door to OpenTelemetry, and an extra of its own. Spans are made when a request is over, from
what its account says, so nothing is slowed down while it runs; where they go is told by the usual
OTEL_ variables. A client's own trace goes on. It knows nothing of texts: spans hold none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adacompute.core.errors import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.gateway.engine import Decision

EXTRA = "otel"
_NANO = 1_000_000_000


class Spans:
    """Makes spans; ``exporter`` is where they go, by default what the environment names."""

    def __init__(self, exporter: Any = None) -> None:  # noqa: ANN401 - OpenTelemetry's
        trace = require("opentelemetry.sdk.trace", extra=EXTRA)
        export = require("opentelemetry.sdk.trace.export", extra=EXTRA)
        if exporter is None:
            http = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", extra=EXTRA)
            exporter = http.OTLPSpanExporter()
        self._provider = trace.TracerProvider()
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("adacompute.gateway")
        propagation = "opentelemetry.trace.propagation.tracecontext"
        self._context = require(propagation, extra=EXTRA).TraceContextTextMapPropagator()

    def tell(self, decision: Decision, usage: Mapping[str, int], *, upstream_model: str) -> None:
        """Make the span of a request that is over."""
        parent = self._context.extract({"traceparent": decision.parent or ""})
        begun = int(decision.begun * _NANO)
        span = self._tracer.start_span(
            f"chat {decision.model}",
            context=parent,
            start_time=begun,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": decision.model,
                "gen_ai.response.model": upstream_model,
                "gen_ai.usage.input_tokens": usage["prompt_tokens"],
                "gen_ai.usage.output_tokens": usage["completion_tokens"],
                "adacompute.decision": decision.id,
                "adacompute.samples": decision.samples_used,
                "adacompute.rounds": decision.rounds,
                "adacompute.price": decision.price,
                "adacompute.budget": decision.budget,
            },
        )
        span.end(begun + int(decision.latency_s * _NANO))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
