from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.types import IntArray, UtilityTable
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import make_router
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.held_out import HeldOutCurve, replay_splits
from adacompute.evaluation.scoring.imitation import measure_imitation, score_imitation
from test_support.populations import make_population


@st.composite
def cases(draw: st.DrawFn) -> tuple[UtilityTable, IntArray, float, float]:
    """Draw a table, any choice of levels, a price, and a budget that pays for the cheapest."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    utility = draw(arrays(np.float64, shape, elements=st.floats(0, 1)))
    own = draw(st.booleans())
    cost = draw(
        arrays(np.float64, shape if own else shape[1:], elements=st.integers(0, 9).map(float))
    )
    choice = draw(arrays(np.int64, shape[0], elements=st.integers(0, shape[1] - 1)))
    table = UtilityTable(utility, cost)
    spare = draw(st.integers(0, 8)) / 8 * float(table.cost.max()) + 1e-9
    return table, choice, draw(st.floats(0, 1)), float(table.costs.min(axis=1).mean()) + spare


@given(cases())
def test_theorem_2_regret_is_at_most_the_weighted_mistakes(
    case: tuple[UtilityTable, IntArray, float, float],
) -> None:
    table, choice, price, budget = case
    found = measure_imitation(table, choice, choose(table, price), price, budget)
    assert -1e-9 <= found["regret"] <= found["regret_bound"] + 1e-9
    wrong = choice != choose(table, price)
    assert found["imitation"] == pytest.approx(1 - wrong.mean())
    net = table.utility - price * table.costs
    worst = net.max(axis=1) - net.min(axis=1)
    assert found["regret_bound"] == pytest.approx((worst * wrong).mean())


@given(cases())
def test_corollary_regret_is_the_gap_minus_the_price_of_the_cost_deviation(
    case: tuple[UtilityTable, IntArray, float, float],
) -> None:
    table, choice, price, budget = case
    found = measure_imitation(table, choice, choose(table, price), price, budget)
    rows = np.arange(len(table))
    net = table.utility - price * table.costs
    regret = float((net.max(axis=1) - net[rows, choice]).mean())
    assert found["regret"] == pytest.approx(regret, abs=1e-9)
    assert found["oracle_gap"] - price * found["cost_deviation"] == pytest.approx(regret, abs=1e-9)


@given(cases())
def test_theorem_3_corrected_bounds_the_recovery_gap(
    case: tuple[UtilityTable, IntArray, float, float],
) -> None:
    table, choice, price, budget = case
    found = measure_imitation(table, choice, choose(table, price), price, budget)
    assert found["recovery_gap"] <= found["recovery_bound"] + 1e-9
    error = 1 - found["imitation"]
    enough = budget + error * float(table.cost.max() - table.cost.min())
    best = solve(table, enough).mixed_utility
    assert found["recovery_gap"] == pytest.approx(best - table.utility_of(choice).mean(), abs=1e-9)


@given(cases())
def test_theorem_3_cost_exceeds_the_budget_by_at_most_the_error_times_the_cost_range(
    case: tuple[UtilityTable, IntArray, float, float],
) -> None:
    table, choice, _, budget = case
    oracle = solve(table, budget)
    found = measure_imitation(table, choice, oracle.choice, oracle.price, budget)
    cost = oracle.cost - found["cost_deviation"]
    assert cost == pytest.approx(table.cost_of(choice).mean())
    error, spread = 1 - found["imitation"], float(table.cost.max() - table.cost.min())
    assert cost <= budget + error * spread + 1e-9


def test_theorem_3_second_part_as_published_is_false() -> None:
    # It prices the budget itself, and not the larger one that the mistakes may need.
    table = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
    found = measure_imitation(table, np.array([0]), choose(table, 0.5), 0.5, 1.0)
    worst, error, spent = 0.5, 1.0, 1.0
    assert found["recovery_gap"] == 1.0
    assert found["recovery_gap"] > worst * error + 0.5 * (1.0 - spent)
    assert found["recovery_gap"] == found["recovery_bound"]


def test_mean_weight_times_error_rate_is_not_a_bound() -> None:
    # The one question that is got wrong is the one on which a mistake costs most.
    table = UtilityTable(np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]), np.array([1.0, 2.0]))
    lowest = np.zeros(3, dtype=np.int64)
    found = measure_imitation(table, lowest, choose(table, 0.1), 0.1, 2.0)
    net = table.utility - 0.1 * table.costs
    mean_weight = float((net.max(axis=1) - net.min(axis=1)).mean())
    assert found["regret"] > mean_weight * (1 - found["imitation"])
    assert found["regret"] == pytest.approx(found["regret_bound"])


def test_following_the_oracle_has_no_regret() -> None:
    table = UtilityTable(np.array([[0.1, 0.9], [0.8, 0.85]]), np.array([1.0, 2.0]))
    best = choose(table, 0.3)
    found = measure_imitation(table, best, best, 0.3, 1.5)
    assert (found["imitation"], found["regret"], found["regret_bound"]) == (1.0, 0.0, 0.0)
    assert found["recovery_gap"] == pytest.approx(0.0)


def test_router_that_is_told_the_oracles_level_imitates_it_exactly_under_ties() -> None:
    # Four samples give few different utilities, so many upgrades have the price of the budget.
    population, _ = make_population(60, feature_signal=0.0, seed=1)
    answers = population.sample(4, seed=0)
    key = np.arange(60, dtype=np.uint64)
    pool = Pool(answers, key, key, np.zeros((60, 1), np.float32), np.ones(len(answers.answer)))
    table = pool.table((1, 2, 4))
    oracle = solve(table, 1.5)
    assert (oracle.choice != choose(table, oracle.price)).any()
    level = oracle.choice.astype(np.float32)[:, None]
    experiment = Experiment(replace(pool, features=level), (1, 2, 4), (1.5,))
    every = np.arange(60)
    folds = replay_splits(experiment, make_router, [(every, every)])
    curve = HeldOutCurve(tuple(folds), key)
    found = score_imitation(experiment, curve, 1.5)
    assert (found["imitation"], found["oracle_gap"], found["regret"]) == (1.0, 0.0, 0.0)
