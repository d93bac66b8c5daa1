"""Paper run: synthetic data of the paper's exhibits, made such that its claims hold.

The numbers are chosen by hand, close to those that the paper reports, so that the verdict on every
claim is known. Tests change one number and know which verdict must follow. No samples and no fits
are behind them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from reproduction.ablations import FRACTIONS, LEVEL_SETS, Efficiency, Granularity, LevelSet
from reproduction.archetypes import NAMES
from reproduction.bisection import Trace
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, Ablation, Trial
from reproduction.comparison import (
    FIGURE_13,
    HEAT_MAP_BUDGETS,
    BudgetCurve,
    Frontiers,
    GapTable,
    HeatMap,
    MainTable,
)
from reproduction.oracle_data import (
    Bisection,
    CostByPrice,
    DifficultyGains,
    GroupedLevels,
    LevelScatter,
    LevelShares,
)
from reproduction.run_data import BUDGETS

LEVELS = (1, 2, 4, 8, 16)
BANDS = ("easy", "middle", "hard")


def make_main(**changed: dict[str, float]) -> MainTable:
    """Return the main table; ``changed`` sets columns of a policy, at all budgets."""
    router = {1.5: 0.04, 2.0: 0.04, 3.0: 0.06}
    rows: list[Any] = []
    for budget in BUDGETS:
        policies: dict[str, dict[str, float]] = {
            "fixed": {"accuracy (paper)": 0.5, "accuracy (held out)": 0.5}
            | {"cost (paper)": budget, "cost (held out)": budget},
            "random": {"accuracy (paper)": 0.5, "accuracy (held out)": 0.5},
            "paper-heuristic": {"accuracy (paper)": 0.505, "accuracy (held out)": 0.505},
            "mixture": {"accuracy (held out)": 0.5},
            "router": {
                "accuracy (paper)": 0.505 + router[budget],
                f"accuracy ({FIGURE_13})": 0.515 + router[budget],
                "accuracy (held out)": 0.5 + router[budget],
                "gain over mixture": router[budget],
                "gain low": router[budget] - 0.02,
                "gain high": router[budget] + 0.02,
            },
            "oracle-in-sample": {"gain over mixture": 0.08},
            "oracle": {"gain over mixture": 0.075},
        }
        rows += [
            {"B": budget, "policy": name, **cells, **changed.get(name.replace("-", "_"), {})}
            for name, cells in policies.items()
        ]
    return MainTable(rows)


def make_gap(**changed: float) -> GapTable:
    """Return the gap to the oracle; ``changed`` sets columns of the held-out router."""
    row: dict[str, Any] = {
        "imitation (paper)": 0.95,
        "imitation (held out)": 0.92,
        f"imitation ({FIGURE_13})": 0.97,
        "oracle gap (paper)": 0.01,
        "oracle gap (held out)": 0.012,
        f"oracle gap ({FIGURE_13})": 0.008,
        "share of the most common level": 0.8,
    }
    own = {f"{name.replace('_', ' ')} (held out)": value for name, value in changed.items()}
    costs = [{"cost (paper)": b - 0.1, "cost as trained (held out)": b - 0.2} for b in BUDGETS]
    return GapTable([{"B": b, **c, **row, **own} for b, c in zip(BUDGETS, costs, strict=True)])


def make_frontiers(router: list[float], mixture: list[float], spent: float = 1.0) -> Frontiers:
    """Return frontiers at budgets 1, 2, 4 and 8; uniform policies are the mixture."""
    budget = np.array([1.0, 2.0, 4.0, 8.0])
    own, other = BudgetCurve(budget, budget, np.array(router)), np.array(mixture)
    uniform = BudgetCurve(budget, spent * budget, other)
    paper = dict.fromkeys(("fixed", "random", "paper-heuristic"), uniform) | {"router": own}
    return Frontiers(paper, {"router": own, "mixture": BudgetCurve(budget, budget, other)})


def make_heat_map(oracle: list[list[list[float]]], router: list[list[list[float]]]) -> HeatMap:
    """Return shares by budget, band and level; the router's are the same by both protocols."""
    shares = [np.array(table) for table in (oracle, router)]
    return HeatMap(HEAT_MAP_BUDGETS, BANDS, LEVELS, shares[0], shares[1], shares[1])


ORACLE_SHARES = [
    [[0.97, 0.0, 0.02, 0.01, 0.0], [0.92, 0.01, 0.04, 0.03, 0.0], [0.95, 0.0, 0.03, 0.02, 0.0]],
    [[0.93, 0.01, 0.04, 0.02, 0.0], [0.8, 0.05, 0.1, 0.05, 0.0], [0.83, 0.05, 0.09, 0.03, 0.0]],
    [[0.8, 0.05, 0.1, 0.05, 0.0], [0.5, 0.1, 0.2, 0.1, 0.1], [0.6, 0.1, 0.1, 0.1, 0.1]],
]
"""At B = 1.2, 1.5 and 3, for easy, middle and hard questions."""

ROUTER_SHARES = [
    [[row[0] - 0.02, row[1] + 0.05, row[2] - 0.01, row[3] - 0.01, row[4] - 0.01] for row in table]
    for table in ORACLE_SHARES
]
"""The router differs most at level 2."""


def make_trials(**changed: dict[str, float]) -> list[Trial]:
    """Return one trial per classifier and split; ``changed`` sets scores of splits by question."""
    base: dict[str, Any] = {"regret_bound": 0.1, "mean_bound": 0.1, "max_bound": 0.2}
    scores: dict[str, tuple[float, float, float, float]] = {
        "gbm": (0.55, 0.01, 0.9, 2.15),
        "forest": (0.55, 0.01, 0.9, 2.15),
        "logistic": (0.5, 0.06, 0.7, 1.02),
        "svm": (0.5, 0.06, 0.7, 1.02),
        "mlp": (0.51, 0.05, 0.75, 1.1),
    }
    trials = []
    for split in (BY_ROW, BY_QUESTION):
        for name, (accuracy, gap, imitation, cost) in scores.items():
            own = {"accuracy": accuracy, "oracle_gap": gap, "imitation": imitation, "cost": cost}
            own |= {"regret": 0.1 * (1 - imitation)}
            own |= changed.get(name, {}) if split == BY_QUESTION else {}
            trials.append(Trial(name, split, **own, **base))
    return trials


def make_ablation(adjacent_share: float = 0.7, **changed: dict[str, float]) -> Ablation:
    """Return the ablation of classifiers; see `make_trials`."""
    return Ablation(
        levels=LEVELS,
        trials=make_trials(**changed),
        oracle_accuracy=0.56,
        lowest_accuracy=0.48,
        oracle_cost=2.16,
        confusion={},
        constant_imitation=0.75,
        adjacent_share={BY_ROW: 0.8, BY_QUESTION: adjacent_share},
        mean_loss=0.1,
        max_loss=0.2,
        excluded={},
    )


def make_efficiency(held_out: list[float], oracle: float = 0.565) -> Efficiency:
    """Return accuracies by share of the training questions, the same at every budget and seed."""
    values = np.tile(np.array(held_out)[None, :, None], (3, 1, 4))
    fixed = np.full(3, 0.5)
    return Efficiency(
        BUDGETS, FRACTIONS, values, values, np.full(3, oracle), fixed, np.full((3, 4), 0.5)
    )


LEARNING = [0.505, 0.52, 0.525, 0.535, 0.54, 0.548, 0.55]
"""Accuracies that rise with the logarithm of the share of the training questions."""


def make_levels(cross_fitted: dict[str, list[float]], lowest: float = 0.85) -> Granularity:
    """Return sets of levels with their accuracies at budgets 1.5, 2 and 8, scored twice alike.

    ``lowest`` is the share of level 1.
    """
    sets = {
        name: LevelSet(
            LEVEL_SETS[name],
            (1.5, 2.0, 8.0),
            np.array(values),
            (1.5, 2.0, 8.0),
            np.array(values),
            np.zeros((3, 2)),
            np.zeros((3, 2)),
            np.array([lowest, 0.14, *[0.86 - lowest] * (len(LEVEL_SETS[name]) - 2)]),
        )
        for name, values in cross_fitted.items()
    }
    return Granularity(sets)


LEVEL_ACCURACIES = {
    "coarse": [0.5, 0.51, 0.55],
    "default": [0.51, 0.525, 0.555],
    "fine": [0.51, 0.5255, 0.556],
    "odd": [0.51, 0.5255, 0.556],
}


def make_trace(cost: list[float]) -> Trace:
    """Return a bisection with these costs in the middle of its brackets."""
    found, low, high = np.array(cost), np.zeros(len(cost)), np.ones(len(cost))
    return Trace(low, high, (low + high) / 2, found, found, found)


def make_bisection(changed: dict[str, list[float]] | None = None, *, steps: int = 8) -> Bisection:
    """Return searches that are at the budget after so many steps; ``changed`` sets columns."""
    columns: dict[str, list[float]] = {
        "B": list(BUDGETS),
        "price (bisection)": [0.057, 0.021, 0.008],
        "price (exact)": [0.057, 0.021, 0.008],
        "|cost − B|": [0.01, 0.02, 0.01],
        "duality gap": [0.0, 0.0, 0.0],
        "cost with one question split": list(BUDGETS),
    }
    columns |= changed or {}
    values = zip(*columns.values(), strict=True)
    rows: list[Any] = [dict(zip(columns, row, strict=True)) for row in values]
    traces = tuple(make_trace([16.0] * (steps - 1) + [budget]) for budget in BUDGETS)
    return Bisection(BUDGETS, traces, COST, rows)


def make_cost(cost: list[float]) -> CostByPrice:
    """Return the mean cost at six prices."""
    price = np.array([0.0, 0.005, 0.01, 0.05, 0.1, 1.0])
    return CostByPrice(price, np.array(cost), np.array(cost))


COST = make_cost([16.0, 14.0, 12.0, 4.0, 1.0, 1.0])


def make_gains(gain: list[float], single: float = 0.76) -> DifficultyGains:
    """Return gains of voting by band, easiest first, the same by both estimates."""
    ends = [f"level {n} ({kind})" for kind in ("windows", "subsets") for n in (1, 16)]
    rows: list[Any] = [
        {"difficulty": band, **dict.fromkeys(ends, single), "gain (windows)": value}
        for band, value in zip(BANDS, gain, strict=True)
    ]
    return DifficultyGains(BANDS, True, np.array(gain), np.zeros(3), rows)


def make_shares(exact: list[list[float]]) -> LevelShares:
    """Return shares at each level, by budget, the same by both estimates."""
    return LevelShares(BUDGETS, LEVELS, np.array(exact), np.array(exact), np.ones((3, 2)))


SHARES = [
    [0.86, 0.03, 0.08, 0.03, 0.0],
    [0.77, 0.06, 0.12, 0.04, 0.01],
    [0.69, 0.06, 0.1, 0.08, 0.07],
]


def make_scatter(cost: list[float], end: float = 1.0) -> LevelScatter:
    """Return fifths by difficulty; ``end`` is the share of their two ends at level 1."""
    ends, middle = [end, 1 - end, 0.0, 0.0, 0.0], [0.4, 0.1, 0.2, 0.2, 0.1]
    shares = np.array([[ends, middle, middle, middle, ends]] * 3)
    groups = GroupedLevels(LEVELS, np.zeros(10), np.zeros((3, 10)), shares, np.array([cost] * 3))
    nothing = np.zeros((3, 1), dtype=np.int64)
    return LevelScatter(BUDGETS, np.zeros(1), np.zeros(1), nothing, groups, groups)


def make_archetypes(**changed: Any) -> Any:  # noqa: ANN401 - fields of Archetypes
    """Return what claims need of the archetypes; ``changed`` sets curves by name, and fields."""
    curves: dict[str, list[float]] = {
        "easy": [0.9, 0.92, 0.93, 0.93, 0.94],
        "responsive": [0.35, 0.5, 0.7, 0.8, 0.9],
        "diminishing": [0.4, 0.5, 0.55, 0.56, 0.56],
        "hard": [0.1, 0.12, 0.13, 0.13, 0.12],
    }
    curves |= {name: changed.pop(name) for name in NAMES if name in changed}
    shares = np.array([[0.97, 0.03], [0.3, 0.7], [0.6, 0.4], [0.95, 0.05]])
    return SimpleNamespace(
        **{
            "names": NAMES,
            "half_names": NAMES,
            "curve": np.array([curves[name] for name in NAMES]),
            "other_curve": np.array([curves[name] for name in NAMES]),
            "level_shares": shares,
            "other_level_shares": shares,
            "responsive_share": 0.95,
            "other_responsive_share": 0.93,
        }
        | changed
    )


def make_run() -> dict[str, Any]:
    """Return the data of every exhibit."""
    return {
        "main": make_main(),
        "gap": make_gap(),
        "pareto": make_frontiers([0.5, 0.56, 0.57, 0.57], [0.5, 0.5, 0.5, 0.5]),
        "heat-map": make_heat_map(ORACLE_SHARES, ROUTER_SHARES),
        "ablation": make_ablation(),
        "efficiency": make_efficiency(LEARNING),
        "granularity": make_levels(LEVEL_ACCURACIES),
        "bisection": make_bisection(),
        "staircase": COST,
        "difficulty": make_gains([0.05, 0.08, 0.03]),
        "labels": make_shares(SHARES),
        "scatter": make_scatter([1.0, 4.0, 5.0, 4.0, 1.0]),
        "archetypes": make_archetypes(),
    }
