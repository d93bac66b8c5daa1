"""Every rule that judges a claim gives the known verdict on a synthetic run, and on a changed one.

On ``make_run`` the claims hold by construction; each change breaks one of them. The numbers that a
rule shows are known too: they follow from those of that run by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reproduction import verdicts
from reproduction.claims import CLAIMS, compare_verdicts, judge_claims
from reproduction.verdicts import FAILS, HOLDS, NOT_MEASURABLE, Judgement
from test_support.paper_run import (
    LEVEL_ACCURACIES,
    ORACLE_SHARES,
    ROUTER_SHARES,
    SHARES,
    make_ablation,
    make_archetypes,
    make_bisection,
    make_cost,
    make_efficiency,
    make_frontiers,
    make_gains,
    make_gap,
    make_heat_map,
    make_levels,
    make_main,
    make_run,
    make_scatter,
    make_shares,
)

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
    verdicts.judge_dominance: {"pareto": make_frontiers([0.5, 0.56, 0.49, 0.565], [0.5] * 4)},
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
    "judge_dominance": ("+6.0 points", "+6.0 points"),
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
