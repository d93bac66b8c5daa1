"""Spend: the stage that sums the account of a gateway's calls.

It only reads, also while the gateway runs.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from adacompute.core.errors import DataError
from adacompute.core.evidence import bound_mean, bound_quantile
from adacompute.core.types import FloatArray
from adacompute.evaluation.intervals import Interval
from adacompute.gateway.settings.config import DECISIONS
from adacompute.storage.calls import LOST, default_state, find_accounts, read_calls, sum_calls
from adacompute.storage.decisions import has_decisions, read_decisions

SAMPLES, COST, LATENCY = "samples_used", "cost", "latency_s"
"""Columns of decisions that are compared with those of requests that are answered as today."""

COLUMNS = (SAMPLES, COST, LATENCY, "model", "today", "answers")
P95 = 0.95
ENDS = ("", "_low", "_high")


def sum_spend(directory: Path | None = None) -> dict[str, Any]:
    """Sum the calls in a state directory by upstream model and purpose, and what was lost.

    Without one, it sums those of all gateways of this user that have no directory of their own.
    """
    lost = Counter(dict.fromkeys(LOST, 0))
    directories = find_accounts() if directory is None else [directory]
    if not directories:
        raise DataError(
            f"no gateway has recorded calls in {default_state('')}: give the state_directory of "
            "one, or set XDG_STATE_HOME as for the gateway"
        )
    calls = chain.from_iterable(read_calls(one, lost) for one in directories)
    spend = sum_calls(calls)
    savings = [row for one in directories for row in _measure_savings(one / DECISIONS)]
    named = list(map(str, directories))
    return {"directories": named, "spend": spend, "lost": dict(lost), "savings": savings}


def _measure_savings(log: Path) -> list[dict[str, Any]]:
    """Return what the policy of each model saves, where some requests are answered as today."""
    if not has_decisions(log):
        return []
    try:
        logged = read_decisions(log, COLUMNS)
    except DataError:  # of another version: the account can be summed without it
        return []
    if not pc.any(logged["today"]).as_py():
        return []
    rows: dict[str, dict[bool, list[dict[str, Any]]]] = {}
    for row in logged.to_pylist():
        if row["answers"]:
            kinds = rows.setdefault(row["model"], {True: [], False: []})
            kinds[bool(row["today"])].append(row)
    return [
        {"model": model, **_compare(kinds[True], kinds[False])}
        for model, kinds in sorted(rows.items())
        if kinds[True] and kinds[False]
    ]


def _compare(today: list[dict[str, Any]], policy: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the requests, means and the 95th percentile of both, with intervals for any look."""
    result: dict[str, Any] = {}
    for name, rows in (("today", today), ("policy", policy)):
        result[f"{name}_requests"] = len(rows)
        for column, bound in ((SAMPLES, bound_mean), (COST, bound_mean), (LATENCY, _bound_p95)):
            known = [row[column] for row in rows]
            if None in known:
                continue
            values = np.array(known, dtype=np.float64)
            centre = np.quantile(values, P95) if column == LATENCY else values.mean()
            low, high = bound(values)
            result |= Interval(float(centre), low, high).named(f"{name}_{column}")
    for column in (SAMPLES, COST):
        if f"today_{column}" in result and f"policy_{column}" in result:
            result |= _save(result, column)
    return {name: value if math.isfinite(value) else None for name, value in result.items()}


def _save(result: dict[str, Any], column: str) -> dict[str, float]:
    """Return the share that the policy saves of a mean, by the ends of both intervals."""
    before, before_low, before_high = (result[f"today_{column}{end}"] for end in ENDS)
    after, after_low, after_high = (result[f"policy_{column}{end}"] for end in ENDS)
    if before <= 0:
        return {}
    low = 1 - after_high / before_low if before_low > 0 else -math.inf
    high = 1 - max(0.0, after_low) / before_high
    return Interval(1 - after / before, low, high).named(f"saving_{column}")


def _bound_p95(values: FloatArray) -> tuple[float, float]:
    return bound_quantile(values, P95)
