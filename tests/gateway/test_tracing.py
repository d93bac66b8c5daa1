from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adacompute.core.types import make_levels
from adacompute.gateway.accounting.tracing import Spans
from adacompute.gateway.voting.decision import Decision
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from adacompute.sampling.session import Session


def test_a_span_has_the_usage_and_continues_the_clients_trace() -> None:
    exporter = InMemorySpanExporter()
    spans = Spans(exporter)
    policy = RulePolicy("fixed", make_levels((3,)), (FixedRule(3),), PriceSchedule((0.1,)))
    session = Session(policy, "a secret question", price=0.1)
    session.ask()
    decision = Decision(
        id="d1",
        model="virtual",
        budget=2.0,
        question_source="message",
        features=np.zeros(1, dtype=np.float32),
        session=session,
        started_at=1000.0,
        samples_used=3,
        latency_s=1.5,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    usage = {"prompt_tokens": 21, "completion_tokens": 15}
    spans.record(decision, usage, upstream_model="real")
    spans.close()
    (span,) = exporter.get_finished_spans()
    told = dict(span.attributes or {})
    assert span.name == "chat virtual"
    assert told["gen_ai.usage.output_tokens"] == 15
    assert told["adacompute.samples"] == 3
    assert (told["adacompute.rounds"], told["adacompute.price"]) == (1, 0.1)
    assert span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert (span.end_time or 0) - (span.start_time or 0) == 1_500_000_000
    assert "secret" not in str(told)
