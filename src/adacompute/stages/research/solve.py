"""Solve: the stage that computes the best allocation of a budget, with a bound on its utility.

It reads the utility table of the run. The allocation uses the reference answers, so it is a bound
for policies and not a policy itself. With several arms, it chooses among all levels of all arms.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import Allocation, FloatArray, KeyArray, UtilityTable
from adacompute.evaluation.costs import describe_token_prices, level_costs
from adacompute.options.definition import takes
from adacompute.options.research import SolveOptions
from adacompute.spending.token_prices import TokenPriceList
from adacompute.stages.inputs import token_prices_of
from adacompute.stages.research.estimate import UTILITY
from adacompute.stages.research.solve_blocks import needs_blocks, solve_blocks
from adacompute.storage.store import GRADES, SAMPLES, Run, SampleSet

ALLOCATION = "allocation.parquet"


@takes(SolveOptions)
def solve_run(run: Path, options: SolveOptions) -> dict[str, Any]:
    """Compute the best allocation of a budget, and a bound on what any allocation reaches."""
    budget, unit = options.budget, options.unit
    store, prices = Run(run), token_prices_of(options, run)
    arguments = {
        "budget": budget,
        "unit": unit,
        "prices": describe_token_prices(prices),
    }
    store.check_table(UTILITY, stage="estimate", inputs=[SAMPLES, GRADES])
    inputs = store.hashes([SAMPLES, GRADES, UTILITY])
    finished = store.find_finished("solve", arguments, inputs)
    if finished:
        return finished.result
    if needs_blocks(store, UTILITY, is_supported=unit == "samples"):
        found = {**solve_blocks(store, UTILITY, ALLOCATION, budget), "unit": unit}
        store.finish_written(
            "solve", arguments=arguments, inputs=inputs, names=[ALLOCATION], result=found
        )
        return found
    result, chosen = _solve_in_memory(store, budget, unit, prices)
    store.finish(
        "solve", arguments=arguments, inputs=inputs, outputs={ALLOCATION: chosen}, result=result
    )
    return result


def _solve_in_memory(
    store: Run,
    budget: float,
    unit: str,
    prices: TokenPriceList | None,
) -> tuple[dict[str, Any], pa.Table]:
    """Return the result of the stage, and the level of each question."""
    utility = store.read_table(UTILITY, stage="estimate", inputs=[SAMPLES, GRADES])
    recorded = store.encoded_samples()
    names = [name for name in utility.column_names if name.startswith("utility_")]
    read = _read_arm_levels if len(recorded.arms) > 1 else _read_levels
    levels, key, costs = read(store, recorded, utility, names)
    table = UtilityTable(
        np.stack([np.asarray(utility[name]) for name in names], axis=1),
        costs(unit, prices),
        key,
    )
    allocation = solve(table, budget)
    ids = utility["question_id"].to_pylist()
    result = {**_describe(allocation, ids, levels), "unit": unit}
    return result, pa.table({"question_id": ids, "level": np.asarray(levels)[allocation.choice]})


Costs = Callable[[str, TokenPriceList | None], FloatArray]
"""The cost of each level in a unit: (K,), or (N, K) where questions cost differently."""

Levels = tuple[int, ...] | tuple[str, ...]


def _read_levels(
    _store: Run, recorded: SampleSet, _utility: pa.Table, names: list[str]
) -> tuple[Levels, KeyArray, Costs]:
    """Return the numbers of samples of the utility table, the questions and the costs."""
    levels = tuple(int(name.removeprefix("utility_")) for name in names)
    return levels, recorded.key, lambda unit, prices: level_costs(recorded, unit, levels, prices)


def _read_arm_levels(
    store: Run, recorded: SampleSet, utility: pa.Table, names: list[str]
) -> tuple[Levels, KeyArray, Costs]:
    """Return the levels of the utility table that are those of several arms, as ``_read_levels``.

    The table leaves out questions that have too few samples of some arm.
    """
    manifest = store.manifest("estimate")
    described = manifest.result["levels"] if manifest else []
    rows = np.flatnonzero(np.isin(recorded.id, utility["question_id"].to_pylist()))
    by_arm: dict[str, list[int]] = {}
    for row in described:
        by_arm.setdefault(row["arm"], []).append(row["samples"])
    parts = [
        (recorded.select_arm(recorded.arms.index(arm), rows), tuple(sizes))
        for arm, sizes in by_arm.items()
    ]

    def costs(unit: str, prices: TokenPriceList | None) -> FloatArray:
        shapes = [(len(rows), len(sizes)) for _, sizes in parts]
        found = [level_costs(one, unit, sizes, prices) for one, sizes in parts]
        return np.concatenate(
            [np.broadcast_to(c, shape) for c, shape in zip(found, shapes, strict=True)], axis=1
        )

    return tuple(name.removeprefix("utility_") for name in names), recorded.key[rows], costs


def _describe(allocation: Allocation, ids: list[str], levels: Levels) -> dict[str, Any]:
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
