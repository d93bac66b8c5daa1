"""Account: what became of every request, in metrics and in the log of decisions.

Everything that is spent is counted once, when it is known. Texts are written down only where that
was asked for. It decides nothing, and a full disk or a slow one never holds up an answer for longer
than one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.gateway.config import MB, LogConfig
from adacompute.gateway.metrics import Metrics
from adacompute.storage.decisions import DecisionLog

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array
    from adacompute.gateway.engine import Decision, Engine, Outcome, VirtualModel
    from adacompute.gateway.passthrough import Forwarded
    from adacompute.gateway.request_model import CallUsage, RequestModel
    from adacompute.gateway.tracing import Spans
    from adacompute.models.endpoint import OnEvent
    from adacompute.policies.bundle import Baseline

LOG = logging.getLogger("adacompute.gateway")
LAST = 1000
"""Requests that means and drifts are taken over."""

SPREADS = 1e-3


class Account:
    """The account of one process."""

    def __init__(self, log: LogConfig | None, spans: Spans | None = None) -> None:
        self.metrics = Metrics()
        self._spans = spans
        self._texts = log is not None and log.texts
        self._log = None
        if log is not None:
            self._log = DecisionLog(
                Path(log.directory),
                rotate_bytes=int(log.rotate_mb * MB),
                keep_days=log.keep_days,
                keep_bytes=int(log.keep_mb * MB),
            )
        self._rolling: asyncio.Task[None] | None = None
        self._spent: dict[str, deque[float]] = {}
        self._away: dict[str, deque[float]] = {}
        self._pairs: dict[str, deque[float]] = {}
        self._draws: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._puzzled: set[str] = set()

    def introduce(self, engine: Engine) -> None:
        """Show what a model begins with."""
        virtual = engine.virtual
        self.metrics.show("budget", virtual.name, virtual.budget)
        self.metrics.show("price", virtual.name, virtual.bundle.price_for(virtual.budget))

    def listen(self, model: str) -> OnEvent:
        """What hears of an upstream's retries and failures."""
        names = {"retry": "retries_total", "failed": "upstream_failures_total"}

        def hear(event: str, fields: Mapping[str, object]) -> None:
            if event in names:
                self.metrics.count(names[event], model)
                LOG.info("%s: %s %s", model, event, fields.get("cause"))

        return hear

    def passed(self, model: str, why: str) -> Callable[[Forwarded], None]:
        """What accounts a request that is passed on."""
        count = self.metrics.count

        def tell(passed: Forwarded) -> None:
            count("passthrough_requests_total", model, why)
            usage = {"prompt": passed.prompt_tokens, "completion": passed.completion_tokens}
            self._count_tokens(model, usage, estimated=passed.estimated)

        return tell

    def decided(self, engine: Engine, outcome: Outcome) -> None:
        """Account a request that was voted on."""
        decision, model = outcome.decision, outcome.decision.model
        metrics = self.metrics
        self._bill(engine, outcome.purse.bills, model)
        metrics.count("samples_total", model, by=decision.samples_used)
        if unread := decision.answers.count(-1):
            metrics.count("unparsed_samples_total", model, by=unread)
        if decision.incomplete:
            metrics.count("incomplete_requests_total", model)
        if decision.scorer_error is not None:
            metrics.count("scorer_failures_total", model)
        if decision.question_source == "none":
            if model not in self._puzzled:
                self._puzzled.add(model)
                LOG.warning(
                    "%s: a prompt does not fit the bundle's template; its text is unused", model
                )
            metrics.count("unmatched_prompts_total", model)
        metrics.observe("decision_duration_seconds", model, decision.decision_s)
        metrics.observe("request_duration_seconds", model, decision.latency_s)
        metrics.observe("samples_per_request", model, decision.samples_used)
        if decision.agreement is not None:
            metrics.observe("agreement", model, decision.agreement)
        self._draws[model] = self._draws.get(model, 0) + decision.samples_used
        self._drift(engine, decision)
        self._write(engine, outcome)
        if self._spans is not None:
            usage = _total(outcome.purse.bills)
            self._spans.tell(decision, usage, upstream_model=engine.virtual.model)

    def lost(self, engine: Engine, purse: RequestModel) -> None:
        """Account draws that nobody was given."""
        self._bill(engine, purse.bills, engine.virtual.name)
        self.metrics.count("samples_total", engine.virtual.name, by=len(purse.drawn))

    def held(self, engine: Engine, outcome: Outcome, before: int) -> None:
        """Account what an audit drew beyond what was served."""
        decision, model = outcome.decision, outcome.decision.model
        more = len(decision.answers) - decision.samples_used
        self._bill(engine, outcome.purse.bills[before:], model)
        self._held[model] = self._held.get(model, 0) + more
        self.metrics.count("audit_samples_total", model, by=more)
        if not decision.is_audit:
            return  # half an audit is paid for and says nothing
        self.metrics.count("audit_requests_total", model)
        read = [answer for answer in decision.answers if answer >= 0]
        if read:
            votes = np.bincount(read)
            given = decision.answers[decision.chosen] if decision.chosen >= 0 else -1
            if given >= 0 and votes[given] == votes.max():
                self.metrics.count("audit_agreements_total", model)
        self._write(engine, outcome)

    def may_hold(self, virtual: VirtualModel) -> bool:
        """Whether audits have not yet taken their share of all draws."""
        so_far = self._draws.get(virtual.name, 0) + virtual.bundle.max_samples
        allowed = virtual.audit_max_share * so_far
        return self._held.get(virtual.name, 0) <= allowed

    def close(self) -> None:
        """Roll what is in the log, and send the last spans; slow."""
        if self._spans is not None:
            self._spans.close()
        if self._log is not None:
            self._log.rotate()
            _compact(self._log)

    def _bill(self, engine: Engine, bills: list[CallUsage], model: str) -> None:
        count = self.metrics.count
        count("calls_total", model, by=len(bills))
        for bill in bills:
            kinds = ("prompt", "completion")
            usage = {kind: int(bill.usage.get(f"{kind}_tokens") or 0) for kind in kinds}
            self._count_tokens(model, usage, estimated=bill.estimated)
        money = engine.money(bills)
        if money is not None:
            count("cost_total", model, by=money)

    def _count_tokens(self, model: str, usage: Mapping[str, int], *, estimated: bool) -> None:
        for kind, tokens in usage.items():
            self.metrics.count("tokens_total", model, kind, by=tokens)
            if estimated:
                self.metrics.count("estimated_tokens_total", model, kind, by=tokens)

    def _drift(self, engine: Engine, decision: Decision) -> None:
        """Show how far the last requests are from what the policy was trained on."""
        virtual, model = engine.virtual, decision.model
        spent = self._spent.setdefault(model, deque(maxlen=LAST))
        spent.append(decision.samples_used * virtual.bundle.sample_cost)
        self.metrics.show("request_cost_mean", model, sum(spent) / len(spent))
        baseline = virtual.bundle.baseline
        if baseline is None or decision.question_source == "none":
            return
        away = self._away.setdefault(model, deque(maxlen=LAST))
        away.append(_distance(decision.features, baseline))
        self.metrics.show("feature_drift", model, sum(away) / len(away))
        first = [answer for answer in decision.answers if answer >= 0][:2]
        if len(first) == 2 and baseline.agreement > 0:  # noqa: PLR2004 - a pair
            pairs = self._pairs.setdefault(model, deque(maxlen=LAST))
            pairs.append(float(first[0] == first[1]))
            share = sum(pairs) / len(pairs)
            self.metrics.show("agreement_drift", model, share / baseline.agreement)

    def _write(self, engine: Engine, outcome: Outcome) -> None:
        if self._log is None:
            return
        try:
            full = self._log.append(_describe(engine, outcome, texts=self._texts))
            if full and (self._rolling is None or self._rolling.done()):
                self._log.rotate()
                self._rolling = asyncio.ensure_future(asyncio.to_thread(_compact, self._log))
        except OSError:
            LOG.exception("a decision could not be written down")


def _compact(log: DecisionLog) -> None:
    """Roll what is sealed; what cannot be rolled stays where it is."""
    try:
        log.compact()
    except (OSError, ValueError):  # Arrow's errors are ValueErrors
        LOG.exception("the log of decisions could not be rolled")


def _writable(text: str | None) -> str | None:
    """A text without halves of characters, which no file can hold."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _distance(features: Float32Array, baseline: Baseline) -> float:
    mean, spread = np.asarray(baseline.feature_mean), np.asarray(baseline.feature_std)
    told = spread > SPREADS
    away = (features[told] - mean[told]) / spread[told]
    return float(np.mean(np.minimum(away**2, 25.0))) if told.any() else 1.0


def _total(bills: list[CallUsage]) -> dict[str, int]:
    """Tokens of all calls of a request."""
    return {
        name: sum(int(bill.usage.get(name) or 0) for bill in bills)
        for name in ("prompt_tokens", "completion_tokens")
    }


def _describe(engine: Engine, outcome: Outcome, *, texts: bool) -> dict[str, Any]:
    """Everything that is needed to decide again, and what it cost."""
    decision, purse = outcome.decision, outcome.purse
    samples = [
        {
            "answer": _writable(answer),
            "completion": _writable(drawn.draw.text) if texts else None,
            "completion_chars": len(drawn.draw.text),
            "completion_tokens": drawn.draw.completion_tokens,
            "mean_logprob": drawn.draw.mean_logprob,
        }
        for drawn, answer in zip(purse.drawn, decision.canonical_answers, strict=False)
    ]
    return {
        "id": decision.id,
        "time": decision.begun,
        "model": decision.model,
        "upstream_model": engine.virtual.model,
        "key": decision.key,
        "question": decision.question if texts else None,
        "features": decision.features.tolist(),
        "budget": decision.budget,
        "price": decision.price,
        "max_rounds": engine.virtual.max_rounds,
        "answers": decision.answers,
        "samples_used": decision.samples_used,
        "samples_planned": decision.samples_planned,
        "chosen": decision.chosen,
        "rounds": decision.rounds,
        "calls": len(purse.bills),
        **_total(purse.bills),
        "estimated": any(bill.estimated for bill in purse.bills),
        "cost": engine.money(purse.bills),
        "latency_s": decision.latency_s,
        "decision_s": decision.decision_s,
        "question_source": decision.question_source,
        "incomplete": decision.incomplete,
        "audit": decision.is_audit,
        "shadow": decision.shadow,
        "scorer_error": decision.scorer_error,
        "samples": samples,
    }
