"""Limits: budgets on several costs at once, each with a price of its own.

Fix the price μ of the last cost: what remains is the same problem with one cost fewer and
utilities u − μ·c. Its optimum is convex and piecewise linear in μ, so the two tangents at a bracket
meet below the minimum and the search ends exactly at a corner. The two allocations that meet there
are mixed and then purified until at most as many questions are split as there are budgets.

It knows only the solver for one cost, and uses it as it is.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import ConfigError, InfeasibleBudget
from adacompute.core.oracle import solve
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
MAX_STEPS = 200


@dataclass(frozen=True, eq=False)
class _Mixed:
    """A randomised allocation: a level per question, and weights where there are several."""

    choice: IntArray
    weights: Mapping[int, Mapping[int, float]]
    prices: FloatArray


def solve_limits(table: UtilityTable, budget: float, limits: Mapping[str, float]) -> Allocation:
    """Choose levels within a budget on the cost and limits on the table's further costs.

    ``prices`` and ``costs`` of the result say by name what each budget is worth and what is spent.

    >>> table = UtilityTable(
    ...     np.array([[0.1, 0.9], [0.2, 0.8]]), np.array([1, 4]), extra_costs={"latency": [1, 2]}
    ... )
    >>> solve_limits(table, 4.0, {"latency": 1.5}).choice.tolist()
    [1, 0]
    """
    unknown = set(limits) - set(table.extra_costs)
    if unknown:
        raise ConfigError(
            f"there is no cost named {min(unknown)!r} to limit; "
            f"this table has {sorted(table.extra_costs) or 'none'}"
        )
    names = list(limits)
    bounds = np.array([budget, *(limits[name] for name in names)], dtype=np.float64)
    if not np.isfinite(bounds).all():
        raise ConfigError(f"budgets are finite numbers, not {bounds.tolist()}")
    of = [table.cost, *(table.extra_costs[name] for name in names)]
    costs = np.stack([np.broadcast_to(cost, table.utility.shape) for cost in of])
    for name, cost, bound, room in zip(
        ["cost", *names], costs, bounds, _totals(costs, bounds), strict=True
    ):
        least = sum_cost(cost.min(axis=1))
        if least > room:
            raise InfeasibleBudget(
                f"a mean budget of {bound:.9g} on {name} is below "
                f"{float(least / len(table)):.9g}, the least that every question costs: "
                "raise it or add a cheaper level"
            )
    mixed = _purify(table, costs, _solve_mixed(table, costs, bounds))
    return _settle(table, costs, bounds, mixed, names)


def _totals(costs: FloatArray, bounds: FloatArray) -> list[Fraction]:
    """Give what may be spent of each cost in total, in whole units of it."""
    units = [int(cost_units(float(cost.max(initial=0.0)))) for cost in costs]
    rooms = [Fraction(float(bound)) * costs.shape[1] for bound in bounds]
    return [Fraction(math.floor(r * u), u) for r, u in zip(rooms, units, strict=True)]


def _solve_one(table: UtilityTable, cost: FloatArray, bound: float) -> _Mixed:
    """Solve for the first cost alone."""
    found = solve(UtilityTable(table.utility, cost, table.key), bound)
    split = found.split
    weights = {
        int(q): {int(level): float(p)} | ({int(found.choice[q]): 1.0 - p} if p < 1 else {})
        for q, level, p in zip(split.question, split.level, split.probability, strict=True)
    }
    return _Mixed(found.choice, weights, np.array([found.price]))


def _solve_mixed(table: UtilityTable, costs: FloatArray, bounds: FloatArray) -> _Mixed:
    if len(costs) == 1:
        return _solve_one(table, costs[0], float(bounds[0]))
    last, bound = costs[-1], float(bounds[-1])
    dearest = float(last.max()) or 1.0
    floor = float(table.utility.min(axis=1).mean())
    near = TOLERANCE * float(np.abs(table.utility).max())

    def at(price: float) -> tuple[_Mixed, float, float]:
        """Inner optimum at a price, the dual there, and its slope."""
        inner = replace(table, utility=table.utility - price * last, extra_costs={})
        mixed = _solve_mixed(inner, costs[:-1], bounds[:-1])
        slope = bound - _mean(last, mixed)
        value = _mean(inner.utility, mixed) + price * bound
        value += float(mixed.prices @ (bounds[:-1] - [_mean(c, mixed) for c in costs[:-1]]))
        return replace(mixed, prices=np.append(mixed.prices, price)), value, slope

    low, high = 0.0, 1.0 / dearest
    under, value_low, slope_low = at(low)
    if slope_low >= 0:
        return under
    over, value_high, slope_high = at(high)
    while slope_high < 0:
        low, under, value_low, slope_low = high, over, value_high, slope_high
        high *= 2
        over, value_high, slope_high = at(high)
        if value_high < floor - 1.0:
            raise InfeasibleBudget(
                "no allocation meets all limits at once: raise one of them or add a cheaper level"
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
        if value <= corner + near:
            break
    mixed = _blend(under, over, share=slope_high / (slope_high - slope_low))
    return replace(mixed, prices=(under if value_low < value_high else over).prices)


def _mean(values: FloatArray, mixed: _Mixed) -> float:
    """Mean of a (N, K) quantity under a randomised allocation."""
    total = float(values[np.arange(len(values)), mixed.choice].sum())
    for q, weights in mixed.weights.items():
        total += sum(w * values[q, level] for level, w in weights.items())
        total -= values[q, mixed.choice[q]]
    return total / len(values)


def _blend(under: _Mixed, over: _Mixed, *, share: float) -> _Mixed:
    """Take ``under`` with probability ``share``, else ``over``."""
    touched = set(np.flatnonzero(under.choice != over.choice).tolist())
    touched |= set(under.weights) | set(over.weights)
    weights = {}
    for q in touched:
        parts: dict[int, float] = {}
        for mixed, weight in ((under, share), (over, 1.0 - share)):
            own = mixed.weights.get(q, {int(mixed.choice[q]): 1.0})
            for level, w in own.items():
                parts[level] = parts.get(level, 0.0) + weight * w
        weights[q] = {level: w for level, w in parts.items() if w > 0.0}
    return _Mixed(over.choice, weights, over.prices)


def _purify(table: UtilityTable, costs: FloatArray, mixed: _Mixed) -> _Mixed:
    """Shift weight along directions that change no mean until few questions are split."""
    choice = mixed.choice.copy()
    weights = {q: dict(w) for q, w in sorted(mixed.weights.items())}
    for q in [q for q, w in weights.items() if len(w) == 1]:
        choice[q] = next(iter(weights.pop(q)))
    while len(weights) > len(costs):
        few = list(itertools.islice(weights, len(costs) + 1))
        places = [(q, level) for q in few for level in weights[q]]
        row, column = np.array(places).T
        sums = np.array([[float(q == r) for q in row] for r in few])
        change = np.linalg.svd(np.vstack([sums, costs[:, row, column]]))[2][-1]
        if float(change @ table.utility[row, column]) < 0:
            change = -change
        at = np.array([weights[q][level] for q, level in places])
        room = np.divide(at, -change, out=np.full(len(at), np.inf), where=change < -TOLERANCE)
        new = at + room.min() * change
        new[int(room.argmin())] = 0.0
        for (q, level), w in zip(places, new.tolist(), strict=True):
            weights[q][level] = w
        for q in few:
            weights[q] = {level: w for level, w in weights[q].items() if w > 0.0}
            if len(weights[q]) == 1:
                choice[q] = next(iter(weights.pop(q)))
    return _Mixed(choice, weights, mixed.prices)


def _round(table: UtilityTable, costs: FloatArray, bounds: FloatArray, mixed: _Mixed) -> IntArray:
    """Give every split question the levels that are best together and overspend nothing."""
    rows = np.array(list(mixed.weights), dtype=np.int64)
    choice = mixed.choice.copy()
    fixed = np.delete(np.arange(len(table)), rows)
    spent = [sum_cost(cost[fixed, choice[fixed]]) for cost in costs]
    room = [total - used for total, used in zip(_totals(costs, bounds), spent, strict=True)]
    best = -np.inf
    for levels in itertools.product(range(table.n_levels), repeat=len(rows)):
        pick = np.array(levels, dtype=np.int64)
        value = float(table.utility[rows, pick].sum())
        extra = [sum_cost(cost[rows, pick]) for cost in costs]
        if value > best and all(e <= r for e, r in zip(extra, room, strict=True)):
            best, choice[rows] = value, pick
    return choice if best > -np.inf else _repair(table, costs, bounds, choice)


def _repair(
    table: UtilityTable, costs: FloatArray, bounds: FloatArray, choice: IntArray
) -> IntArray:
    """Move one question at a time, at the least loss for what it saves, until all limits hold."""
    rows = np.arange(len(table))
    dearest = costs.max(axis=(1, 2))[:, None, None]
    scale = np.where(dearest > 0, dearest, 1.0)
    while True:
        spent = [sum_cost(cost[rows, choice]) for cost in costs]
        totals = _totals(costs, bounds)
        over = [used - total for total, used in zip(totals, spent, strict=True)]
        if max(over) <= 0:
            return choice
        excess = np.array(over, dtype=np.float64)[:, None, None]
        after = excess + costs - costs[:, rows, choice][:, :, None]
        saved = ((np.maximum(excess, 0.0) - np.maximum(after, 0.0)) / scale).sum(axis=0)
        if not (saved > 0).any():
            raise InfeasibleBudget(
                "a mixture of levels meets all limits at once, but no choice of one level for each "
                "question was found that does: raise a limit or add a level cheaper in all of them"
            )
        loss = table.utility_of(choice)[:, None] - table.utility
        loss = np.divide(loss, saved, out=np.full_like(loss, np.inf), where=saved > 0)
        question, level = np.unravel_index(int(loss.argmin()), loss.shape)
        choice[question] = level


def _settle(
    table: UtilityTable, costs: FloatArray, bounds: FloatArray, mixed: _Mixed, names: list[str]
) -> Allocation:
    """Say what the mixture is worth, and its deterministic choice, which overspends nothing."""
    size = len(table)
    choice = _round(table, costs, bounds, mixed)
    weights = {int(q): {int(mixed.choice[q]): 1.0} for q in np.flatnonzero(choice != mixed.choice)}
    split = [
        (q, level, w)
        for q, own in {**weights, **mixed.weights}.items()
        for level, w in own.items()
        if level != choice[q]
    ]
    question, level, probability = np.array(split, dtype=np.float64).reshape(-1, 3).T
    means = [float(cost[np.arange(size), choice].mean()) for cost in costs]
    utility = float(table.utility[np.arange(size), choice].mean())
    net = table.utility - np.tensordot(mixed.prices, costs, axes=1)
    return Allocation(
        choice=choice,
        price=float(mixed.prices[0]),
        cost=means[0],
        utility=utility,
        bound=max(utility, float(net.max(axis=1).mean() + mixed.prices @ bounds)),
        split=Split(question.astype(np.int64), level.astype(np.int64), probability),
        mixed_cost=_mean(costs[0], mixed),
        mixed_utility=_mean(table.utility, mixed),
        prices=dict(zip(names, mixed.prices[1:].tolist(), strict=True)),
        costs=dict(zip(names, means[1:], strict=True)),
    )
