"""Replays: what another budget would have done to what a gateway served.

Every logged decision is made again from what was known then: its features, its key, its draws in
the order in which they came. At the price it was made at the result is the same, bit for bit. A
higher price needs no draws that were not made; a lower one may, and those exist only where a
request was audited, so then only audited requests are used, and the answer says so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core import votes
from adacompute.core.errors import DataError
from adacompute.datasets.example import locate_policy
from adacompute.policies.bundle import Bundle, load_bundle
from adacompute.policies.episode import UNLIMITED_ROUNDS, Episode
from adacompute.policies.policy import SampleMatrix
from adacompute.report.wording import counted
from adacompute.storage.decisions import read_decisions

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

FEWEST = 5
"""Requests below which an interval says nothing."""


def replay_log(log: Path, bundle_path: Path, *, budget: float) -> dict[str, Any]:
    """Decide every logged request again at the price of another budget."""
    bundle = load_bundle(locate_policy(bundle_path))
    rows = _read_voted(log)
    price = bundle.price_for(budget)
    again, source = decide_again(bundle, rows, [price] * len(rows)), "all"
    if (again < 0).any():
        rows, source = [row for row in rows if row["audit"]], "audit"
        if not rows:
            raise DataError(
                f"a budget of {budget:g} wants draws that were never made, and the log has no "
                "audited requests: serve with an audit_share, or ask for a smaller budget"
            )
        again = decide_again(bundle, rows, [price] * len(rows))
    served = _served(rows, bundle)
    most = bundle.max_samples * bundle.sample_cost
    cost = np.asarray(again * bundle.sample_cost, dtype=np.float64)
    level, count = np.unique(again, return_counts=True)
    return {
        "requests": len(rows),
        "source": source,
        "budget": budget,
        "price": price,
        "cost": float(cost.mean()),
        "served_cost": served,
        "counterfactual": f"{counted(bundle.max_samples, 'sample')} for every request",
        **_interval("saved", np.asarray(1.0 - cost / most, dtype=np.float64)),
        "saved_of_served": 1.0 - float(cost.mean()) / served if served else None,
        **_interval("agreement", _agreements(rows, again)),
        "warning": _warn(rows, bundle),
        "shares": [
            {"samples": int(n), "share": float(c / len(rows))}
            for n, c in zip(level, count, strict=True)
        ],
    }


def _read_voted(log: Path) -> list[dict[str, Any]]:
    """Requests of a log that were voted on."""
    logged = read_decisions(log).to_pylist()
    rows = [row for row in logged if not row["shadow"] and row["answers"]]
    if rows:
        return rows
    told = f"{log} holds no request that was voted on"
    if shadows := sum(bool(row["shadow"]) for row in logged):
        told += (
            f", only {shadows} of shadow mode. Those hold one answer each and a lower bound of the "
            "samples that the policy would draw (samples_planned), which is not enough to replay "
            "them: serve without shadow, with an audit_share"
        )
    raise DataError(told)


def _served(rows: list[dict[str, Any]], bundle: Bundle) -> float | None:
    """Mean cost of what these requests were really served with; None where the log lacks it."""
    decided = [row["samples_used"] for row in rows]
    return None if None in decided else float(np.mean(decided)) * bundle.sample_cost


def _warn(rows: list[dict[str, Any]], bundle: Bundle) -> str | None:
    """Say that a log is another model's; names may differ for one model, so it is no refusal."""
    asked = sorted({row["upstream_model"] for row in rows} - {None, bundle.model})
    if not asked or bundle.model is None:
        return None
    return (
        f"the policy is for {bundle.model}, and the log holds answers of {', '.join(asked)}: "
        "unless these are names of one model, this says nothing"
    )


def decide_again(bundle: Bundle, rows: list[dict[str, Any]], prices: list[float]) -> IntArray:
    """Number of draws that each request stops at; −1 where it wants more than were made."""
    stopped = np.empty(len(rows), dtype=np.int64)
    for i, (row, price) in enumerate(zip(rows, prices, strict=True)):
        record = SampleMatrix(np.array([row["answers"]], dtype=np.int64))
        features = np.array([row["features"]], dtype=np.float32)
        episode = Episode.start(
            bundle.policy,
            price,
            key=np.array([row["key"]], dtype=np.uint64),
            features=bundle.policy.prepare_features(features),
            cost=bundle.level_cost,
            samples=record,
            max_rounds=row["max_rounds"] or UNLIMITED_ROUNDS,
        ).decide()
        stopped[i] = _follow(episode, record)
    return stopped


def _follow(episode: Episode, record: SampleMatrix) -> int:
    while len(episode.active):
        if int(episode.target[0]) > record.answer.shape[1]:
            return -1
        episode = episode.feed(record).decide()
    return int(episode.state.observed.n_samples[0])


def _agreements(rows: list[dict[str, Any]], again: IntArray) -> FloatArray:
    """Whether each audited request would be answered as all of its draws answer it."""
    agreed = []
    for row, size in zip(rows, again.tolist(), strict=True):
        if row["audit"] and size > 0:
            answers = np.array([row["answers"]])
            whole, part = votes.winner(answers)[0], votes.winner(answers[:, :size])[0]
            agreed.append(part >= 0 and answers[0, part] == answers[0, whole])
    return np.array(agreed, dtype=np.float64)


def _interval(name: str, values: FloatArray) -> dict[str, float | None]:
    """Mean over requests of a share, with its 95 % interval; None where too few say too little.

    Wilson's, with the variance of the values: it stays within 0 and 1, and is no point where all
    of a few requests agree.
    """
    names, size = (name, f"{name}_low", f"{name}_high"), len(values)
    if size < FEWEST:
        return dict.fromkeys(names) | {name: float(values.mean()) if size else None}
    mean, z = float(values.mean()), 1.96
    centre = (mean + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(values.var() / size + z**2 / (4 * size**2))
    return dict(zip(names, (mean, max(0.0, centre - half), min(1.0, centre + half)), strict=True))
