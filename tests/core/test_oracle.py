from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from adacompute.core.allocation import oracle
from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import dual, frontier, solve
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.core.types import Allocation, FloatArray, IntArray, UtilityTable

if TYPE_CHECKING:
    from collections.abc import Iterator

BudgetAt: TypeAlias = Callable[[UtilityTable, float], float]
Spent: TypeAlias = Callable[[UtilityTable, IntArray], Fraction]
BestValue: TypeAlias = Callable[[UtilityTable, float], Fraction]

tables = st.from_type(UtilityTable)
shares = st.one_of(st.floats(0, 1.2), st.integers(0, 12).map(lambda n: n / 12))
ONE_STEP = UtilityTable(np.array([[0.0, 1.0]]), np.array([1.0, 2.0]))
CLIFF = UtilityTable(np.array([[0.5, 0.5 + 2.0**-53, 0.5]]), np.array([1.0, 9.0, 10.0]))


def scale(table: UtilityTable) -> float:
    return max(1.0, float(np.abs(table.utility).max()))


def random_table(seed: int, questions: int, levels: int = 5, *, own: bool = False) -> UtilityTable:
    """Return increasing utilities in steps of 1/48, like windows of 48 samples."""
    rng = np.random.default_rng(seed)
    steps = rng.random((questions, levels)) * np.array([1.0, 0.4, 0.3, 0.2, 0.1])[:levels]
    cost: FloatArray = np.array([2.0**k for k in range(levels)])
    if own:
        cost = cost * rng.integers(1, 20, (questions, 1)).astype(np.float64)
    return UtilityTable(np.rint(24 * np.cumsum(steps, axis=1)) / 48, cost)


def deterministic_values(table: UtilityTable, budget: float) -> Iterator[float]:
    """Return the utility of every allocation within the budget."""
    cost = [[Fraction(float(c)) for c in row] for row in table.costs]
    for levels in itertools.product(range(table.n_levels), repeat=len(table)):
        if sum(row[k] for row, k in zip(cost, levels, strict=True)) <= Fraction(budget) * len(
            table
        ):
            yield float(table.utility_of(np.array(levels)).mean())


def linear_program(table: UtilityTable, budget: float) -> float:
    size, levels = table.utility.shape
    unit = max(1.0, float(table.cost.max()))
    found = linprog(
        -table.utility.ravel() / size,
        A_ub=table.costs.reshape(1, -1) / (size * unit),
        b_ub=[budget / unit],
        A_eq=np.kron(np.eye(size), np.ones(levels)),
        b_eq=np.ones(size),
    )
    assert found.fun is not None
    return -float(found.fun)


def same(one: Allocation, other: Allocation) -> bool:
    return (
        np.array_equal(one.choice, other.choice)
        and one.price == other.price
        and np.array_equal(one.split.question, other.split.question)
        and np.array_equal(one.split.level, other.split.level)
        and np.array_equal(one.split.probability, other.split.probability)
    )


# What it is worth.


@given(tables, shares)
def test_the_value_with_the_split_is_the_exact_optimum_of_the_linear_program(
    budget_at: BudgetAt, best_value: BestValue, table: UtilityTable, share: float
) -> None:
    budget = budget_at(table, share)
    found = solve(table, budget)
    best = float(best_value(table, budget))
    assert found.mixed_utility == pytest.approx(best, abs=1e-12 * scale(table), rel=0)
    assert found.bound == pytest.approx(best, abs=1e-12 * scale(table), rel=0)


@given(tables, shares)
def test_the_value_with_the_split_agrees_with_a_linear_solver(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    cost = np.rint(8 * np.minimum(table.cost, 50.0)) / 8  # beyond this the other one rounds
    table = UtilityTable(table.utility, cost, table.key)
    budget = budget_at(table, share)
    best = linear_program(table, budget)
    assert solve(table, budget).mixed_utility == pytest.approx(best, abs=1e-6 * scale(table), rel=0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_larger_tables_agree_with_a_linear_solver(
    budget_at: BudgetAt, seed: int, *, own: bool
) -> None:
    table = random_table(seed, 120, own=own)
    for share in (0.05, 0.2, 0.6):
        budget = budget_at(table, share)
        assert solve(table, budget).mixed_utility == pytest.approx(
            linear_program(table, budget), abs=1e-6, rel=0
        )


@given(tables, shares)
def test_the_best_deterministic_value_lies_between_utility_and_bound(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    budget = budget_at(table, share)
    found = solve(table, budget)
    best = max(deterministic_values(table, budget))
    assert found.utility <= best + 1e-15 * scale(table)
    assert best <= found.bound + 1e-12 * scale(table)


@pytest.mark.parametrize("seed", range(3))
def test_the_integer_optimum_is_within_the_gap(seed: int) -> None:
    table = random_table(seed, 50, levels=4, own=True)
    budget = float(table.costs[:, 0].mean()) * 2.3
    size, levels = table.utility.shape
    best = milp(
        -table.utility.ravel() / size,
        integrality=np.ones(size * levels),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(np.kron(np.eye(size), np.ones(levels)), 1, 1),
            LinearConstraint(table.costs.reshape(1, -1) / size, -np.inf, budget),
        ],
        options={"mip_rel_gap": 0.0},
    )
    found = solve(table, budget)
    assert best.status == 0
    assert found.utility <= -best.fun + 1e-9
    assert -best.fun <= found.bound + 1e-9
    assert found.gap < 0.02


@given(tables, shares)
def test_the_gap_is_at_most_the_gain_of_the_split_upgrade(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    found = solve(table, budget_at(table, share))
    gain = 0.0
    if len(found.split):
        row = found.split.question
        gain = float(
            (table.utility[row, found.split.level] - table.utility_of(found.choice)[row])[0]
        )
    assert found.gap <= gain / len(table) + 1e-12 * scale(table)


@given(tables, shares)
@example(CLIFF, 0.5)
def test_it_never_overspends_and_the_split_spends_the_rest(
    budget_at: BudgetAt, spent: Spent, table: UtilityTable, share: float
) -> None:
    budget = budget_at(table, share)
    found = solve(table, budget)
    assert spent(table, found.choice) <= Fraction(budget)
    assert found.cost == pytest.approx(float(spent(table, found.choice)), rel=1e-15)
    assert found.cost <= budget
    if found.price > 0:
        assert found.mixed_cost == pytest.approx(budget, rel=1e-12)
    assert ((found.split.probability > 0) & (found.split.probability <= 1)).all()


@given(tables, shares)
def test_every_chosen_level_has_the_largest_net_value_at_the_price(
    budget_at: BudgetAt, table: UtilityTable, share: float
) -> None:
    found = solve(table, budget_at(table, share))
    net = table.utility - found.price * table.costs
    chosen = net[np.arange(len(table)), found.choice]
    fuzz = 1e-12 * (scale(table) + found.price * table.cost.max())
    assert (chosen >= net.max(axis=1) - fuzz).all()


def test_utilities_that_differ_by_rounding_are_solved_exactly(
    budget_at: BudgetAt, spent: Spent
) -> None:
    rng = np.random.default_rng(0)
    for distance in (1e-11, 1e-13, 1e-15):
        table = UtilityTable(0.5 + rng.random((3000, 4)) * distance, np.array([1.0, 2.0, 3.0, 7.0]))
        for share in (0.1, 0.4, 0.7):
            budget = budget_at(table, share)
            found = solve(table, budget)
            assert spent(table, found.choice) <= Fraction(budget)
            assert found.mixed_cost == pytest.approx(min(budget, found.mixed_cost), abs=1e-12)
            assert found.price == 0 or budget - found.cost < 6 / len(table)


def test_the_largest_costs_are_summed_exactly() -> None:
    table = UtilityTable(np.tile([0.0, 1.0], (5000, 1)), np.array([0.0, 2.0**32]))
    found = solve(table, 2.0**31)
    assert found.cost == 2.0**31
    assert found.choice.sum() == 2500


def test_a_tiny_gain_is_still_bought() -> None:
    table = UtilityTable(np.array([[0.0, 5e-324]]), np.array([1.0, 9.0]))
    assert solve(table, 2.0).choice.tolist() == [0]
    assert solve(table, 9.0).choice.tolist() == [1]


def test_a_large_budget_buys_every_gain_at_price_zero() -> None:
    found = solve(UtilityTable(np.array([[0.0, 1.0, 0.5]]), np.array([1.0, 2.0, 4.0])), 1e300)
    assert (found.choice.tolist(), found.price, found.cost, found.gap) == ([1], 0.0, 2.0, 0.0)


def test_the_split_is_empty_when_the_budget_is_met_exactly() -> None:
    table = UtilityTable(np.array([[0.0, 1.0], [0.0, 0.5]]), np.array([1.0, 2.0]))
    found = solve(table, 1.5)
    assert (found.choice.tolist(), found.price, len(found.split)) == ([1, 0], 0.5, 0)


def test_of_equal_keys_the_question_at_the_cutoff_is_split() -> None:
    table = UtilityTable(
        np.array([[0.0, 1.0], [0.0, 0.4], [0.0, 0.5]]),
        np.array([1.0, 3.0]),
        np.array([7, 7, 7], dtype=np.uint64),
    )
    found = solve(table, 2.0)
    assert found.choice.tolist() == [1, 0, 0]
    assert found.split.question.tolist() == [2]
    assert found.split.probability.tolist() == [0.5]


# How it moves with the budget and the unit.


@given(tables, shares, shares)
def test_more_budget_never_lowers_a_level_or_raises_the_price(
    budget_at: BudgetAt, table: UtilityTable, share: float, other: float
) -> None:
    little, much = sorted((budget_at(table, share), budget_at(table, other)))
    before, after = solve(table, little), solve(table, much)
    assert (table.cost_of(before.choice) <= table.cost_of(after.choice)).all()
    assert before.price >= after.price
    assert before.utility <= after.utility + 1e-15 * scale(table)


@given(tables, shares, st.integers(1, 12))
def test_scaling_costs_scales_the_price_inversely(
    budget_at: BudgetAt, table: UtilityTable, share: float, factor: int
) -> None:
    budget = budget_at(table, share)
    expensive = UtilityTable(table.utility, np.minimum(table.cost, 2.0**28) * factor, table.key)
    table = UtilityTable(table.utility, np.minimum(table.cost, 2.0**28), table.key)
    budget = max(budget_at(table, 0.0), min(budget, 2.0**28))
    found, scaled = (
        solve(table, budget),
        solve(expensive, float(np.nextafter(budget * factor, np.inf))),
    )
    assert scaled.price * factor == pytest.approx(found.price, rel=1e-9)
    assert scaled.mixed_utility == pytest.approx(found.mixed_utility, abs=1e-9 * scale(table))


@given(tables, shares, st.integers(0, 3))
def test_halving_the_unit_of_cost_changes_no_choice(
    budget_at: BudgetAt, table: UtilityTable, share: float, halvings: int
) -> None:
    small = UtilityTable(table.utility, np.minimum(table.cost, 2.0**28), table.key)
    large = UtilityTable(small.utility, small.cost * 2.0**halvings, table.key)
    budget = budget_at(small, share)
    found, scaled = solve(small, budget), solve(large, budget * 2.0**halvings)
    assert np.array_equal(found.choice, scaled.choice)
    assert scaled.price * 2.0**halvings == found.price


@given(tables, shares, st.integers(1, 24))
def test_tiny_costs_are_solved_like_integers(
    budget_at: BudgetAt, table: UtilityTable, share: float, halvings: int
) -> None:
    ones = UtilityTable(table.utility, table.cost / max(1.0, float(table.cost.max())), table.key)
    small = UtilityTable(ones.utility, ones.cost / 2.0**halvings, table.key)
    budget = budget_at(ones, share)
    found, scaled = solve(ones, budget), solve(small, budget / 2.0**halvings)
    assert np.array_equal(found.choice, scaled.choice)
    assert scaled.price == found.price * 2.0**halvings
    assert scaled.cost == found.cost / 2.0**halvings


@given(tables, st.data())
def test_the_order_of_the_questions_does_not_matter(
    budget_at: BudgetAt, table: UtilityTable, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(table)))))
    budget = budget_at(table, 0.4)
    found, shuffled = solve(table, budget), solve(table.take(order), budget)
    assert np.array_equal(found.choice[order], shuffled.choice)
    assert found.price == shuffled.price
    assert order[shuffled.split.question].tolist() == found.split.question.tolist()


# What it refuses.


@given(tables)
def test_a_budget_below_the_cheapest_is_infeasible(
    budget_at: BudgetAt, table: UtilityTable
) -> None:
    budget = budget_at(table, 0.0)
    solve(table, budget)
    with pytest.raises(InfeasibleBudget, match="raise the budget"):
        solve(table, budget - 2e-9 * abs(budget) - table.rounding - 1e-9)


@pytest.mark.parametrize("unit", [0.1, 0.0003, 1e-7, 12.7])
def test_the_cost_of_the_cheapest_levels_is_a_feasible_budget(unit: float) -> None:
    utility = np.array([[0.1, 0.9, 0.9], [0.2, 0.3, 0.8]])
    for cost in (unit * np.array([1, 2, 16]), unit * np.array([[1, 2, 16], [3, 4, 5]])):
        table = UtilityTable(utility, cost)
        cheapest = float(np.broadcast_to(cost, utility.shape)[:, 0].mean())
        found = solve(table, cheapest)
        assert found.choice.tolist() == [0, 0]
        assert found.cost <= cheapest
        assert found.mixed_cost <= cheapest
        assert found.mixed_utility == pytest.approx(0.15)
        assert np.array_equal(solve(table.take(np.arange(2)), cheapest).choice, found.choice)
        with pytest.raises(InfeasibleBudget, match="raise the budget"):
            solve(table, cheapest * (1 - 1e-9))


@pytest.mark.parametrize("budget", [np.nan, np.inf])
def test_a_budget_must_be_finite(budget: float) -> None:
    with pytest.raises(ConfigError, match="finite"):
        solve(ONE_STEP, budget)


def test_a_table_without_questions_is_rejected() -> None:
    with pytest.raises(DataError, match="no question"):
        solve(UtilityTable(np.empty((0, 2)), np.array([1.0, 2.0])), 1.0)


# Long tables.


def arrange(table: UtilityTable, order: str) -> UtilityTable:
    """Order the questions so that every eighth one is or is not representative."""
    gain = table.utility[:, -1] - table.utility[:, 0]
    if order == "shuffled":
        return table
    by_gain = np.argsort(gain, kind="stable")
    if order == "sorted":
        return table.take(by_gain)
    every = np.zeros(len(table), dtype=np.bool_)
    every[::8] = True
    rows = np.empty(len(table), dtype=np.int64)
    count = int(every.sum())
    if order == "hopeless in the sample":
        rows[every], rows[~every] = by_gain[:count], by_gain[count:]
    else:
        rows[every], rows[~every] = by_gain[-count:], by_gain[:-count]
    return table.take(rows)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "order", ["shuffled", "sorted", "hopeless in the sample", "hopeful in the sample"]
)
def test_an_estimated_bracket_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, budget_at: BudgetAt, order: str, *, own: bool
) -> None:
    table = arrange(random_table(5, 4000, own=own), order)
    budgets = [budget_at(table, share) for share in (0.0, 0.02, 0.1, 0.3, 0.5, 1.0)]
    direct = [solve(table, budget) for budget in budgets]
    monkeypatch.setattr(oracle, "SAMPLE_SIZE", 500)
    monkeypatch.setattr(oracle, "BLOCK_SIZE", 700)
    for budget, expected in zip(budgets, direct, strict=True):
        assert same(solve(table, budget), expected)


# The frontier.


@given(tables)
def test_the_frontier_is_concave_and_agrees_with_solve_at_its_points(
    budget_at: BudgetAt, best_value: BestValue, table: UtilityTable
) -> None:
    curve = frontier(table)
    assert (np.diff(curve.price) <= 0).all()
    assert (np.diff(curve.cost) >= 0).all()
    gains, steps = np.diff(curve.utility), np.diff(curve.cost)
    assert np.allclose(gains, curve.price[1:] * steps, atol=1e-12 * scale(table), rtol=1e-12)
    for cost, utility in zip(curve.cost, curve.utility, strict=True):
        budget = max(float(cost), budget_at(table, 0.0))
        best = float(best_value(table, budget))
        assert utility == pytest.approx(best, abs=1e-9 * scale(table), rel=0)
        assert solve(table, budget).mixed_utility == pytest.approx(best, abs=1e-9 * scale(table))


@given(tables, shares)
def test_the_frontier_gives_value_and_price_at_any_budget(
    budget_at: BudgetAt, best_value: BestValue, table: UtilityTable, share: float
) -> None:
    curve = frontier(table)
    budget = max(budget_at(table, share), float(curve.cost[0]))
    best = float(best_value(table, budget))
    assert curve.utility_at(budget) == pytest.approx(best, abs=1e-9 * scale(table), rel=0)
    near = np.abs(curve.cost - budget) < 1e-9 * max(1.0, budget)
    if not near.any():
        assert curve.price_at(budget) == solve(table, budget).price


def test_the_frontier_of_one_question_is_its_envelope() -> None:
    table = UtilityTable(np.array([[0.0, 0.1, 0.6, 0.5, 0.7]]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    curve = frontier(table)
    assert curve.cost.tolist() == [1.0, 3.0, 5.0]
    assert curve.utility.tolist() == pytest.approx([0.0, 0.6, 0.7])
    assert curve.price.tolist() == pytest.approx([np.inf, 0.3, 0.05])
    assert curve.utility_at(2.0) == pytest.approx(0.3)
    assert curve.utility_at(9.0) == pytest.approx(0.7)
    assert (curve.price_at(2.0), curve.price_at(5.0)) == (curve.price[1], 0.0)


@pytest.mark.parametrize("unit", [0.3, 1.0, 1e6])
def test_a_budget_may_be_below_the_cheapest_levels_by_a_rounding(unit: float) -> None:
    table = UtilityTable(np.array([[0.1, 0.9]]), unit * np.array([1, 2]))
    least = float(table.costs[0, 0])
    for budget in (np.nextafter(least, 0.0), least * (1 - 5e-10)):
        assert solve(table, budget).utility == 0.1
        assert frontier(table).utility_at(budget) == 0.1
    with pytest.raises(InfeasibleBudget):
        solve(table, least * (1 - 2e-9) - table.rounding)


def test_the_frontier_below_the_cheapest_is_infeasible() -> None:
    with pytest.raises(InfeasibleBudget, match=r"0\.5 is below 1"):
        frontier(ONE_STEP).utility_at(0.5)


def test_the_frontier_of_no_questions_is_one_point() -> None:
    assert frontier(UtilityTable(np.empty((0, 2)), np.array([1.0, 2.0]))).cost.tolist() == [0.0]


@given(tables, shares, st.floats(0, 2))
def test_the_dual_at_any_price_is_above_the_bound(
    budget_at: BudgetAt, table: UtilityTable, share: float, price: float
) -> None:
    budget = budget_at(table, share)
    found = solve(table, budget)
    fuzz = 1e-12 * (scale(table) + (price + found.price) * table.cost.max())
    assert dual(table, price, budget) >= found.bound - fuzz
    assert dual(table, found.price, budget) == pytest.approx(found.bound, abs=fuzz)
    choice = choose(table, price)
    net = (table.utility_of(choice) - price * table.cost_of(choice)).mean() + price * budget
    assert dual(table, price, budget) == pytest.approx(net, abs=fuzz)
