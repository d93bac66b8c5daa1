"""Arm levels: which arms are efficient, and which are dominated by what.

Every number of samples of every arm has a mean cost and an accuracy. Those on the upper concave
hull are efficient: no mixture of others is as accurate at the same cost. The rest are dominated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import DataError
from adacompute.core.progress import no_progress
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate, probability_of_best
from adacompute.evaluation.intervals import Mean

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray
    from adacompute.evaluation.pool import Pool

CONFIDENCE = 0.95
P50, P95 = 50, 95


def list_arms(
    pool: Pool,
    names: Sequence[str],
    levels: Sequence[int],
    progress: Callable[[str], None] = no_progress,
) -> dict[str, Any]:
    """Return cost, accuracy and latency of every level of every arm, and which are efficient."""
    return {
        "questions": len(pool),
        "excluded": pool.n_excluded,
        "confidence": CONFIDENCE,
        "rows": describe_levels(pool, names, levels, progress),
    }


def describe_levels(
    pool: Pool,
    names: Sequence[str],
    levels: Sequence[int],
    progress: Callable[[str], None] = no_progress,
) -> list[dict[str, Any]]:
    """Return one row for each level of each arm of an equalised pool."""
    rows: list[dict[str, Any]] = []
    for arm, name in enumerate(names):
        progress(name)
        rows += _describe_arm(pool, arm, name, levels)
    if not rows:
        raise DataError(
            f"no arm has the {min(levels)} samples per question that the lowest level needs: "
            "give lower levels, or collect more samples"
        )
    mark_efficient(rows)
    return rows


def _describe_arm(pool: Pool, arm: int, name: str, levels: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row for each number of samples of an arm, as far as samples are recorded."""
    own = np.ones(len(pool.answers.answer), dtype=np.bool_) if pool.arm is None else pool.arm == arm
    one = pool.keep(own)
    kept = tuple(n for n in levels if n <= one.n_samples)
    if not kept:
        return []
    utility = estimate(one.answers, kept, standard_errors=False).utility
    cost = one.mean_sample_cost()
    rows = []
    for k, n in enumerate(kept):
        accuracy = Mean.of(utility[:, k], pool.group).interval(CONFIDENCE).clip(0.0, 1.0)
        p50, p95 = _latency(one, n)
        rows.append(
            {
                "arm": name,
                "samples": n,
                "cost": float(cost.mean()) * n,
                "accuracy": accuracy.value,
                "accuracy_low": accuracy.low,
                "accuracy_high": accuracy.high,
                "latency_p50_s": p50,
                "latency_p95_s": p95,
            }
        )
    return rows


def _latency(pool: Pool, n_samples: int) -> tuple[float | None, float | None]:
    """Return percentiles over questions of how long samples take that are drawn in parallel."""
    if pool.latency_s is None:
        return None, None
    slowest = np.empty(len(pool))
    for rows, index in pool.answers.groups():
        ranked = np.sort(pool.latency_s[index], axis=1)
        slowest[rows] = ranked @ probability_of_best(index.shape[1], n_samples)
    p50, p95 = np.percentile(slowest, [P50, P95])
    return float(p50), float(p95)


def mark_efficient(rows: list[dict[str, Any]]) -> None:
    """Mark the levels on the upper concave hull, and name what dominates each of the others.

    A level is dominated by the cheapest efficient one that is at least as accurate, if that does
    not cost more, else by the mixture of its two neighbours on the hull.
    """
    cost = np.array([row["cost"] for row in rows])
    accuracy = np.array([row["accuracy"] for row in rows])
    start, upgrades = envelope(UtilityTable(accuracy[None, :], cost[None, :]))
    hull = np.concatenate([start, upgrades.level])
    for i, row in enumerate(rows):
        row["efficient"] = i in hull
        row["dominated_by"] = None if i in hull else _dominating(rows, hull, cost, accuracy, i)


def _dominating(
    rows: list[dict[str, Any]], hull: IntArray, cost: FloatArray, accuracy: FloatArray, i: int
) -> str:
    """Return the name of the level or mixture that dominates a level."""
    better = [h for h in hull.tolist() if cost[h] <= cost[i] and accuracy[h] >= accuracy[i]]
    if better:
        return level_name(rows[min(better, key=lambda h: float(cost[h]))])
    after = next((k for k, h in enumerate(hull.tolist()) if cost[h] > cost[i]), len(hull) - 1)
    pair = hull[max(0, after - 1)], hull[after]
    return " + ".join(level_name(rows[h]) for h in pair)


def level_name(row: Mapping[str, Any]) -> str:
    """Return the name of a level: its arm, and how many samples if there are several.

    >>> level_name({"arm": "low", "samples": 4})
    'low × 4'
    """
    n_samples = row["samples"]
    return row["arm"] if n_samples == 1 else f"{row['arm']} × {n_samples}"
