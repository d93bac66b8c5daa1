"""Every rule that judges a claim gives the known verdict on a synthetic run, and on a changed one.

On ``make_run`` the claims hold by construction; each change breaks one of them. The numbers that a
rule shows are known too: they follow from those of that run by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reproduction import verdicts
from reproduction.ablations import FRACTIONS, LEVEL_SETS, Efficiency, Granularity, LevelSet
from reproduction.archetypes import NAMES
from reproduction.bisection import Trace
from reproduction.claims import CLAIMS, compare_verdicts, judge_claims
from reproduction.classifier_ablation import BY_QUESTION, BY_ROW, Ablation, Trial
from reproduction.comparison import (
    FIGURE_13,
    HEAT_MAP_BUDGETS,
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
from reproduction.verdicts import FAILS, HOLDS, NOT_MEASURABLE, Judgement

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


def make_archetypes(**changed: Any) -> Any:
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


Judge = Callable[[Any], Judgement]
Data = dict[str, Any]


def router_heat(row: list[float]) -> Data:
    """Return the heat map with the router's shares of easy questions at B = 3 changed."""
    changed = [[list(one) for one in bands] for bands in ROUTER_SHARES]
    changed[2][0] = row
    return {"heat-map": make_heat_map(ORACLE_SHARES, changed)}


def labels(row: int, values: list[float]) -> Data:
    return {"labels": make_shares([values if i == row else SHARES[i] for i in range(3)])}


def levels(**changed: list[float]) -> Data:
    return {"granularity": make_levels(LEVEL_ACCURACIES | changed)}


FAILING: dict[Judge, Data] = {
    verdicts.judge_router_gain: {
        "main": make_main(
            router={"gain over mixture": -0.01, "gain low": -0.02, "gain high": -0.001}
        )
    },
    verdicts.judge_oracle_gain: {"main": make_main(oracle={"gain over mixture": 0.07})},
    verdicts.judge_imitation: {"gap": make_gap(imitation=0.9)},
    verdicts.judge_predictability: {"gap": make_gap(imitation=0.79)},
    verdicts.judge_small_gap: {"gap": make_gap(oracle_gap=0.015)},
    verdicts.judge_trees: {"ablation": make_ablation(logistic={"accuracy": 0.53})},
    verdicts.judge_equal_spending: {"main": make_main(fixed={"cost (paper)": 2.0})},
    verdicts.judge_level_two: labels(1, [0.81, 0.02, 0.12, 0.04, 0.01]),
    verdicts.judge_budget_deviation: {"bisection": make_bisection({"|cost − B|": [0.01, 0.06, 0]})},
    verdicts.judge_monotonicity: {"staircase": make_cost([16, 14, 15, 4, 1, 1])},
    verdicts.judge_middle_gains: {"difficulty": make_gains([0.05, 0.08, 0.09])},
    verdicts.judge_inverted_u: {"scatter": make_scatter([1, 4, 5, 4, 6])},
    verdicts.judge_responsive_share: {"archetypes": make_archetypes(other_responsive_share=0.8)},
    verdicts.judge_ends_get_one: {
        "archetypes": make_archetypes(
            other_level_shares=np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.95, 0.05]])
        )
    },
    verdicts.judge_fine_levels: levels(fine=[0.51, 0.53, 0.556]),
    verdicts.judge_small_training_set: {
        "efficiency": make_efficiency([0.48, 0.49, 0.495, 0.51, 0.52, 0.53, 0.54])
    },
    verdicts.judge_mean_bound: {"ablation": make_ablation(svm={"oracle_gap": 0.11})},
    verdicts.judge_adjacent_mistakes: {"ablation": make_ablation(adjacent_share=0.4)},
    verdicts.judge_heat_map: router_heat([0.6, 0.25, 0.1, 0.05, 0.0]),
}
"""The change of the synthetic run that makes each claim fail."""

FIGURES = {
    "judge_router_gain": ("+4.5 points", "+4.0 points [+2.0, +6.0]"),
    "judge_oracle_gain": ("+8.0 points", "+7.5 points"),
    "judge_imitation": ("95.0 %", "92.0 %"),
    "judge_predictability": ("+15.0 points", "+12.0 points"),
    "judge_small_gap": ("+1.0 points", "+1.2 points"),
    "judge_trees": ("+5.0 points", "+5.0 points"),
    "judge_equal_spending": ("3.00 of 3", "3.00 of 3"),
    "judge_level_two": ("6.0 %", "6.0 %"),
    "judge_budget_deviation": ("0.020", "0.000 with one question split"),
    "judge_monotonicity": ("never rises", "never rises"),
    "judge_middle_gains": ("most in middle", "most in middle"),
    "judge_inverted_u": ("+4.00 samples", "+4.00 samples"),
    "judge_responsive_share": ("95.0 %", "93.0 %"),
    "judge_ends_get_one": ("95.0 %", "95.0 %"),
    "judge_fine_levels": ("+0.05 points", "+0.05 points"),
    "judge_small_training_set": ("+2.5 points", "+2.5 points"),
    "judge_mean_bound": ("0.0 % of points above it", "0.0 % above the valid bound"),
    "judge_adjacent_mistakes": ("80.0 %", "70.0 %"),
    "judge_heat_map": ("+5.0 points", "+5.0 points"),
}
"""What each rule shows where its claim holds, by the paper's protocol and held out."""

RUN = make_run()


def test_every_rule_has_a_known_answer() -> None:
    assert len(CLAIMS) <= 20
    assert list(FAILING) == [claim.judge for claim in CLAIMS]
    assert list(FIGURES) == [judge.__name__ for judge in FAILING]


@pytest.mark.parametrize("judge", FAILING, ids=lambda judge: judge.__name__)
def test_known_verdict(judge: Judge) -> None:
    held = judge(RUN)
    assert (held.paper, held.held_out, held.verdict) == (*FIGURES[judge.__name__], HOLDS)
    assert judge(RUN | FAILING[judge]).verdict == FAILS


def test_claims_without_data_are_not_measurable_and_say_why() -> None:
    rows = judge_claims({})
    assert {row["verdict"] for row in rows} == {NOT_MEASURABLE}
    assert all(len(str(row["reason"])) > 5 for row in rows)
    table = compare_verdicts({"x": rows, "y": judge_claims(RUN)})
    assert {(row["x"], row["y"]) for row in table} == {(NOT_MEASURABLE, HOLDS)}
