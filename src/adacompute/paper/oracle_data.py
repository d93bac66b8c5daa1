"""Paper oracle: the data behind the tables and figures that show what the oracle does.

Scaling curves, the staircase of costs, gains by difficulty, labels, the scatter over difficulty,
the bisection and the mechanism of a price. Each is a pure function of a subject; where the paper
chooses and looks at the same samples, what the other half of the samples says stands beside it.
N questions, K levels, P prices. It knows nothing of classifiers or of drawing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.answers import Answers
from adacompute.core.oracle import solve
from adacompute.core.types import FloatArray, IntArray, Trace, UtilityTable
from adacompute.core.upgrades import choose
from adacompute.core.utility import estimate
from adacompute.paper.archetypes import sort_archetypes
from adacompute.paper.subject import (
    BUDGETS,
    MIDDLE,
    Subject,
    cut_evenly,
    falls,
    shares_by,
)
from adacompute.report.table_files import Row

PRICES = 240
LEAST_PRICE = 1e-4
PARTS, FINE_PARTS = 5, 10


@dataclass(frozen=True, eq=False)
class Scaling:
    """Curves of one question of each archetype, (archetypes, K), with standard errors."""

    names: tuple[str, ...]
    ids: tuple[str, ...]
    question: IntArray
    levels: tuple[int, ...]
    windows: FloatArray
    exact: FloatArray
    error: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a question and level."""
        return [
            {
                "archetype": name,
                "question": self.ids[i],
                "level": level,
                "windows": float(self.windows[i, k]),
                "exact": float(self.exact[i, k]),
                "standard error": None if np.isnan(self.error[i, k]) else float(self.error[i, k]),
            }
            for i, name in enumerate(self.names)
            for k, level in enumerate(self.levels)
        ]


def trace_scaling(subject: Subject) -> Scaling:
    """Take the question nearest to the middle of each archetype."""
    sorted_ = sort_archetypes(subject.exact.utility)
    away = np.linalg.norm(subject.exact.utility - sorted_.centre[sorted_.cluster], axis=1)
    nearest = [
        int(np.flatnonzero(sorted_.cluster == c)[away[sorted_.cluster == c].argmin()])
        for c in range(len(sorted_.names))
    ]
    question = np.array(nearest, dtype=np.int64)
    answers: Answers = subject.pool.answers.take(question)
    found = estimate(answers, subject.levels)
    return Scaling(
        names=sorted_.names,
        ids=tuple(subject.ids[i] for i in nearest),
        question=question,
        levels=subject.levels,
        windows=subject.windows.utility[question],
        exact=found.utility,
        error=found.standard_error,
    )


@dataclass(frozen=True, eq=False)
class Staircase:
    """Mean cost of the oracle at each price, by windows and over all subsets, (P,)."""

    price: FloatArray
    windows: FloatArray
    exact: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a price."""
        return [
            {"price": float(p), "cost by windows": float(w), "cost over subsets": float(e)}
            for p, w, e in zip(self.price, self.windows, self.exact, strict=True)
        ]


def spread_prices(table: UtilityTable) -> FloatArray:
    """Prices from none to the one above which nobody buys, evenly by ratio."""
    gain = float((table.utility.max(axis=1) - table.utility.min(axis=1)).max())
    step = float(np.diff(np.sort(table.costs[0])).min(initial=1.0)) or 1.0
    most = max(gain / step, 10 * LEAST_PRICE) * 1.1
    return np.concatenate([[0.0], np.geomspace(LEAST_PRICE, most, PRICES)])


def cost_at(table: UtilityTable, prices: FloatArray) -> FloatArray:
    """Mean cost of the oracle's choice at each price (Eq. 6)."""
    return np.array([table.cost_of(choose(table, price)).mean() for price in prices.tolist()])


def climb_staircase(subject: Subject) -> Staircase:
    """Walk the prices and look at what the oracle spends."""
    price = spread_prices(subject.windows)
    return Staircase(price, cost_at(subject.windows, price), cost_at(subject.exact, price))


@dataclass(frozen=True, eq=False)
class ByDifficulty:
    """Accuracy at the lowest and the highest level by band, and what voting adds.

    ``rows`` holds both estimates; ``gain`` and ``error`` are over all subsets, of samples that did
    not tell the bands.
    """

    names: tuple[str, ...]
    recorded: bool
    gain: FloatArray
    error: FloatArray
    rows: list[Row]


def measure_difficulties(subject: Subject) -> ByDifficulty:
    """Measure what voting adds in each band of difficulty."""
    bands, fair = subject.bands, subject.exact
    levels = subject.levels
    if not bands.recorded:
        fair, levels = subject.halves[1], subject.half_levels
    rows: list[Row] = []
    gains, errors = [], []
    for b, name in enumerate(bands.names):
        mine = bands.band == b
        paper, worth = subject.windows.utility[mine], fair.utility[mine]
        gain = worth[:, -1] - worth[:, 0]
        error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
        gains.append(float(gain.mean()) if len(gain) else 0.0)
        errors.append(error)
        rows.append(
            {
                "difficulty": name,
                "questions": int(mine.sum()),
                f"level {subject.levels[0]} (windows)": float(paper[:, 0].mean()),
                f"level {subject.levels[-1]} (windows)": float(paper[:, -1].mean()),
                "gain (windows)": float((paper[:, -1] - paper[:, 0]).mean()),
                f"level {levels[0]} (subsets)": float(worth[:, 0].mean()),
                f"level {levels[-1]} (subsets)": float(worth[:, -1].mean()),
                "gain (subsets)": gains[-1],
                "standard error": error,
            }
        )
    return ByDifficulty(bands.names, bands.recorded, np.array(gains), np.array(errors), rows)


@dataclass(frozen=True, eq=False)
class Labels:
    """Share of questions at each level, (budgets, K), by windows and over all subsets."""

    budgets: tuple[float, ...]
    levels: tuple[int, ...]
    windows: FloatArray
    exact: FloatArray
    cost: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a budget and estimator."""
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


def count_labels(subject: Subject, budgets: tuple[float, ...] = BUDGETS) -> Labels:
    """Count the oracle's labels at each budget."""
    found = [[solve(table, b) for table in (subject.windows, subject.exact)] for b in budgets]
    levels = len(subject.levels)
    return Labels(
        budgets=budgets,
        levels=subject.levels,
        windows=np.stack([both[0].shares(levels) for both in found]),
        exact=np.stack([both[1].shares(levels) for both in found]),
        cost=np.array([[one.cost for one in both] for both in found]),
    )


@dataclass(frozen=True, eq=False)
class Scatter:
    """What the oracle gives to easy and hard questions, at each budget.

    ``single`` (N,) is how often one sample is right and ``gain`` (N,) the most that votes add;
    ``chosen`` (budgets, N) the oracle's levels. ``place`` and ``mean`` are by tenths of the
    questions, ``shares`` (budgets, fifths, K) and ``spent`` (budgets, fifths) by fifths. The fair
    ones choose on one half of the samples and sort by the other.
    """

    budgets: tuple[float, ...]
    levels: tuple[int, ...]
    half_levels: tuple[int, ...]
    single: FloatArray
    gain: FloatArray
    chosen: IntArray
    place: FloatArray
    mean: FloatArray
    shares: FloatArray
    spent: FloatArray
    fair_place: FloatArray
    fair_mean: FloatArray
    fair_shares: FloatArray
    fair_spent: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a budget, fifth and level."""
        rows: list[Row] = []
        kinds = (
            ("same samples", self.levels, self.shares, self.spent),
            ("other half", self.half_levels, self.fair_shares, self.fair_spent),
        )
        for i, budget in enumerate(self.budgets):
            for name, levels, shares, spent in kinds:
                for part in range(PARTS):
                    row: Row = {"B": budget, "sorted by": name, "fifth": part + 1}
                    row |= {f"level {n}": float(shares[i, part, k]) for k, n in enumerate(levels)}
                    rows.append(row | {"mean cost": float(spent[i, part])})
        return rows


def scatter_choices(subject: Subject, budgets: tuple[float, ...] = BUDGETS) -> Scatter:
    """Sort questions by how often one sample is right, hardest first, and see what they get."""
    table, (told, scored) = subject.windows, subject.halves
    single, fair = table.utility[:, 0], scored.utility[:, 0]
    choices = [solve(table, budget).choice for budget in budgets]
    fairly = [solve(told, budget).choice for budget in budgets]
    tenth, fair_tenth = cut_evenly(single, FINE_PARTS), cut_evenly(fair, FINE_PARTS)
    fifth, fair_fifth = cut_evenly(single, PARTS), cut_evenly(fair, PARTS)
    return Scatter(
        budgets=budgets,
        levels=subject.levels,
        half_levels=subject.half_levels,
        single=single,
        gain=table.utility.max(axis=1) - single,
        chosen=np.asarray(subject.levels)[np.stack(choices)],
        place=_means(tenth, FINE_PARTS, single),
        mean=np.stack([_means(tenth, FINE_PARTS, table.cost_of(c)) for c in choices]),
        shares=np.stack([shares_by(fifth, PARTS, c, table.n_levels) for c in choices]),
        spent=np.stack([_means(fifth, PARTS, table.cost_of(c)) for c in choices]),
        fair_place=_means(fair_tenth, FINE_PARTS, fair),
        fair_mean=np.stack([_means(fair_tenth, FINE_PARTS, told.cost_of(c)) for c in fairly]),
        fair_shares=np.stack([shares_by(fair_fifth, PARTS, c, told.n_levels) for c in fairly]),
        fair_spent=np.stack([_means(fair_fifth, PARTS, told.cost_of(c)) for c in fairly]),
    )


def _means(group: IntArray, groups: int, values: FloatArray) -> FloatArray:
    """Mean of each group; 0 where it is empty."""
    total = np.bincount(group, values, minlength=groups)
    return np.asarray(total / np.maximum(1, np.bincount(group, minlength=groups)))


@dataclass(frozen=True, eq=False)
class Bisection:
    """The paper's search at each budget: its traces, its results beside the exact ones."""

    budgets: tuple[float, ...]
    traces: tuple[Trace, ...]
    stairs: Staircase
    rows: list[Row]


def bisect_prices(subject: Subject, budgets: tuple[float, ...] = BUDGETS) -> Bisection:
    """Search each budget's price as the paper does, and compute it."""
    table, stairs = subject.windows, climb_staircase(subject)
    rows: list[Row] = []
    traces = []
    for budget in budgets:
        searched, exact = solve(table, budget, method="bisect"), solve(table, budget)
        trace = searched.trace
        if trace is None:
            continue
        traces.append(trace)
        rows.append(
            {
                "B": budget,
                "price by bisection": searched.price,
                "cost": searched.cost,
                "|cost − B|": abs(searched.cost - budget),
                "steps": len(trace.middle),
                "monotone": falls(stairs.windows),
                "exact price": exact.price,
                "exact cost": exact.cost,
                "with the split": exact.mixed_cost,
                "duality gap": exact.gap,
            }
        )
    return Bisection(budgets, tuple(traces), stairs, rows)


@dataclass(frozen=True, eq=False)
class Mechanism:
    """What a price does: to each question's level, (N, P), to their shares, (P, K), and to one.

    ``net`` (3, K) are the net values of one question at three prices.
    """

    levels: tuple[int, ...]
    price: FloatArray
    choice: IntArray
    single: FloatArray
    shares: FloatArray
    question: int
    id: str
    prices: tuple[float, ...]
    net: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row a price."""
        rows: list[Row] = []
        for p, price in enumerate(self.price.tolist()):
            row: Row = {"price": price}
            row |= {f"level {n}": float(self.shares[p, k]) for k, n in enumerate(self.levels)}
            rows.append(row)
        return rows


def show_mechanism(subject: Subject) -> Mechanism:
    """Follow every question along the prices, and one of many steps more closely."""
    table = subject.windows
    price = spread_prices(table)
    choice = np.stack([choose(table, p) for p in price.tolist()], axis=1)
    steps = (np.diff(choice, axis=1) != 0).sum(axis=1)
    gain = table.utility.max(axis=1) - table.utility[:, 0]
    question = int(np.lexsort((gain, steps))[-1])
    turns = price[1:][np.diff(choice[question]) != 0]
    middle = solve(table, MIDDLE).price
    if len(turns):
        prices = (float(turns[0]) / 3, float(np.sqrt(turns[0] * turns[-1])), float(turns[-1]) * 1.5)
    else:
        prices = (0.0, middle, 2 * middle + LEAST_PRICE)
    costs = table.costs[question]
    return Mechanism(
        levels=subject.levels,
        price=price,
        choice=choice,
        single=table.utility[:, 0],
        shares=np.stack(
            [np.bincount(column, minlength=table.n_levels) / len(table) for column in choice.T]
        ),
        question=question,
        id=subject.ids[question],
        prices=prices,
        net=np.stack([table.utility[question] - p * costs for p in prices]),
    )
