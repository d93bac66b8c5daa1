"""Solve: the stage that computes the best allocation of a budget, with a bound on its utility.

It reads the utility table of the run. The allocation knows the reference answers: it is what a
policy is compared with, not a policy.
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
from adacompute.storage.store import GRADES, SAMPLES, Run, encode_samples

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
) -> dict[str, Any]:
    """Compute the best allocation within a budget, and the proof of how good it is."""
    if limits and method != "exact":
        raise ConfigError(f"limits are solved by the method 'exact' only, not by {method!r}")
    place, prices = Run(run), read_token_prices(token_prices, [unit, *(limits or {})])
    arguments = {
        "budget": budget,
        "unit": unit,
        "limits": dict(limits or {}),
        "method": method,
        "prices": describe_token_prices(prices),
    }
    utility = place.read_table(UTILITY, stage="estimate", inputs=[SAMPLES, GRADES])
    inputs = place.hashes([SAMPLES, GRADES, UTILITY])
    done = place.find_finished("solve", arguments, inputs)
    if done:
        return done.result
    recorded = encode_samples(place.samples())
    names = [name for name in utility.column_names if name.startswith("utility_")]
    levels = tuple(int(name.removeprefix("utility_")) for name in names)
    table = UtilityTable(
        np.stack([np.asarray(utility[name]) for name in names], axis=1),
        level_costs(recorded, unit, levels, prices),
        recorded.key,
        extra_costs={name: level_costs(recorded, name, levels, prices) for name in limits or {}},
    )
    found = solve_limits(table, budget, limits) if limits else solve(table, budget, method=method)
    result = {**_describe(found, recorded.id, levels), "unit": unit}
    if limits:
        result["limits"] = {
            name: {"limit": limits[name], "price": found.prices[name], "cost": found.costs[name]}
            for name in limits
        }
    chosen = pa.table(
        {"question_id": recorded.id, "level": np.asarray(levels, dtype=np.int64)[found.choice]}
    )
    place.finish(
        "solve", arguments=arguments, inputs=inputs, outputs={ALLOCATION: chosen}, result=result
    )
    return result


def _describe(found: Allocation, ids: list[str], levels: tuple[int, ...]) -> dict[str, Any]:
    """Say what an allocation is, by the names of its levels and questions."""
    shares, split = found.shares(len(levels)), found.split
    return {
        "price": found.price,
        "cost": found.cost,
        "utility": found.utility,
        "bound": found.bound,
        "gap": found.gap,
        "shares": {str(level): float(share) for level, share in zip(levels, shares, strict=True)},
        "split": [
            {"question": ids[q], "level": levels[k], "probability": float(p)}
            for q, k, p in zip(split.question, split.level, split.probability, strict=True)
        ],
        "mixed_cost": found.mixed_cost,
        "mixed_utility": found.mixed_utility,
    }
