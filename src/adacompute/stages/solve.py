"""Solve: the stage that computes the best allocation of a budget, with a bound on its utility.

It reads the utility table of the run. The allocation uses the reference answers, so it is a bound
for policies and not a policy itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from adacompute.core.errors import ConfigError
from adacompute.core.limits import solve_limits
from adacompute.core.oracle import solve
from adacompute.core.types import Allocation, UtilityTable
from adacompute.evaluation.costs import describe_token_prices, level_costs, read_token_prices
from adacompute.stages.estimate import UTILITY
from adacompute.storage.store import GRADES, SAMPLES, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOCATION = "allocation.parquet"


def solve_run(
    run: Path,
    *,
    budget: float,
    unit: str = "samples",
    limits: Mapping[str, float] | None = None,
    method: str = "exact",
    token_prices: Path | None = None,
    price_as: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Compute the best allocation of a budget, and a bound on what any allocation reaches."""
    if limits and method != "exact":
        raise ConfigError(f"limits need the method 'exact', got {method!r}")
    store, units = Run(run), [unit, *(limits or {})]
    prices = read_token_prices(token_prices, units, price_as, runs=[run])
    arguments = {
        "budget": budget,
        "unit": unit,
        "limits": dict(limits or {}),
        "method": method,
        "prices": describe_token_prices(prices),
    }
    utility = store.read_table(UTILITY, stage="estimate", inputs=[SAMPLES, GRADES])
    inputs = store.hashes([SAMPLES, GRADES, UTILITY])
    finished = store.find_finished("solve", arguments, inputs)
    if finished:
        return finished.result
    recorded = store.encoded_samples()
    names = [name for name in utility.column_names if name.startswith("utility_")]
    levels = tuple(int(name.removeprefix("utility_")) for name in names)
    table = UtilityTable(
        np.stack([np.asarray(utility[name]) for name in names], axis=1),
        level_costs(recorded, unit, levels, prices),
        recorded.key,
        extra_costs={name: level_costs(recorded, name, levels, prices) for name in limits or {}},
    )
    allocation = (
        solve_limits(table, budget, limits) if limits else solve(table, budget, method=method)
    )
    result = {**_describe(allocation, recorded.id, levels), "unit": unit}
    if limits:
        result["limits"] = _describe_limits(allocation, limits)
    chosen = pa.table(
        {"question_id": recorded.id, "level": np.asarray(levels, dtype=np.int64)[allocation.choice]}
    )
    store.finish(
        "solve", arguments=arguments, inputs=inputs, outputs={ALLOCATION: chosen}, result=result
    )
    return result


def _describe_limits(
    allocation: Allocation, limits: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    return {
        name: {"limit": limit, "price": allocation.prices[name], "cost": allocation.costs[name]}
        for name, limit in limits.items()
    }


def _describe(allocation: Allocation, ids: list[str], levels: tuple[int, ...]) -> dict[str, Any]:
    """Return an allocation as JSON, with the names of its levels and questions."""
    shares, split = allocation.shares(len(levels)), allocation.split
    return {
        "price": allocation.price,
        "cost": allocation.cost,
        "utility": allocation.utility,
        "bound": allocation.bound,
        "gap": allocation.gap,
        "shares": {str(level): float(share) for level, share in zip(levels, shares, strict=True)},
        "split": [
            {"question": ids[q], "level": levels[k], "probability": float(p)}
            for q, k, p in zip(split.question, split.level, split.probability, strict=True)
        ],
        "mixed_cost": allocation.mixed_cost,
        "mixed_utility": allocation.mixed_utility,
    }
