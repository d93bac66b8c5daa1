"""Every rule that judges a claim gives the known verdict on a synthetic run, and on a changed one.

On ``make_run`` the claims hold by construction; each change breaks one of them. The numbers that a
rule shows are known too. Rules that no samples can decide are in NEVER_MEASURABLE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reproduction import claims_ablation as ablation
from reproduction import claims_archetypes as archetypes
from reproduction import claims_learned as learned
from reproduction import claims_oracle as oracle
from reproduction import claims_prices as prices
from reproduction import claims_shared as shared
from reproduction import claims_training as training
from reproduction import verdicts
from reproduction.claims import CLAIMS
from reproduction.claims_shared import SHARED_CLAIMS
from reproduction.verdicts import FAILS, HOLDS, Judgement, NotMeasurable
from test_support.paper_figures import FIGURES
from test_support.paper_run import (
    LEARNING,
    LEVEL_ACCURACIES,
    LEVEL_MEANS,
    ORACLE_SHARES,
    ROUTER_SHARES,
    SHARES,
    change_measures,
    make_ablation,
    make_archetypes,
    make_bisection,
    make_cost,
    make_efficiency,
    make_features,
    make_frontiers,
    make_gains,
    make_gap,
    make_heat_map,
    make_levels,
    make_main,
    make_mechanism,
    make_run,
    make_runs,
    make_scatter,
    make_shares,
)

Judge = Callable[[Any], Judgement]
Data = dict[str, Any]

NEVER_MEASURABLE: tuple[Judge, ...] = (
    learned.judge_energy,
    learned.judge_priority,
    ablation.judge_other_features,
    ablation.judge_single_pass,
)


def heat(table: list[list[list[float]]], budget: int, band: int, row: list[float]) -> Any:
    """Return the shares with those of one budget and band changed."""
    changed = [[list(one) for one in bands] for bands in table]
    changed[budget][band] = row
    return changed


def oracle_heat(budget: int, band: int, row: list[float]) -> Data:
    return {"heat-map": make_heat_map(heat(ORACLE_SHARES, budget, band, row), ROUTER_SHARES)}


def router_heat(row: list[float]) -> Data:
    return {"heat-map": make_heat_map(ORACLE_SHARES, heat(ROUTER_SHARES, 2, 0, row))}


def labels(row: int, values: list[float]) -> Data:
    return {"labels": make_shares([values if i == row else SHARES[i] for i in range(3)])}


def router(**cells: float) -> Data:
    """Return the main table with other held-out numbers of the router."""
    columns = {"accuracy": "accuracy (held out)", "gain": "gain over mixture", "low": "gain low"}
    return {"main": make_main(router={columns[name]: value for name, value in cells.items()})}


def levels(**changed: list[float]) -> Data:
    return {"granularity": make_levels(LEVEL_ACCURACIES | changed)}


def features(gain: list[float] | None = None, top: float = 0.1, **means: list[float]) -> Data:
    return {"features": make_features(gain or [1 / 16] * 16, LEVEL_MEANS | means, top=top)}


def runs(*mixtures: list[float], **second: object) -> Data:
    return {"runs": make_runs(list(mixtures) or None, **second)}


EVEN = [0.4, 0.3, 0.2, 0.1]
SHUFFLED = [0.1, 0.2, 0.3, 0.4]

FAILING: dict[Judge, Data] = {
    verdicts.judge_router_gain: {
        "main": make_main(
            router={"gain over mixture": -0.01, "gain low": -0.02, "gain high": -0.001}
        )
    },
    verdicts.judge_relative_gain: router(gain=0.02),
    verdicts.judge_oracle_gain: {"main": make_main(oracle={"gain over mixture": 0.07})},
    verdicts.judge_imitation: {"gap": make_gap(imitation=0.9)},
    verdicts.judge_predictability: {"gap": make_gap(imitation=0.79)},
    verdicts.judge_small_gap: {"gap": make_gap(oracle_gap=0.015)},
    verdicts.judge_trees: {"ablation": make_ablation(logistic={"accuracy": 0.53})},
    verdicts.judge_equal_spending: {"main": make_main(fixed={"cost (paper)": 2.0})},
    verdicts.judge_level_two: labels(1, [0.81, 0.02, 0.12, 0.04, 0.01]),
    verdicts.judge_duality: {"bisection": make_bisection({"duality gap": [0.0, 0.001, 0.0]})},
    verdicts.judge_budget_deviation: {"bisection": make_bisection({"|cost − B|": [0.01, 0.06, 0]})},
    verdicts.judge_monotonicity: {"staircase": make_cost([16, 14, 15, 4, 1, 1])},
    verdicts.judge_zero_price: {"mechanism": make_mechanism(0.9)},
    verdicts.judge_middle_gains: {"difficulty": make_gains([0.05, 0.08, 0.09])},
    verdicts.judge_inverted_u: {"scatter": make_scatter([1, 4, 5, 4, 6])},
    verdicts.judge_responsive_share: {"archetypes": make_archetypes(other_responsive_share=0.8)},
    verdicts.judge_ends_get_one: {
        "archetypes": make_archetypes(
            other_level_shares=np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.95, 0.05]])
        )
    },
    verdicts.judge_fine_levels: levels(fine=[0.51, 0.53, 0.556]),
    verdicts.judge_odd_levels: levels(odd=[0.51, 0.53, 0.556]),
    verdicts.judge_small_training_set: {
        "efficiency": make_efficiency([0.48, 0.49, 0.495, 0.51, 0.52, 0.53, 0.54])
    },
    verdicts.judge_mean_bound: {"ablation": make_ablation(svm={"oracle_gap": 0.11})},
    verdicts.judge_adjacent_mistakes: {"ablation": make_ablation(adjacent_share=0.4)},
    learned.judge_every_baseline: router(accuracy=0.5),
    learned.judge_gain_range: router(gain=0.02),
    learned.judge_gain_at_three: router(gain=0.04),
    learned.judge_gain_on_easy_set: router(gain=0.01),
    learned.judge_saving: {"gap": make_gap(**{"cost as trained": 3.0})},
    learned.judge_heuristic: {"main": make_main(paper_heuristic={"accuracy (held out)": 0.52})},
    learned.judge_dominance: {"pareto": make_frontiers([0.5, 0.56, 0.49, 0.565], [0.5] * 4)},
    learned.judge_best_budgets: {"pareto": make_frontiers([0.5, 0.51, 0.52, 0.57], [0.5] * 4)},
    learned.judge_plateau: {"pareto": make_frontiers([0.5, 0.56, 0.56, 0.58], [0.5] * 4)},
    learned.judge_fixed_steps: {"pareto": make_frontiers([0.5] * 4, [0.5] * 4, spent=1.1)},
    learned.judge_served_questions: {
        "pareto": make_frontiers([0.4, 0.45, 0.5, 0.6], [0.5, 0.52, 0.54, 0.56])
    },
    learned.judge_heat_map: router_heat([0.6, 0.25, 0.1, 0.05, 0.0]),
    learned.judge_discrepancies: router_heat([0.2, 0.05, 0.1, 0.05, 0.6]),
    training.judge_training_time: change_measures(fit_s=1.5),
    training.judge_routing_time: change_measures(routing_s=0.1),
    training.judge_rising_accuracy: {"efficiency": make_efficiency([0.5, *LEARNING[:0:-1]])},
    training.judge_diminishing_returns: {
        "efficiency": make_efficiency([0.5, 0.5, 0.5, 0.5, 0.51, 0.53, 0.55])
    },
    training.judge_logarithmic_rate: {
        "efficiency": make_efficiency([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.55])
    },
    training.judge_late_gap: {"efficiency": make_efficiency(LEARNING, oracle=0.58)},
    ablation.judge_gap_ratio: {"ablation": make_ablation(mlp={"oracle_gap": 0.03})},
    ablation.judge_linear_cost: {"ablation": make_ablation(svm={"cost": 1.06})},
    ablation.judge_mlp_cost: {"ablation": make_ablation(mlp={"cost": 1.3})},
    ablation.judge_tree_cost: {"ablation": make_ablation(gbm={"cost": 1.5}, forest={"cost": 1.5})},
    ablation.judge_equal_trees: {"ablation": make_ablation(forest={"accuracy": 0.54})},
    ablation.judge_tree_mistakes: {"ablation": make_ablation(gbm={"imitation": 0.7})},
    ablation.judge_tight_bound: {
        "ablation": make_ablation(svm={"regret": 0.0}, mlp={"regret": 0.0})
    },
    ablation.judge_coarse_levels: levels(coarse=[0.5, 0.522, 0.55]),
    ablation.judge_coarse_frontier: levels(coarse=[0.505, 0.52, 0.53]),
    ablation.judge_bimodal_levels: {"granularity": make_levels({"coarse": [0.5] * 3}, lowest=0.7)},
    ablation.judge_even_importance: features(gain=[0.4, *[0.04] * 15]),
    ablation.judge_top_features: features(top=0.001),
    ablation.judge_fractions: features(has_fraction=[1.0, -0.5, 0.2, 0.3, -1.0]),
    ablation.judge_word_length: features(avg_word_length=[1.0, 0.2, 0.1, -0.6, 0.7]),
    ablation.judge_own_signatures: {
        "features": make_features([1 / 16] * 16, {}, usual=[1.0, 0.5, 0, 0, -1])
    },
    oracle.judge_lowest_share: labels(2, [0.55, 0.2, 0.1, 0.08, 0.07]),
    oracle.judge_few_above_one: labels(0, [0.8, 0.09, 0.08, 0.03, 0.0]),
    oracle.judge_levels_fill: labels(2, [0.69, 0.1, 0.06, 0.08, 0.07]),
    oracle.judge_two_is_rare: labels(2, [0.69, 0.1, 0.06, 0.08, 0.07]),
    oracle.judge_common_levels: labels(1, [0.77, 0.02, 0.12, 0.08, 0.01]),
    oracle.judge_step_to_two: change_measures(mean_utility=np.array([0.5, 0.6, 0.65])),
    oracle.judge_easy_set_shares: {},
    oracle.judge_easy_set_cost: {},
    oracle.judge_smallest_gain: {"difficulty": make_gains([0.02, 0.08, 0.03])},
    oracle.judge_easiest_solved: {"difficulty": make_gains([0.05, 0.08, 0.03], single=0.7)},
    oracle.judge_flanks: {"scatter": make_scatter([1, 4, 5, 4, 1], end=0.8)},
    oracle.judge_tight_budget: oracle_heat(0, 1, [0.8, 0.1, 0.06, 0.04, 0.0]),
    oracle.judge_tight_exceptions: oracle_heat(0, 2, [0.8, 0.1, 0.06, 0.04, 0.0]),
    oracle.judge_harder_bands: oracle_heat(1, 2, [0.97, 0.01, 0.01, 0.01, 0.0]),
    oracle.judge_easiest_at_three: oracle_heat(2, 0, [0.4, 0.3, 0.2, 0.1, 0.0]),
    oracle.judge_hardest_at_three: oracle_heat(2, 2, [0.7, 0.1, 0.1, 0.1, 0.0]),
    archetypes.judge_easy_archetype: {
        "archetypes": make_archetypes(easy=[0.7, 0.7, 0.7, 0.7, 0.7])
    },
    archetypes.judge_responsive_archetype: {
        "archetypes": make_archetypes(responsive=[0.35, 0.4, 0.5, 0.55, 0.6])
    },
    archetypes.judge_diminishing_archetype: {
        "archetypes": make_archetypes(diminishing=[0.4, 0.4, 0.42, 0.5, 0.56])
    },
    archetypes.judge_hard_archetype: {
        "archetypes": make_archetypes(hard=[0.1, 0.1, 0.2, 0.3, 0.3])
    },
    prices.judge_falling_prices: {"bisection": make_bisection({"price (exact)": [0.1, 0.2, 0.1]})},
    prices.judge_steps: {"bisection": make_bisection(steps=13)},
    prices.judge_mixing: {
        "bisection": make_bisection({"cost with one question split": [1.5, 1.9, 3.0]})
    },
    prices.judge_price_range: {"staircase": make_cost([16, 6, 5, 4, 1, 1])},
    prices.judge_price_of_one: {"staircase": make_cost([16, 14, 12, 4, 1.2, 1])},
    prices.judge_easiest_first: change_measures(other_drop_price=np.array([0.0, 1, 2, 3, 4])),
    prices.judge_middle_last: change_measures(other_drop_price=np.array([5.0, 1, 2, 3, 4])),
    prices.judge_stable_labels: change_measures(label_agreement=0.6),
    prices.judge_single_trials: change_measures(single_error=0.08),
    prices.judge_feasibility: change_measures(feasibility_slack=-0.1),
    prices.judge_optimality: change_measures(optimality_slack=-0.1),
    shared.judge_alike_gains: runs(difficulty=make_gains([0.05, 0.2, 0.03])),
    shared.judge_trees_everywhere: runs(ablation=make_ablation(mlp={"oracle_gap": 0.03})),
    shared.judge_alike_gaps: runs(efficiency=make_efficiency(LEARNING, oracle=0.6)),
    shared.judge_alike_kinds: runs(EVEN, SHUFFLED),
    shared.judge_easy_set_kinds: runs(EVEN, EVEN),
    shared.judge_plateaus: runs(staircase=make_cost([16, 4, 3, 2, 1, 1])),
}
"""The change of the synthetic run that makes each claim fail."""

HOLDING: dict[Judge, Data] = {
    oracle.judge_easy_set_shares: {"labels": make_shares([[0.91, 0.09, 0, 0, 0]] * 3)},
    oracle.judge_easy_set_cost: {"staircase": make_cost([1.8, 1.7, 1.6, 1.4, 1, 1])},
}
"""What makes a claim hold that contradicts another one of the run."""

RUN = make_run() | {"runs": make_runs()}
JUDGES = [claim.judge for claim in (*CLAIMS, *SHARED_CLAIMS)]


def test_every_rule_has_a_known_answer() -> None:
    assert set(FAILING) | set(NEVER_MEASURABLE) == set(JUDGES)
    assert set(FIGURES) == {judge.__name__ for judge in FAILING}


@pytest.mark.parametrize("judge", FAILING, ids=lambda judge: judge.__name__)
def test_known_verdict(judge: Judge) -> None:
    held = judge(RUN | HOLDING.get(judge, {}))
    assert (held.paper, held.held_out, held.verdict) == (*FIGURES[judge.__name__], HOLDS)
    assert judge(RUN | FAILING[judge]).verdict == FAILS


@pytest.mark.parametrize("judge", NEVER_MEASURABLE, ids=lambda judge: judge.__name__)
def test_never_measurable(judge: Judge) -> None:
    with pytest.raises(NotMeasurable):
        judge(RUN)
