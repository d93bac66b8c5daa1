"""Account: what became of every request, in the metrics and in the decision log.

What calls cost is in the call log, which it holds. Texts are logged only if the configuration says
so. It decides nothing, and a full or slow disk delays an answer by no more than
one write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adacompute.core.types import replace_surrogates
from adacompute.gateway.accounting.call_log import CallLog, CallOrigin, CallRecorder, Purpose
from adacompute.gateway.accounting.metrics import Metrics
from adacompute.gateway.processes.logs import LOG, log
from adacompute.gateway.requests.openai_requests import PATHS
from adacompute.gateway.settings.config import TEXTS, Config
from adacompute.spending.attempts import MAX_TEXT_CHARS

if TYPE_CHECKING:
    from adacompute.gateway.connection.exchange import Exchange
    from adacompute.gateway.voting.decision import Decision, Outcome
    from adacompute.gateway.voting.engine import Engine
    from adacompute.gateway.voting.request_model import RequestModel
    from adacompute.models.connection.endpoint import OnEvent
    from adacompute.models.model import CallUsage
    from adacompute.spending.attempts import CallBound
    from adacompute.spending.token_prices import TokenPriceList

SERVER_ERROR = 500
WINDOW = 1000
"""Requests that means and drifts are taken over."""

MIN_DRIFT_REQUESTS = 200
"""Requests before a drift is shown: the mean of fewer is mostly chance."""

DRIFT_THRESHOLD = 2.0
"""Drift above which, or below the inverse of which, a warning is logged."""

WARN_S = 60.0
"""Least time between two warnings of the same kind."""


class Account:
    """The account of one process."""

    def __init__(
        self,
        config: Config,
        price_lists: Mapping[str, TokenPriceList],
    ) -> None:
        self.metrics = Metrics()
        self.calls = CallLog(config.open_calls(), self.metrics, price_lists)
        self._log_texts = config.decision_log == TEXTS
        self._log = config.open_decisions()
        self._compacting: asyncio.Task[None] | None = None
        self._request_costs: dict[str, deque[float]] = {}
        self._feature_distances: dict[str, deque[float]] = {}
        self._first_pairs_agree: dict[str, deque[float]] = {}
        self._warned_at: dict[tuple[str, str], float] = {}

    def register(self, engine: Engine) -> None:
        """Show the budget and the price of a model."""
        virtual = engine.virtual
        self.metrics.set_gauge("budget", virtual.name, virtual.budget)
        self.metrics.set_gauge("price", virtual.name, virtual.bundle.price_for(virtual.budget))

    def event_counter(self, model: str) -> OnEvent:
        """Return a function that counts an upstream's retries and failures."""
        names = {
            "retry": "retries_total",
            "retry_refused": "refused_retries_total",
            "failed": "upstream_failures_total",
        }

        def on_event(event: str, fields: Mapping[str, object]) -> None:
            if event in names:
                self.metrics.count(names[event], model)
                log(
                    logging.WARNING,
                    f"call {event.replace('_', ' ')}",
                    model=model,
                    cause=fields.get("cause"),
                )

        return on_event

    def record_rejection(self, code: str) -> None:
        """Count a request that is rejected; its end is logged with the same code."""
        self.metrics.count("rejected_requests_total", code)

    def record_refused_connection(self, code: str) -> None:
        """Count and log a connection that is refused before its request is complete."""
        self.record_rejection(code)
        log(logging.INFO, "refused", code=code)

    def record_request(self, exchange: Exchange) -> None:
        """Count a request that has ended, and log it."""
        status = exchange.final_status
        path = PATHS.get(exchange.path, "other")
        self.metrics.count("requests_total", exchange.model, path, str(status))
        level = logging.WARNING if status >= SERVER_ERROR else logging.INFO
        if LOG.isEnabledFor(level):
            log(
                level,
                "request",
                request_id=exchange.request_id,
                decision_id=exchange.decision_id,
                method=exchange.method,
                path=exchange.path[:MAX_TEXT_CHARS],
                model=exchange.model,
                upstream_model=exchange.upstream_model,
                status=status,
                samples=exchange.n_samples,
                latency_s=round(exchange.elapsed_s, 4),
                cost=exchange.cost,
                code=exchange.error_code,
                error=exchange.error,
            )

    def recorder(
        self, exchange: Exchange, purpose: Purpose, bound: CallBound | None = None
    ) -> CallRecorder:
        """Return a recorder of the calls of a request; ``bound`` is theirs, if it is known."""
        origin = CallOrigin(exchange.request_id, exchange.model, purpose)

        def on_start(bound: CallBound) -> None:
            exchange.upstream_model = bound.model

        def on_usage(charged: CallUsage) -> None:
            if charged.cost is not None:
                exchange.cost = (exchange.cost or 0.0) + charged.cost

        return CallRecorder(self.calls, origin, on_usage, bound=bound, on_start=on_start)

    def record_decision(self, engine: Engine, outcome: Outcome) -> None:
        """Record a request that was decided on."""
        outcome.decision.cost = engine.request_cost(outcome.decision, outcome.model)
        decision, session = outcome.decision, outcome.decision.session
        metrics, model = self.metrics, decision.model
        metrics.count("samples_total", model, by=decision.samples_used)
        if n_unparsed := session.answers.count(-1):
            metrics.count("unparsed_samples_total", model, by=n_unparsed)
        if decision.is_incomplete:
            metrics.count("incomplete_requests_total", model)
        if decision.scorer_error is not None:
            metrics.count("scorer_failures_total", model)
        if decision.question_source == "none":
            metrics.count("unmatched_prompts_total", model)
            self._warn_of_template(model)
        metrics.observe("decision_duration_seconds", model, decision.decision_s)
        metrics.observe("request_duration_seconds", model, decision.latency_s)
        metrics.observe("samples_per_request", model, decision.samples_used)
        if session.agreement is not None:
            metrics.observe("agreement", model, session.agreement)
        if decision.p_correct is not None:
            metrics.observe("p_correct", model, decision.p_correct)
        self._show_price(decision)
        self._show_drift(engine, decision)
        self._write(engine, decision, outcome.model)

    def record_abandoned(self, engine: Engine, decision: Decision, model: RequestModel) -> None:
        """Record calls and samples of a request that got no answer, if it made any call."""
        decision.cost = engine.request_cost(decision, model)
        self.metrics.count("samples_total", engine.virtual.name, by=model.n_received)
        if model.calls:
            given = {"answers": [], "samples_used": model.n_received}
            self._write(engine, decision, model, given)

    def close(self) -> None:
        """Close the files and compact the log; this is slow."""
        self.metrics.flush()
        self.calls.close()
        if self._log is not None:
            _log_failure(self._log.rotate)
            _log_failure(self._log.compact)

    def _warn_of_template(self, model: str) -> None:
        """Warn of prompts without a question, at most once per minute and model."""
        if self._is_due("template", model):
            LOG.warning(
                "%s: no question was found in a prompt, because it does not match the bundle's "
                "template: the votes alone decide",
                model,
            )

    def _is_due(self, kind: str, model: str) -> bool:
        """Whether a minute has passed since this was last true for a kind of warning."""
        now = time.monotonic()
        if now - self._warned_at.get((kind, model), -WARN_S) < WARN_S:
            return False
        self._warned_at[kind, model] = now
        return True

    def _warn_of_drift(self, model: str, distances: Collection[float]) -> None:
        """Warn of questions that differ from the training questions, at most once per minute."""
        if self._is_due("drift", model):
            drift, threshold = sum(distances) / len(distances), DRIFT_THRESHOLD
            if not 1 / threshold <= drift <= threshold:
                message = "the questions differ from the training questions: measure the gain again"
                log(logging.WARNING, message, model=model, drift=drift, threshold=threshold)

    def _show_price(self, decision: Decision) -> None:
        """Show the price now, and how far the mean cost of all requests is from the budget."""
        if decision.pacer is not None:
            self.metrics.set_gauge("price", decision.model, decision.session.price)
            self.metrics.set_gauge("debt", decision.model, decision.pacer.state.debt)

    def _show_drift(self, engine: Engine, decision: Decision) -> None:
        """Show how far the last requests are from the training questions."""
        virtual, model = engine.virtual, decision.model
        costs = self._request_costs.setdefault(model, deque(maxlen=WINDOW))
        costs.append(decision.cost)
        self.metrics.set_mean("request_cost_mean", model, costs)
        baseline = virtual.bundle.baseline
        if baseline is None or decision.question_source == "none" or not decision.features.size:
            return
        distance = float(baseline.measure_drift(decision.features[None, :])[0])
        distances = self._feature_distances.setdefault(model, deque(maxlen=WINDOW))
        distances.append(distance)
        if len(distances) >= MIN_DRIFT_REQUESTS:
            self.metrics.set_mean("feature_drift", model, distances)
            self._warn_of_drift(model, distances)
        first = [answer for answer in decision.session.answers if answer >= 0][:2]
        if len(first) == 2 and baseline.agreement > 0:  # noqa: PLR2004 - a pair
            agree = self._first_pairs_agree.setdefault(model, deque(maxlen=WINDOW))
            agree.append((first[0] == first[1]) / baseline.agreement)
            if len(agree) >= MIN_DRIFT_REQUESTS:
                self.metrics.set_mean("agreement_drift", model, agree)

    def _write(
        self,
        engine: Engine,
        decision: Decision,
        model: RequestModel,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Log a request; ``given`` values replace those of the decision."""
        if self._log is None:
            return
        record = _describe(engine, decision, model.calls, texts=self._log_texts)
        try:
            is_full = self._log.append({**record, **(given or {})})
        except OSError as error:
            self.calls.record_loss("decisions", self._log.directory, str(error))
            return
        if is_full and (self._compacting is None or self._compacting.done()):
            _log_failure(self._log.rotate)
            self._compacting = asyncio.ensure_future(
                asyncio.to_thread(_log_failure, self._log.compact_in_process)
            )


def _describe(
    engine: Engine, decision: Decision, calls: Sequence[CallUsage], *, texts: bool
) -> dict[str, Any]:
    """Return everything that is needed to decide again, and what it cost."""
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
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
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


def _log_failure(compact: Callable[[], object]) -> None:
    """Compact the log; a file that cannot be compacted stays as it is."""
    try:
        compact()
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        log(logging.ERROR, "the decision log could not be compacted", error=str(error))
