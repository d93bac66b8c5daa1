"""The paper's theorems as properties, and its errors as examples.

Policies here are any maps from questions to levels; V(B) is the value of the linear program, that
is of the best static policy within budget, randomised ones included.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import dual, frontier, solve
from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from adacompute.core.utility import estimate, estimate_windows

BudgetAt: TypeAlias = Callable[[UtilityTable, float], float]
Spent: TypeAlias = Callable[[UtilityTable, IntArray], Fraction]
BestValue: TypeAlias = Callable[[UtilityTable, float], Fraction]

tables = st.from_type(UtilityTable)
prices = st.floats(0, 3)
shares = st.floats(0, 1)
ONE_STEP = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))


def fuzz(table: UtilityTable, price: float) -> float:
    """Return the largest rounding error of net values."""
    return 1e-12 * (1.0 + float(np.abs(table.utility).max()) + price * float(table.cost.max()))


def draw_policy(data: st.DataObject, table: UtilityTable) -> IntArray:
    level = st.integers(0, table.n_levels - 1)
    return np.array([data.draw(level) for _ in range(len(table))])


def accuracy(table: UtilityTable, policy: IntArray) -> float:
    return float(table.utility_of(policy).mean())


def cost(table: UtilityTable, policy: IntArray) -> float:
    return float(table.cost_of(policy).mean())


def penalised(table: UtilityTable, policy: IntArray, price: float) -> float:
    """J: mean utility − price × cost."""
    return accuracy(table, policy) - price * cost(table, policy)


def regret(table: UtilityTable, policy: IntArray, price: float) -> float:
    """Reg: the oracle's J minus the policy's."""
    return penalised(table, choose(table, price), price) - penalised(table, policy, price)


def worst_gap(table: UtilityTable, price: float) -> FloatArray:
    """M: the largest loss of net value on each question."""
    net = table.utility - price * table.costs
    return np.asarray(net.max(axis=1) - net.min(axis=1), dtype=np.float64)


# What holds.


@given(tables, prices, prices)
def test_theorem_1_cost_monotonicity(table: UtilityTable, one: float, other: float) -> None:
    low, high = sorted((one, other))
    at_high, at_low = choose(table, high), choose(table, low)
    assert cost(table, at_high) <= cost(table, at_low)
    assert (table.cost_of(at_high) <= table.cost_of(at_low)).all()


@given(tables, prices, st.data())
def test_theorem_2_imitation_regret_bound(
    table: UtilityTable, price: float, data: st.DataObject
) -> None:
    policy, oracle = draw_policy(data, table), choose(table, price)
    wrong, gap = policy != oracle, worst_gap(table, price)
    weighted, uniform = float((gap * wrong).mean()), float(gap.max() * wrong.mean())
    assert -fuzz(table, price) <= regret(table, policy, price) <= weighted + fuzz(table, price)
    assert weighted <= uniform + fuzz(table, price)


@given(tables, prices, st.data())
def test_corollary_1_utility_cost_decomposition(
    table: UtilityTable, price: float, data: st.DataObject
) -> None:
    policy, oracle = draw_policy(data, table), choose(table, price)
    lost = accuracy(table, oracle) - accuracy(table, policy)
    saved = cost(table, oracle) - cost(table, policy)
    expected = regret(table, policy, price) + price * saved
    assert lost == pytest.approx(expected, abs=10 * fuzz(table, price), rel=0)


@given(tables, prices, shares, st.data())
def test_theorem_3_near_feasibility(
    table: UtilityTable, price: float, slack: float, data: st.DataObject
) -> None:
    policy, oracle = draw_policy(data, table), choose(table, price)
    budget = cost(table, oracle) * (1 + slack)
    error = float((policy != oracle).mean())
    limit = budget + error * float(table.cost.max() - table.cost.min())
    assert cost(table, policy) <= limit * (1 + 1e-12)


@given(tables, prices, shares, st.data())
def test_theorem_3_near_optimality_corrected(
    best_value: BestValue, table: UtilityTable, price: float, slack: float, data: st.DataObject
) -> None:
    policy, oracle = draw_policy(data, table), choose(table, price)
    budget = cost(table, oracle) * (1 + slack)
    error = float((policy != oracle).mean())
    larger = budget + error * float(table.cost.max() - table.cost.min())
    lost = float(best_value(table, larger)) - accuracy(table, policy)
    unspent = larger - cost(table, policy)
    bound = float(worst_gap(table, price).max()) * error + price * unspent
    assert lost <= bound + 10 * fuzz(table, price)


@given(tables, shares, prices, st.data())
def test_the_gap_is_at_most_the_regret_plus_the_value_of_the_unspent_budget(
    budget_at: BudgetAt,
    best_value: BestValue,
    table: UtilityTable,
    share: float,
    price: float,
    data: st.DataObject,
) -> None:
    budget = budget_at(table, share)
    policy = draw_policy(data, table)
    lost = float(best_value(table, budget)) - accuracy(table, policy)
    bound = regret(table, policy, price) + price * (budget - cost(table, policy))
    assert lost <= bound + 10 * fuzz(table, price)
    tight = solve(table, budget).price
    at_the_price = regret(table, policy, tight) + tight * (budget - cost(table, policy))
    assert lost == pytest.approx(at_the_price, abs=10 * fuzz(table, tight), rel=0)


@given(tables, shares, prices)
def test_weak_duality(
    budget_at: BudgetAt, spent: Spent, table: UtilityTable, share: float, price: float
) -> None:
    budget = budget_at(table, share)
    above = dual(table, price, budget) + fuzz(table, price)
    for levels in product(range(table.n_levels), repeat=len(table)):
        policy = np.array(levels)
        if accuracy(table, policy) > above:
            assert spent(table, policy) > Fraction(budget)


@given(tables, shares, prices, prices)
def test_the_dual_has_the_unspent_budget_as_a_subgradient(
    budget_at: BudgetAt, table: UtilityTable, share: float, price: float, other: float
) -> None:
    budget = budget_at(table, share)
    slope = budget - cost(table, choose(table, price))
    tangent = dual(table, price, budget) + slope * (other - price)
    assert dual(table, other, budget) >= tangent - 10 * fuzz(table, price + other)


@given(tables, shares)
def test_proposition_1_strong_duality_for_randomised_policies(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    budget = budget_at(table, share)
    found = solve(table, budget)
    near = fuzz(table, found.price)
    bound = dual(table, found.price, budget)
    assert found.mixed_utility == pytest.approx(bound, abs=near, rel=0)
    if found.price > 0:
        assert found.mixed_cost == pytest.approx(budget, rel=1e-12)


@given(tables, shares)
def test_proposition_1_corrected_the_gap_is_at_most_one_upgrade(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    found = solve(table, budget_at(table, share))
    ranges = table.utility.max(axis=1) - table.utility.min(axis=1)
    assert found.gap <= float(ranges.max()) / len(table) + fuzz(table, found.price)


# What does not.


def test_proposition_1_is_false_for_deterministic_policies() -> None:
    found = solve(ONE_STEP, 1.5)
    feasible = [k for k in range(2) if ONE_STEP.cost[k] <= 1.5]
    assert max(ONE_STEP.utility[0, k] for k in feasible) == 0.0
    assert min(dual(ONE_STEP, price, 1.5) for price in np.linspace(0, 3, 301)) == 0.5
    assert (found.utility, found.bound, found.mixed_utility) == (0.0, 0.5, 0.5)


def test_theorem_3_near_optimality_as_stated_is_false_without_any_error() -> None:
    """Two equal questions: the budget pays for one upgrade, but the price buys none or both."""
    table = UtilityTable(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([1.0, 2.0]))
    price, budget = 1.0, 1.5
    policy = choose(table, price)
    assert cost(table, policy) <= budget
    lost = solve(table, budget).mixed_utility - accuracy(table, policy)
    as_stated = worst_gap(table, price).max() * 0.0
    assert lost == 0.5 > as_stated
    assert lost <= as_stated + price * (budget - cost(table, policy))


def test_theorem_3_near_optimality_as_stated_is_false_for_a_policy_that_underspends() -> None:
    price, budget, error = 0.9, 2.0, 1.0
    oracle, policy = choose(ONE_STEP, price), np.array([0])
    assert (oracle.tolist(), cost(ONE_STEP, oracle)) == ([1], budget)
    larger = budget + error * 1.0
    lost = solve(ONE_STEP, larger).mixed_utility - accuracy(ONE_STEP, policy)
    as_stated = float(worst_gap(ONE_STEP, price).max()) * error
    assert as_stated == pytest.approx(0.1)
    assert lost == 1.0
    assert lost <= as_stated + price * (larger - cost(ONE_STEP, policy))


def test_at_a_price_of_zero_not_every_question_gets_the_largest_level() -> None:
    table = UtilityTable(
        np.array([[1.0, 1.0, 1.0], [0.4, 0.3, 0.2], [0.5, 0.7, 0.6], [0.5, 0.6, 0.7]]),
        np.array([1.0, 4.0, 16.0]),
    )
    assert choose(table, 0.0).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(("budget", "minimiser"), [(1.5, 1.0), (5.0, 0.0)])
def test_the_dual_can_be_minimal_where_the_cost_is_not_the_budget(
    budget: float, minimiser: float
) -> None:
    """With discrete levels no price costs 1.5, and a budget of 5 is slack."""
    grid = np.linspace(0, 3, 61)
    values = [dual(ONE_STEP, price, budget) for price in grid]
    assert grid[int(np.argmin(values))] == minimiser
    assert all(cost(ONE_STEP, choose(ONE_STEP, price)) != budget for price in grid)


def test_the_oracle_never_overspends_unlike_the_papers_rows(spent: Spent) -> None:
    rng = np.random.default_rng(0)
    utility = np.sort(rng.integers(0, 49, (200, 5)) / 48, axis=1)
    table = UtilityTable(utility, np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    for budget in (1.5, 2.0, 3.0):
        assert spent(table, solve(table, budget).choice) <= Fraction(budget)


def test_the_oracle_is_optimistic_where_all_questions_are_alike() -> None:
    """No allocation is better than a mixture of levels here: the oracle's gain is noise."""
    rng = np.random.default_rng(8)
    questions, drawn, levels = 400, 32, (1, 2, 4, 8, 16)
    answer = rng.choice([0, 1, 2], size=questions * drawn, p=[0.4, 0.35, 0.25])
    answers = Answers(np.arange(questions + 1) * drawn, answer, answer == 0)
    many = rng.choice([0, 1, 2], size=200_000, p=[0.4, 0.35, 0.25]).reshape(1, -1)
    truth = estimate_windows(Answers.of(many.tolist(), (many == 0).tolist()), levels)
    costs = np.array(levels, dtype=np.float64)
    best = frontier(UtilityTable(truth, costs)).utility_at(3.0)
    one, two = answers.halves(rng)
    chosen_on, scored_on = (
        estimate(half, levels, standard_errors=False).utility for half in (one, two)
    )
    found = solve(UtilityTable(chosen_on, costs), 3.0)
    cross_fitted_oracle = float(scored_on[np.arange(questions), found.choice].mean())
    assert found.utility > best + 0.03
    assert cross_fitted_oracle == pytest.approx(best, abs=0.03)
    assert found.utility > cross_fitted_oracle + 0.03


def test_the_mean_worst_gap_times_the_error_rate_is_no_bound() -> None:
    """The only error is on the only question with a loss."""
    table = UtilityTable(np.array([[0.0, 1.0], [0.0, 0.5]]), np.array([1.0, 2.0]))
    price, policy = 0.5, np.array([0, 0])
    wrong, gap = policy != choose(table, price), worst_gap(table, price)
    assert (wrong.tolist(), gap.tolist()) == ([True, False], [0.5, 0.0])
    lost = regret(table, policy, price)
    assert lost == 0.25 > gap.mean() * wrong.mean()
    assert lost <= (gap * wrong).mean()
    assert lost <= gap.max() * wrong.mean()


def test_the_accuracy_gap_is_not_the_regret() -> None:
    """A classifier that always chooses level 1 has a small regret and a large accuracy gap."""
    price, policy = 0.9, np.array([0])
    oracle = choose(ONE_STEP, price)
    lost = accuracy(ONE_STEP, oracle) - accuracy(ONE_STEP, policy)
    saved = cost(ONE_STEP, oracle) - cost(ONE_STEP, policy)
    bound = float(worst_gap(ONE_STEP, price).max())
    assert regret(ONE_STEP, policy, price) == pytest.approx(0.1)
    assert lost == 1.0 > bound
    assert lost == pytest.approx(regret(ONE_STEP, policy, price) + price * saved)


def test_pass_at_n_is_above_best_of_n() -> None:
    answers = Answers(
        np.array([0, 4]),
        np.array([0, 1, 1, UNPARSED]),
        np.array([True, False, False, False]),
        np.array([0.2, 0.9, 0.1, 0.0]),
    )
    levels = (1, 2, 3, 4)
    lucky = estimate(answers, levels, vote="any").utility[0]
    picked = estimate(answers, levels, vote="best-of").utility[0]
    assert lucky.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert picked.tolist() == pytest.approx([1 / 4, 2 / 6, 1 / 4, 0.0], abs=1e-12)
    assert all(a <= b for a, b in pairwise(lucky))
    assert not all(a <= b for a, b in pairwise(picked))
