"""Replay: the stage that repeats a gateway's logged decisions at another budget.

Every decision is repeated from what was known at the time: the features, the key and the samples in
the order in which they arrived. At the original price the result is identical, and requests that
were paced at the same budget keep their prices. A higher price needs no further samples. A lower
one may, and they exist only for audited requests; then only these are used, and the result says so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core import votes
from adacompute.core.errors import BundleError, DataError
from adacompute.datasets.example import locate_bundle
from adacompute.options.definition import takes
from adacompute.options.research import ReplayOptions
from adacompute.policies.bundles.bundle import Bundle, load_bundle
from adacompute.report.wording import format_count
from adacompute.sampling.blocks import decide
from adacompute.sampling.session import ParsedAnswer, Session
from adacompute.storage.decisions import read_decisions

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

NO_QUESTION = "none"
"""Source of the question of a request in which none was found."""

MIN_REQUESTS = 5
"""Minimum number of requests for an interval."""


@takes(ReplayOptions)
def replay_log(log: Path, options: ReplayOptions) -> dict[str, Any]:
    """Repeat the decision on every logged request at the price of another budget."""
    bundle_path, budget = options.bundle, options.budget
    bundle = load_bundle(locate_bundle(bundle_path))
    if bundle.draft is not None:
        raise BundleError(
            f"{bundle_path} decides by the uncertainty of drafts, which the log does not record: "
            "evaluate it on recorded samples instead"
        )
    rows, unanswered = _read_log(log)
    price = bundle.price_for(budget)
    n_samples, source = decide_again(bundle, rows, request_prices(bundle, rows, budget)), "all"
    if (n_samples < 0).any():
        rows, source = [row for row in rows if row["audit"]], "audit"
        if not rows:
            raise DataError(
                f"a budget of {budget:g} needs samples that were never drawn, and the log has no "
                "audited requests: set audit_share under [serve.models.NAME] in the gateway's "
                "configuration file and serve again, or replay a smaller budget"
            )
        n_samples = decide_again(bundle, rows, request_prices(bundle, rows, budget))
    served_cost = _served_cost(rows, bundle)
    max_cost = bundle.max_samples * bundle.sample_cost
    cost = np.asarray(n_samples * bundle.sample_cost, dtype=np.float64)
    level, count = np.unique(n_samples, return_counts=True)
    return {
        "requests": len(rows),
        "source": source,
        "budget": budget,
        "unit": bundle.unit,
        "price": price,
        "cost": float(cost.mean()),
        "served_cost": served_cost,
        "counterfactual": f"{format_count(bundle.max_samples, 'sample')} for every request",
        **_interval("saved", np.asarray(1.0 - cost / max_cost, dtype=np.float64)),
        "saved_of_served": 1.0 - float(cost.mean()) / served_cost if served_cost else None,
        **_interval("agreement", _agreements(rows, n_samples)),
        **_sum_unanswered(unanswered),
        "warning": _warn_of_model(rows, bundle),
        "shares": [
            {"samples": int(n), "share": float(c / len(rows))}
            for n, c in zip(level, count, strict=True)
        ],
    }


def _read_log(log: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the requests of a log that were voted on, and those that got no answer."""
    logged = read_decisions(log).to_pylist()
    served = [row for row in logged if not row["shadow"]]
    rows = [row for row in served if row["answers"]]
    if rows:
        return rows, [row for row in served if not row["answers"]]
    message = f"{log} holds no request that was voted on"
    if shadows := len(logged) - len(served):
        message += (
            f", only {shadows} of shadow mode. Those hold one answer each and a lower bound of the "
            "samples that the policy would draw (samples_planned), which is not enough to replay "
            "them: serve without shadow, and set audit_share under [serve.models.NAME] in the "
            "gateway's configuration file"
        )
    raise DataError(message)


def _sum_unanswered(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what requests without an answer used; they cannot be decided again."""
    costs = [row["cost"] for row in rows]
    return {
        "unanswered_requests": len(rows),
        "unanswered_samples": sum(row["samples_used"] for row in rows),
        "unanswered_cost": None if None in costs or not costs else math.fsum(costs),
    }


def _served_cost(rows: list[dict[str, Any]], bundle: Bundle) -> float | None:
    """Return the mean cost of these requests as served; None if the log lacks it."""
    used = [row["samples_used"] for row in rows]
    return None if None in used else float(np.mean(used)) * bundle.sample_cost


def _warn_of_model(rows: list[dict[str, Any]], bundle: Bundle) -> str | None:
    """Warn that a log is of another model; it is no error, as one model may have two names."""
    others = sorted({row["upstream_model"] for row in rows} - {None, bundle.model})
    if not others or bundle.model is None:
        return None
    return (
        f"the policy is for {bundle.model}, and the log holds answers of {', '.join(others)}: "
        "if these are different models, ignore this replay"
    )


def request_prices(bundle: Bundle, rows: list[dict[str, Any]], budget: float) -> list[float]:
    """Return the price of each request at a budget.

    Requests that were paced at this budget keep their own prices, which differ from each other.
    """
    price, pooled = bundle.price_for(budget), bundle.pooled_price_for(budget)
    paced = _paced_sources(rows, budget)
    return [
        row["price"]
        if row["question_source"] in paced and _is_served_at(row, budget)
        else (pooled if row["question_source"] == NO_QUESTION else price)
        for row in rows
    ]


def _paced_sources(rows: list[dict[str, Any]], budget: float) -> set[str]:
    """Return the sources of questions whose requests at a budget did not have a fixed price."""
    prices: dict[str, set[float]] = {}
    for row in rows:
        if _is_served_at(row, budget):
            prices.setdefault(row["question_source"], set()).add(row["price"])
    return {source for source, found in prices.items() if len(found) > 1}


def _is_served_at(row: dict[str, Any], budget: float) -> bool:
    return row["price"] is not None and math.isclose(row["budget"] or 0.0, budget)


def decide_again(bundle: Bundle, rows: list[dict[str, Any]], prices: list[float]) -> IntArray:
    """Return the number of samples of each request; −1 where more are needed than were drawn."""
    n_samples, pooled = np.full(len(rows), -1, dtype=np.int64), bundle.pooled or bundle
    active = {
        i: Session(
            pooled if row["question_source"] == NO_QUESTION else bundle,
            None,
            price=price,
            key=row["key"],
            features=np.array([row["features"]], dtype=np.float32),
            max_rounds=row["max_rounds"],
        )
        for i, (row, price) in enumerate(zip(rows, prices, strict=True))
    }
    while active:
        decide(session.progress for session in active.values())  # in blocks, which is fast
        for i, session in list(active.items()):
            if session.ask() is None or _ends_early(session, rows[i]):
                n_samples[i] = active.pop(i).n_samples
            elif session.n_planned > len(rows[i]["answers"]):
                del active[i]
            else:
                _tell(session, rows[i]["answers"], session.n_planned)
    return n_samples


def _ends_early(session: Session, row: dict[str, Any]) -> bool:
    """Whether the open request ends where it ended when it was served, before all samples came.

    There the deadline was over or the upstream failed, or the samples that were still missing
    could not change the answer. The session gets the samples up to that point.
    """
    n_served = row["samples_used"]
    if n_served is None or not session.n_samples <= n_served < session.n_planned:
        return False
    _tell(session, row["answers"], n_served)
    return bool(row["incomplete"]) or session.can_cancel


def _tell(session: Session, answers: list[int], n: int) -> None:
    """Tell a session its logged answers up to sample ``n``."""
    drawn = answers[session.n_samples : n]
    session.tell(ParsedAnswer(None if one < 0 else str(one)) for one in drawn)


def _agreements(rows: list[dict[str, Any]], n_samples: IntArray) -> FloatArray:
    """Return whether the answer to each audited request equals that of all its samples."""
    agreed = []
    for row, size in zip(rows, n_samples.tolist(), strict=True):
        if row["audit"] and size > 0:
            answers = np.array([row["answers"]])
            whole, part = votes.winner(answers)[0], votes.winner(answers[:, :size])[0]
            agreed.append(part >= 0 and answers[0, part] == answers[0, whole])
    return np.array(agreed, dtype=np.float64)


def _interval(name: str, values: FloatArray) -> dict[str, float | None]:
    """Return the mean of a share over requests with its 95 % interval, None for few requests.

    It is Wilson's interval with the variance of the values. It stays within 0 and 1, and has a
    positive width even if all values are equal.
    """
    names, size = (name, f"{name}_low", f"{name}_high"), len(values)
    if size < MIN_REQUESTS:
        return dict.fromkeys(names) | {name: float(values.mean()) if size else None}
    mean, z = float(values.mean()), 1.96
    centre = (mean + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(values.var() / size + z**2 / (4 * size**2))
    return dict(zip(names, (mean, max(0.0, centre - half), min(1.0, centre + half)), strict=True))
