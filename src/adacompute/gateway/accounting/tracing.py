"""Tracing: one OpenTelemetry span for each request that was decided on, with GenAI attributes.

This is the only module that uses OpenTelemetry, which is an extra of its own. A span is made when
its request is over, so tracing slows nothing down while it runs. The usual OTEL_ variables say
where spans go, and a client's own trace is continued. Spans contain no texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adacompute.core.errors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.gateway.voting.decision import Decision

_NANO = 1_000_000_000


class Spans:
    """Makes spans; ``exporter`` receives them, by default the one that the environment names."""

    def __init__(self, exporter: Any = None) -> None:  # noqa: ANN401 - OpenTelemetry's
        with needs_extra("otel"):
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("adacompute.gateway")
        self._context = TraceContextTextMapPropagator()

    def record(self, decision: Decision, usage: Mapping[str, int], *, upstream_model: str) -> None:
        """Make the span of a request that is over."""
        parent = self._context.extract({"traceparent": decision.traceparent or ""})
        start = int(decision.started_at * _NANO)
        span = self._tracer.start_span(
            f"chat {decision.model}",
            context=parent,
            start_time=start,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": decision.model,
                "gen_ai.response.model": upstream_model,
                "gen_ai.usage.input_tokens": usage["prompt_tokens"],
                "gen_ai.usage.output_tokens": usage["completion_tokens"],
                "adacompute.decision": decision.id,
                "adacompute.samples": decision.samples_used,
                "adacompute.rounds": decision.session.rounds,
                "adacompute.price": decision.session.price,
                "adacompute.budget": decision.budget,
            },
        )
        span.end(start + int(decision.latency_s * _NANO))

    def close(self) -> None:
        """Send the last spans."""
        self._provider.shutdown()
