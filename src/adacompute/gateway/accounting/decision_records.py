"""Decision records: what is written of a decision to its log.

Texts are written only where the configuration says so. It writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adacompute.core.types import replace_surrogates

if TYPE_CHECKING:
    from adacompute.gateway.voting.decision import Decision
    from adacompute.gateway.voting.engine import Engine
    from adacompute.models.model import CallUsage


def sum_tokens(calls: Sequence[CallUsage]) -> dict[str, int]:
    """Tokens of all calls of a request."""
    return {
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }


def describe_decision(
    engine: Engine, decision: Decision, calls: Sequence[CallUsage], *, texts: bool
) -> dict[str, Any]:
    """Everything that is needed to decide again, and what it cost."""
    session = decision.session
    samples = [
        {
            "answer": None if value is None else replace_surrogates(value),
            "completion": replace_surrogates(sample.text) if texts else None,
            "completion_chars": len(sample.text),
            "completion_tokens": sample.completion_tokens,
            "mean_logprob": sample.mean_logprob,
        }
        for sample, value in zip(session.samples, session.values, strict=True)
    ]
    return {
        "id": decision.id,
        "time": decision.started_at,
        "model": decision.model,
        "upstream_model": engine.virtual.model,
        "key": session.progress.key,
        "question": session.question if texts else None,
        "features": decision.features.tolist(),
        "budget": decision.budget,
        "price": session.price,
        "max_rounds": engine.virtual.max_rounds,
        "answers": session.answers,
        "samples_used": decision.samples_used,
        "chosen": decision.chosen,
        "rounds": session.rounds,
        "calls": len(calls),
        **sum_tokens(calls),
        "estimated": any(call.is_estimated for call in calls),
        "cost": engine.cost(calls),
        "latency_s": decision.latency_s,
        "decision_s": decision.decision_s,
        "question_source": decision.question_source,
        "p_correct": decision.p_correct,
        "sure": decision.is_sure,
        "incomplete": decision.is_incomplete,
        "today": decision.is_today,
        "scorer_error": decision.scorer_error,
        "samples": samples,
    }
