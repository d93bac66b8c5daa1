"""Paper oracle data: the data behind the tables and figures that show the oracle's choices.

The oracle's cost by price, gains by difficulty, shares of levels, levels against difficulty, the
bisection, and the effect of a price. Each is a pure function of a run's data. Where the paper
chooses and measures with the same samples, the result is also computed with separate halves. N
questions, K levels, P prices. It knows nothing of classifiers or plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from reproduction.bisection import Trace, bisect
from reproduction.run_data import (
    BUDGETS,
    MAIN_BUDGET,
    RunData,
    group_shares,
    never_rises,
    quantile_groups,
)
from reproduction.table_files import Row

N_PRICES = 240
MIN_PRICE = 1e-4
FIFTHS, TENTHS = 5, 10


@dataclass(frozen=True, eq=False)
class CostByPrice:
    """Mean cost of the oracle at each price, with both estimates of utilities, (P,)."""

    price: FloatArray
    windows: FloatArray
    exact: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per price."""
        return [
            {"price": float(p), "cost (windows)": float(w), "cost (subsets)": float(e)}
            for p, w, e in zip(self.price, self.windows, self.exact, strict=True)
        ]


def make_price_grid(table: UtilityTable) -> FloatArray:
    """Return prices from 0 to one at which every question gets the lowest level.

    Above 0 the ratio of neighbours is constant.
    """
    gain = float((table.utility.max(axis=1) - table.utility.min(axis=1)).max())
    step = float(np.diff(np.sort(table.costs[0])).min(initial=1.0)) or 1.0
    max_price = max(gain / step, 10 * MIN_PRICE) * 1.1
    return np.concatenate([[0.0], np.geomspace(MIN_PRICE, max_price, N_PRICES)])


def oracle_cost(table: UtilityTable, prices: FloatArray) -> FloatArray:
    """Mean cost of the oracle's choice at each price (Eq. 6)."""
    return np.array([table.cost_of(choose(table, price)).mean() for price in prices.tolist()])


def trace_cost(run: RunData) -> CostByPrice:
    """Compute the oracle's mean cost along a grid of prices."""
    price = make_price_grid(run.window_table)
    windows, exact = (oracle_cost(table, price) for table in (run.window_table, run.exact_table))
    return CostByPrice(price, windows, exact)


@dataclass(frozen=True, eq=False)
class DifficultyGains:
    """Accuracy at the lowest and the highest level by band, and the gain of voting.

    ``rows`` has both estimates. ``gain`` and ``standard_error`` are over all subsets, of samples
    that did not define the bands.
    """

    names: tuple[str, ...]
    is_recorded: bool
    gain: FloatArray
    standard_error: FloatArray
    rows: list[Row]


def measure_difficulties(run: RunData) -> DifficultyGains:
    """Measure the gain of voting in each band of difficulty."""
    bands, exact = run.bands, run.exact_table
    levels = run.levels
    if not bands.is_recorded:
        exact, levels = run.half_tables[1], run.half_levels
    rows: list[Row] = []
    gains, errors = [], []
    for b, name in enumerate(bands.names):
        in_band = bands.band == b
        windows, utility = run.window_table.utility[in_band], exact.utility[in_band]
        gain = utility[:, -1] - utility[:, 0]
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
        gains.append(float(gain.mean()) if len(gain) else 0.0)
        errors.append(error)
        rows.append(
            {
                "difficulty": name,
                "questions": int(in_band.sum()),
                f"level {run.levels[0]} (windows)": float(windows[:, 0].mean()),
                f"level {run.levels[-1]} (windows)": float(windows[:, -1].mean()),
                "gain (windows)": float((windows[:, -1] - windows[:, 0]).mean()),
                f"level {levels[0]} (subsets)": float(utility[:, 0].mean()),
                f"level {levels[-1]} (subsets)": float(utility[:, -1].mean()),
                "gain (subsets)": gains[-1],
                "standard error": error,
            }
        )
    return DifficultyGains(bands.names, bands.is_recorded, np.array(gains), np.array(errors), rows)


@dataclass(frozen=True, eq=False)
class LevelShares:
    """Share of questions at each of the oracle's levels, (budgets, K), and its cost, (budgets, 2).

    Both are computed with utilities from windows and over all subsets.
    """

    budgets: tuple[float, ...]
    levels: tuple[int, ...]
    windows: FloatArray
    exact: FloatArray
    cost: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per budget and estimator."""
        return [
            {
                "B": budget,
                "utilities": name,
                **{f"level {level}": float(shares[i, k]) for k, level in enumerate(self.levels)},
                "cost": float(self.cost[i, j]),
            }
            for i, budget in enumerate(self.budgets)
            for j, (name, shares) in enumerate((("windows", self.windows), ("subsets", self.exact)))
        ]


def count_levels(run: RunData, budgets: tuple[float, ...] = BUDGETS) -> LevelShares:
    """Count the oracle's levels at each budget."""
    tables = (run.window_table, run.exact_table)
    solved = [[solve(table, budget) for table in tables] for budget in budgets]
    n_levels = len(run.levels)
    return LevelShares(
        budgets=budgets,
        levels=run.levels,
        windows=np.stack([windows.shares(n_levels) for windows, _ in solved]),
        exact=np.stack([exact.shares(n_levels) for _, exact in solved]),
        cost=np.array([[one.cost for one in both] for both in solved]),
    )


@dataclass(frozen=True, eq=False)
class GroupedLevels:
    """The oracle's levels in groups of questions by difficulty, hardest first.

    ``accuracy`` (tenths,) and ``tenth_cost`` (budgets, tenths) are the mean accuracy of one sample
    and the mean cost in tenths of the questions. ``shares`` (budgets, fifths, K) and ``cost``
    (budgets, fifths) are the levels and the mean cost in fifths.
    """

    levels: tuple[int, ...]
    accuracy: FloatArray
    tenth_cost: FloatArray
    shares: FloatArray
    cost: FloatArray


@dataclass(frozen=True, eq=False)
class LevelScatter:
    """The oracle's levels against difficulty, at each budget.

    ``single`` (N,) is the accuracy of one sample, ``gain`` (N,) the largest gain of voting, and
    ``chosen`` (budgets, N) the oracle's level. ``same`` chooses levels and sorts questions with the
    same samples, ``other`` chooses with one half and sorts with the other.
    """

    budgets: tuple[float, ...]
    single: FloatArray
    gain: FloatArray
    chosen: IntArray
    same: GroupedLevels
    other: GroupedLevels

    @property
    def rows(self) -> list[Row]:
        """One row per budget, way to sort and fifth."""
        rows: list[Row] = []
        for i, budget in enumerate(self.budgets):
            for name, groups in (("same samples", self.same), ("other half", self.other)):
                for part in range(FIFTHS):
                    row: Row = {"B": budget, "sorted by": name, "fifth": part + 1}
                    row |= {
                        f"level {n}": float(groups.shares[i, part, k])
                        for k, n in enumerate(groups.levels)
                    }
                    rows.append(row | {"mean cost": float(groups.cost[i, part])})
        return rows


def scatter_levels(run: RunData, budgets: tuple[float, ...] = BUDGETS) -> LevelScatter:
    """Relate the oracle's levels to the accuracy of one sample."""
    table, (half, other) = run.window_table, run.half_tables
    single = table.utility[:, 0]
    choices = [solve(table, budget).choice for budget in budgets]
    half_choices = [solve(half, budget).choice for budget in budgets]
    return LevelScatter(
        budgets=budgets,
        single=single,
        gain=table.utility.max(axis=1) - single,
        chosen=np.asarray(run.levels)[np.stack(choices)],
        same=_group_levels(run.levels, table, choices, single),
        other=_group_levels(run.half_levels, half, half_choices, other.utility[:, 0]),
    )


def _group_levels(
    levels: tuple[int, ...], table: UtilityTable, choices: list[IntArray], accuracy: FloatArray
) -> GroupedLevels:
    """Sort questions by the accuracy of one sample and summarise their levels."""
    tenth, fifth = quantile_groups(accuracy, TENTHS), quantile_groups(accuracy, FIFTHS)
    costs = [table.cost_of(choice) for choice in choices]
    return GroupedLevels(
        levels=levels,
        accuracy=_group_means(tenth, TENTHS, accuracy),
        tenth_cost=np.stack([_group_means(tenth, TENTHS, cost) for cost in costs]),
        shares=np.stack([group_shares(fifth, FIFTHS, c, table.n_levels) for c in choices]),
        cost=np.stack([_group_means(fifth, FIFTHS, cost) for cost in costs]),
    )


def _group_means(group: IntArray, n_groups: int, values: FloatArray) -> FloatArray:
    """Mean of each group; 0 where it is empty."""
    total = np.bincount(group, values, minlength=n_groups)
    return np.asarray(total / np.maximum(1, np.bincount(group, minlength=n_groups)))


@dataclass(frozen=True, eq=False)
class Bisection:
    """The paper's search for the price of each budget: its steps, and its results."""

    budgets: tuple[float, ...]
    traces: tuple[Trace, ...]
    cost_by_price: CostByPrice
    rows: list[Row]


def bisect_prices(run: RunData, budgets: tuple[float, ...] = BUDGETS) -> Bisection:
    """Find the price of each budget by bisection, as the paper does, and exactly."""
    table, cost_by_price = run.window_table, trace_cost(run)
    rows: list[Row] = []
    traces = []
    for budget in budgets:
        (bisected, trace), exact = bisect(table, budget), solve(table, budget)
        traces.append(trace)
        rows.append(
            {
                "B": budget,
                "price (bisection)": bisected.price,
                "cost (bisection)": bisected.cost,
                "|cost − B|": abs(bisected.cost - budget),
                "steps": len(trace.middle),
                "monotone": never_rises(cost_by_price.windows),
                "price (exact)": exact.price,
                "cost (exact)": exact.cost,
                "cost with one question split": exact.mixed_cost,
                "duality gap": exact.gap,
            }
        )
    return Bisection(budgets, tuple(traces), cost_by_price, rows)


@dataclass(frozen=True, eq=False)
class PriceEffect:
    """The effect of the price on each question's level, (N, P), and on their shares, (P, K).

    ``net`` (3, K) is utility minus price × cost of one question at three prices.
    """

    levels: tuple[int, ...]
    price: FloatArray
    choice: IntArray
    single: FloatArray
    shares: FloatArray
    question: int
    question_id: str
    prices: tuple[float, ...]
    net: FloatArray

    @property
    def transitions(self) -> IntArray:
        """Indices of the prices at which the question in detail changes level."""
        return np.flatnonzero(np.diff(self.choice[self.question])) + 1

    @property
    def rows(self) -> list[Row]:
        """One row per price, with the level of the question that is shown in detail."""
        rows: list[Row] = []
        for p, price in enumerate(self.price.tolist()):
            row: Row = {"price": price}
            row[f"level of {self.question_id}"] = self.levels[self.choice[self.question, p]]
            row |= {f"level {n}": float(self.shares[p, k]) for k, n in enumerate(self.levels)}
            rows.append(row)
        return rows


def trace_price_effect(run: RunData) -> PriceEffect:
    """Follow every question along the prices, and in detail the one that changes level most."""
    table = run.window_table
    price = make_price_grid(table)
    choice = np.stack([choose(table, p) for p in price.tolist()], axis=1)
    n_changes = (np.diff(choice, axis=1) != 0).sum(axis=1)
    gain = table.utility.max(axis=1) - table.utility[:, 0]
    question = int(np.lexsort((gain, n_changes))[-1])
    changes = price[1:][np.diff(choice[question]) != 0]
    main = solve(table, MAIN_BUDGET).price
    if len(changes):
        between = float(np.sqrt(changes[0] * changes[-1]))
        prices = (float(changes[0]) / 3, between, float(changes[-1]) * 1.5)
    else:
        prices = (0.0, main, 2 * main + MIN_PRICE)
    costs = table.costs[question]
    return PriceEffect(
        levels=run.levels,
        price=price,
        choice=choice,
        single=table.utility[:, 0],
        shares=np.stack(
            [np.bincount(column, minlength=table.n_levels) / len(table) for column in choice.T]
        ),
        question=question,
        question_id=run.ids[question],
        prices=prices,
        net=np.stack([table.utility[question] - p * costs for p in prices]),
    )
