"""Paper ablations: the data behind the paper's ablation tables and figures.

Accuracy by the number of training questions, and coarser, finer and odd sets of levels. N
questions, K levels. It knows nothing of classifiers or plotting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.allocation.oracle import frontier, solve
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from adacompute.evaluation.pool import assign_folds
from adacompute.evaluation.scoring.oracles import cross_fitted_oracle
from reproduction.run_data import (
    BUDGETS,
    FOLDS,
    MAIN_BUDGET,
    SEED,
    RunData,
    levels_up_to,
)
from reproduction.table_files import Row

FRACTIONS = (0.1, 0.2, 0.25, 0.4, 0.6, 0.8, 1.0)
SEEDS = (0, 1, 2, 3)
LEVEL_SETS = {
    "coarse": (1, 8, 16),
    "default": (1, 2, 4, 8, 16),
    "fine": (1, 2, 3, 4, 6, 8, 12, 16),
    "odd": (1, 3, 5, 7, 9, 13, 15),
}
PAPER_SETS = ("coarse", "default", "fine")
"""The sets that the paper compares, by rising number of levels."""


@dataclass(frozen=True, eq=False)
class Efficiency:
    """Accuracy by share of the training questions, (budgets, fractions, seeds).

    ``paper`` is over all questions, including the training questions; ``held_out`` is over the
    unseen fifth. ``oracle`` and ``fixed`` are over all questions, (budgets,); ``fixed_held_out`` is
    over the unseen fifths, (budgets, seeds).
    """

    budgets: tuple[float, ...]
    fractions: tuple[float, ...]
    paper: FloatArray
    held_out: FloatArray
    oracle: FloatArray
    fixed: FloatArray
    fixed_held_out: FloatArray

    @property
    def rows(self) -> list[Row]:
        """One row per budget and fraction."""
        return [
            {
                "B": budget,
                "share of training questions": fraction,
                "accuracy (paper)": float(self.paper[i, f].mean()),
                "± (paper)": float(self.paper[i, f].std()),
                "accuracy (held out)": float(self.held_out[i, f].mean()),
                "± (held out)": float(self.held_out[i, f].std()),
                "static oracle": float(self.oracle[i]),
                "fixed": float(self.fixed[i]),
                "fixed (held out)": float(self.fixed_held_out[i].mean()),
            }
            for i, budget in enumerate(self.budgets)
            for f, fraction in enumerate(self.fractions)
        ]


def measure_efficiency(run: RunData) -> Efficiency:
    """Train on growing shares of four fifths of the questions."""
    table, questions = run.window_table, np.arange(len(run))
    shape = (len(BUDGETS), len(FRACTIONS), len(SEEDS))
    paper, held_out = np.zeros(shape), np.zeros(shape)
    fixed = [max(k for k, n in enumerate(run.levels) if n <= budget) for budget in BUDGETS]
    fixed_held_out = np.zeros((len(BUDGETS), len(SEEDS)))
    for s, seed in enumerate(SEEDS):
        unseen = assign_folds(run.pool.group, FOLDS, seed=seed) == 0
        train = np.random.default_rng(seed).permutation(np.flatnonzero(~unseen))
        for i, budget in enumerate(BUDGETS):
            fixed_held_out[i, s] = table.utility[unseen, fixed[i]].mean()
            for f, fraction in enumerate(FRACTIONS):
                subset = np.sort(train[: max(2, round(fraction * len(train)))])
                level = run.route(budget, subset, table, seed, free_draft=True)
                paper[i, f, s] = table.utility[questions, level].mean()
                if run.paper_pool is not run.pool:
                    level = run.route(budget, subset, table, seed, free_draft=False)
                held_out[i, f, s] = table.utility[questions, level][unseen].mean()
    return Efficiency(
        budgets=BUDGETS,
        fractions=FRACTIONS,
        paper=paper,
        held_out=held_out,
        oracle=np.array([solve(table, budget).utility for budget in BUDGETS]),
        fixed=table.utility.mean(axis=0)[fixed],
        fixed_held_out=fixed_held_out,
    )


@dataclass(frozen=True, eq=False)
class LevelSet:
    """Results with one set of levels.

    ``in_sample`` is the accuracy of the oracle at ``budgets``, ``cross_fitted`` that of the
    cross-fitted oracle at ``cross_fitted_budgets``. ``router`` has rows of (cost, accuracy) at
    ``budgets``, ``router_held_out`` at BUDGETS. ``shares`` are those of the oracle's levels at
    B = 2.
    """

    levels: tuple[int, ...]
    budgets: tuple[float, ...]
    in_sample: FloatArray
    cross_fitted_budgets: tuple[float, ...]
    cross_fitted: FloatArray
    router: FloatArray
    router_held_out: FloatArray
    shares: FloatArray

    @property
    def in_sample_at_main(self) -> float:
        """Accuracy of the in-sample oracle at B = 2."""
        return float(self.in_sample[self.budgets.index(MAIN_BUDGET)])

    @property
    def cross_fitted_at_main(self) -> float:
        """Accuracy of the cross-fitted oracle at B = 2."""
        return float(self.cross_fitted[self.cross_fitted_budgets.index(MAIN_BUDGET)])


@dataclass(frozen=True, eq=False)
class Granularity:
    """Results with coarser, finer and odd sets of levels, by name."""

    level_sets: dict[str, LevelSet]

    @property
    def steps(self) -> dict[str, dict[str, tuple[int, float]]]:
        """The number of levels and the oracle's accuracy at B = 2, of the paper's sets by size."""
        sets = {name: one for name, one in self.level_sets.items() if name in PAPER_SETS}
        found = {
            "in-sample (paper)": {n: (len(s.levels), s.in_sample_at_main) for n, s in sets.items()}
        }
        if all(MAIN_BUDGET in one.cross_fitted_budgets for one in sets.values()):
            found["cross-fitted"] = {
                n: (len(s.levels), s.cross_fitted_at_main) for n, s in sets.items()
            }
        return found

    @property
    def rows(self) -> list[Row]:
        """One row per set of levels."""
        main = BUDGETS.index(MAIN_BUDGET)
        return [
            {
                "level set": name,
                "levels": ", ".join(map(str, one.levels)),
                "static oracle at B = 2": one.in_sample_at_main,
                "cross-fitted": one.cross_fitted_at_main
                if MAIN_BUDGET in one.cross_fitted_budgets
                else None,
                "router (paper)": float(one.router[one.budgets.index(MAIN_BUDGET), 1]),
                "router (held out)": float(one.router_held_out[main, 1]),
                "oracle's shares": ", ".join(
                    f"{n}: {share:.2f}" for n, share in zip(one.levels, one.shares, strict=True)
                ),
            }
            for name, one in self.level_sets.items()
        ]


def compare_level_sets(run: RunData) -> Granularity:
    """Solve and train with each set of levels that has at least two levels."""
    available = {name: levels_up_to(levels, run.n_samples) for name, levels in LEVEL_SETS.items()}
    return Granularity(
        {name: _measure(run, levels) for name, levels in available.items() if len(levels) > 1}
    )


def _measure(run: RunData, levels: tuple[int, ...]) -> LevelSet:
    half_levels = levels_up_to(levels, max(1, run.n_samples // 2))
    table = run.pool.table(levels, windows=True)
    budgets, half_budgets = (
        run.budgets_up_to(levels[-1]),
        run.budgets_up_to(max(half_levels[-1], 2)),
    )
    curve = frontier(table)
    oracle = cross_fitted_oracle(run.pool, half_levels, half_budgets, seed=SEED)
    held_out = [run.route_held_out(budget, table) for budget in BUDGETS]
    return LevelSet(
        levels=levels,
        budgets=budgets,
        in_sample=np.array([curve.utility_at(budget) for budget in budgets]),
        cross_fitted_budgets=half_budgets,
        cross_fitted=np.array([oracle[budget][1].mean() for budget in half_budgets]),
        router=_score_choices(table, _route_along(run, table, budgets)),
        router_held_out=_score_choices(table, held_out),
        shares=solve(table, MAIN_BUDGET).shares(len(levels)),
    )


def _route_along(run: RunData, table: UtilityTable, budgets: tuple[float, ...]) -> list[IntArray]:
    """Return the router's levels at rising budgets, as the paper trains it.

    Where a larger budget leaves the labels as they are, so does the router.
    """
    training = table.take(np.flatnonzero(run.fold != 0))
    label = np.empty(0, dtype=np.int64)
    choices: list[IntArray] = []
    for budget in budgets:
        new = solve(training, budget).choice
        same = np.array_equal(new, label)
        choices.append(choices[-1] if same else run.route_as_paper(budget, table))
        label = new
    return choices


def _score_choices(table: UtilityTable, choices: list[IntArray]) -> FloatArray:
    """Mean cost and accuracy of each choice of levels, (choices, 2)."""
    return np.array([(table.cost_of(c).mean(), table.utility_of(c).mean()) for c in choices])
