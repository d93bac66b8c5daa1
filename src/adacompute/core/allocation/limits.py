"""Limits: budgets on several costs at once, each with its own price.

For a fixed price μ of the last cost, the problem has one cost fewer and utilities u − μ·c. Its
optimum is convex and piecewise linear in μ. The two tangents at the ends of a bracket meet below
the minimum, so the search ends exactly at a corner. The two allocations that meet there are mixed,
and then purified until at most as many questions are split as there are budgets.

This module uses the solver for one cost and knows nothing about how it works.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import ConfigError, InfeasibleBudget
from adacompute.core.types import (
    Allocation,
    FloatArray,
    IntArray,
    Split,
    UtilityTable,
    cost_units,
    sum_cost,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE = 1e-12
"""Relative differences below this are rounding errors."""

MAX_STEPS = 200
"""Steps of the search for one price."""


@dataclass(frozen=True, eq=False)
class _Mixed:
    """A randomised allocation: the probability of every level, (N, K), and one of the levels."""

    choice: IntArray
    weights: FloatArray
    prices: FloatArray


def solve_limits(table: UtilityTable, budget: float, limits: Mapping[str, float]) -> Allocation:
    """Choose levels within a budget on the cost and limits on extra costs of the table.

    ``prices`` and ``costs`` of the result are the price and the mean of each extra cost, by name.

    >>> table = UtilityTable(
    ...     np.array([[0.1, 0.9], [0.2, 0.8]]), np.array([1, 4]), extra_costs={"latency": [1, 2]}
    ... )
    >>> solve_limits(table, 4.0, {"latency": 1.5}).choice.tolist()
    [1, 0]
    """
    unknown = set(limits) - set(table.extra_costs)
    if unknown:
        raise ConfigError(
            f"there is no extra cost {min(unknown)!r} to limit: "
            f"this table has {sorted(table.extra_costs) or 'none'}"
        )
    names = list(limits)
    bounds = np.array([budget, *(limits[name] for name in names)], dtype=np.float64)
    if not np.isfinite(bounds).all():
        raise ConfigError(f"budget and limits must be finite numbers, got {bounds.tolist()}")
    tables = [table.cost, *(table.extra_costs[name] for name in names)]
    costs = np.stack([np.broadcast_to(cost, table.utility.shape) for cost in tables])
    totals = _totals(costs, bounds)
    for name, cost, bound, total in zip(["cost", *names], costs, bounds, totals, strict=True):
        cheapest = sum_cost(cost.min(axis=1))
        if cheapest > total:
            raise InfeasibleBudget(
                f"a mean budget of {bound:.9g} on {name} is below "
                f"{float(cheapest / len(table)):.9g}, the mean of every question's cheapest level: "
                "raise it or add a cheaper level"
            )
    mixed = _purify(table, costs, _solve_mixed(table, costs, bounds))
    return _finish(table, costs, bounds, mixed, names)


def _totals(costs: FloatArray, bounds: FloatArray) -> list[Fraction]:
    """Return the total that may be spent of each cost, rounded down to a whole number of units."""
    units = [int(cost_units(float(cost.max(initial=0.0)))) for cost in costs]
    rooms = [Fraction(float(bound)) * costs.shape[1] for bound in bounds]
    return [Fraction(math.floor(r * u), u) for r, u in zip(rooms, units, strict=True)]


def _solve_one(table: UtilityTable, cost: FloatArray, bound: float) -> _Mixed:
    """Solve with the first cost only."""
    found = solve(UtilityTable(table.utility, cost, table.key), bound)
    split, weights = found.split, np.zeros(table.utility.shape)
    weights[np.arange(len(table)), found.choice] = 1.0
    weights[split.question, found.choice[split.question]] -= split.probability
    weights[split.question, split.level] += split.probability
    return _Mixed(found.choice, weights, np.array([found.price]))


def _solve_mixed(table: UtilityTable, costs: FloatArray, bounds: FloatArray) -> _Mixed:
    if len(costs) == 1:
        return _solve_one(table, costs[0], float(bounds[0]))
    last, bound = costs[-1], float(bounds[-1])
    max_cost = float(last.max()) or 1.0
    min_utility = float(table.utility.min(axis=1).mean())
    tolerance = TOLERANCE * float(np.abs(table.utility).max())

    def at(price: float) -> tuple[_Mixed, float, float]:
        """Return the inner optimum at a price, the dual there, and the slope of the dual."""
        inner = replace(table, utility=table.utility - price * last, extra_costs={})
        mixed = _solve_mixed(inner, costs[:-1], bounds[:-1])
        slope = bound - _mean(last, mixed)
        value = _mean(inner.utility, mixed) + price * bound
        value += float(mixed.prices @ (bounds[:-1] - [_mean(c, mixed) for c in costs[:-1]]))
        return replace(mixed, prices=np.append(mixed.prices, price)), value, slope

    low, high = 0.0, 1.0 / max_cost
    under, value_low, slope_low = at(low)
    if slope_low >= 0:
        return under
    over, value_high, slope_high = at(high)
    while slope_high < 0:
        low, under, value_low, slope_low = high, over, value_high, slope_high
        high *= 2
        over, value_high, slope_high = at(high)
        if value_high < min_utility - 1.0:
            raise InfeasibleBudget(
                "no allocation is within all limits: raise one of them or add a cheaper level"
            )
    for _ in range(MAX_STEPS):
        if slope_high == 0:
            return over
        rise = value_high - value_low + slope_low * low - slope_high * high
        price = rise / (slope_low - slope_high)
        corner = value_low + slope_low * (price - low)
        if not low < price < high:
            break
        middle, value, slope = at(price)
        if slope < 0:
            low, under, value_low, slope_low = price, middle, value, slope
        else:
            high, over, value_high, slope_high = price, middle, value, slope
        if value <= corner + tolerance:
            break
    share = slope_high / (slope_high - slope_low)
    blend = share * under.weights + (1.0 - share) * over.weights
    weights = np.where(under.weights == over.weights, over.weights, blend)
    return _Mixed(over.choice, weights, (under if value_low < value_high else over).prices)


def _mean(values: FloatArray, mixed: _Mixed) -> float:
    """Return the mean of an (N, K) quantity under a randomised allocation."""
    return float((values * mixed.weights).sum()) / len(values)


def _purify(table: UtilityTable, costs: FloatArray, mixed: _Mixed) -> _Mixed:
    """Shift weights, without changing any mean cost, until few questions are split."""
    choice, weights = mixed.choice.copy(), mixed.weights.copy()
    n_levels = (weights > 0).sum(axis=1)
    whole, split = n_levels == 1, np.flatnonzero(n_levels > 1)
    choice[whole] = weights[whole].argmax(axis=1)
    while len(split) > len(costs):
        few = split[: len(costs) + 1]
        at, column = np.nonzero(weights[few])
        row = few[at]
        sums = (few[:, None] == row).astype(np.float64)
        change = np.linalg.svd(np.vstack([sums, costs[:, row, column]]))[2][-1]
        if float(change @ table.utility[row, column]) < 0:
            change = -change
        old = weights[row, column]
        room = np.divide(old, -change, out=np.full(len(old), np.inf), where=change < -TOLERANCE)
        new = old + room.min() * change
        new[int(room.argmin())] = 0.0
        weights[row, column] = np.maximum(new, 0.0)
        whole = (weights[few] > 0).sum(axis=1) == 1
        choice[few[whole]] = weights[few[whole]].argmax(axis=1)
        split = np.concatenate([few[~whole], split[len(few) :]])
    whole = np.delete(np.arange(len(table)), split)
    weights[whole] = np.arange(table.n_levels) == choice[whole, None]
    return _Mixed(choice, weights, mixed.prices)


def _round(
    table: UtilityTable, costs: FloatArray, totals: list[Fraction], mixed: _Mixed
) -> IntArray:
    """Replace split questions by the best combination of single levels that overspends nothing."""
    rows = np.flatnonzero((mixed.weights > 0).sum(axis=1) > 1)
    choice = mixed.choice.copy()
    fixed = np.delete(np.arange(len(table)), rows)
    spent = [sum_cost(cost[fixed, choice[fixed]]) for cost in costs]
    room = [total - used for total, used in zip(totals, spent, strict=True)]
    best = -np.inf
    for levels in itertools.product(range(table.n_levels), repeat=len(rows)):
        pick = np.array(levels, dtype=np.int64)
        value = float(table.utility[rows, pick].sum())
        extra = [sum_cost(cost[rows, pick]) for cost in costs]
        if value > best and all(e <= r for e, r in zip(extra, room, strict=True)):
            best, choice[rows] = value, pick
    return choice if best > -np.inf else _repair(table, costs, totals, choice)


def _repair(
    table: UtilityTable, costs: FloatArray, totals: list[Fraction], choice: IntArray
) -> IntArray:
    """Move one question at a time, with the smallest loss per saving, until all limits hold."""
    rows = np.arange(len(table))
    max_costs = costs.max(axis=(1, 2))[:, None, None]
    scale = np.where(max_costs > 0, max_costs, 1.0)
    while True:
        spent = [sum_cost(cost[rows, choice]) for cost in costs]
        over = [used - total for total, used in zip(totals, spent, strict=True)]
        if max(over) <= 0:
            return choice
        excess = np.array(over, dtype=np.float64)[:, None, None]
        after = excess + costs - costs[:, rows, choice][:, :, None]
        saved = ((np.maximum(excess, 0.0) - np.maximum(after, 0.0)) / scale).sum(axis=0)
        if not (saved > 0).any():
            raise InfeasibleBudget(
                "a mixture of levels is within all limits, but no choice of one level per question "
                "was found that is: raise a limit or add a level that is cheaper in all costs"
            )
        loss = table.utility_of(choice)[:, None] - table.utility
        loss = np.divide(loss, saved, out=np.full_like(loss, np.inf), where=saved > 0)
        question, level = np.unravel_index(int(loss.argmin()), loss.shape)
        choice[question] = level


def _finish(
    table: UtilityTable, costs: FloatArray, bounds: FloatArray, mixed: _Mixed, names: list[str]
) -> Allocation:
    """Round the mixture to a deterministic choice, and compute the means of both."""
    choice = _round(table, costs, _totals(costs, bounds), mixed)
    rows, others = np.arange(len(table)), mixed.weights.copy()
    others[rows, choice] = 0.0
    question, level = np.nonzero(others)
    means = [float(cost[rows, choice].mean()) for cost in costs]
    utility = float(table.utility_of(choice).mean())
    net = table.utility - np.tensordot(mixed.prices, costs, axes=1)
    return Allocation(
        choice=choice,
        price=float(mixed.prices[0]),
        cost=means[0],
        utility=utility,
        bound=max(utility, float(net.max(axis=1).mean() + mixed.prices @ bounds)),
        split=Split(question, level, others[question, level]),
        mixed_cost=_mean(costs[0], mixed),
        mixed_utility=_mean(table.utility, mixed),
        prices=dict(zip(names, mixed.prices[1:].tolist(), strict=True)),
        costs=dict(zip(names, means[1:], strict=True)),
    )
