from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from adacompute.core.allocation import limits as module
from adacompute.core.allocation.limits import solve_limits
from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.core.types import UtilityTable

if TYPE_CHECKING:
    from adacompute.core.types import Allocation, FloatArray

NAMES = ("latency", "money")


class Problem:
    """A table with several costs, and a budget for each."""

    def __init__(self, utility: FloatArray, costs: list[FloatArray], bounds: list[float]) -> None:
        self.names = list(NAMES[: len(costs) - 1])
        self.table = UtilityTable(
            utility, costs[0], extra_costs=dict(zip(self.names, costs[1:], strict=True))
        )
        own = [self.table.cost, *(self.table.extra_costs[name] for name in self.names)]
        self.costs = [np.broadcast_to(cost, utility.shape) for cost in own]
        self.bounds = bounds

    def solve(self) -> Allocation:
        limits = dict(zip(self.names, self.bounds[1:], strict=True))
        return solve_limits(self.table, self.bounds[0], limits)

    def optimum(self) -> float | None:
        """Return the optimum of a linear solver; None if it is infeasible."""
        size, levels = self.table.utility.shape
        found = linprog(
            -self.table.utility.ravel() / size,
            A_ub=np.stack([cost.ravel() / size for cost in self.costs]),
            b_ub=self.bounds,
            A_eq=np.kron(np.eye(size), np.ones(levels)),
            b_eq=np.ones(size),
        )
        return None if found.fun is None else -float(found.fun)

    def weights(self, found: Allocation) -> FloatArray:
        """Return the probability of every level on every question."""
        rows = np.arange(len(self.table))
        weights = np.zeros(self.table.utility.shape)
        weights[rows, found.choice] = 1.0
        split = found.split
        np.add.at(weights, (split.question, split.level), split.probability)
        np.add.at(weights, (split.question, found.choice[split.question]), -split.probability)
        return weights

    def fits(self, choice: list[int]) -> bool:
        return all(
            sum(Fraction(float(row[k])) for row, k in zip(cost, choice, strict=True))
            <= Fraction(bound) * len(self.table)
            for cost, bound in zip(self.costs, self.bounds, strict=True)
        )


@st.composite
def _problems(draw: st.DrawFn, *, monotone: bool) -> Problem:
    """Draw a problem; a monotone one has a level that is cheapest in all costs."""
    size, levels = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    steps = draw(st.sampled_from([4, 1000]))
    unit = st.integers(0, steps).map(lambda n: n / steps)
    utility = draw(arrays(np.float64, (size, levels), elements=unit))
    costs, bounds = [], []
    for _ in range(draw(st.integers(2, 3))):
        shape = draw(st.sampled_from([(levels,), (size, levels)]))
        cost = draw(arrays(np.float64, shape, elements=st.integers(0, 40).map(lambda n: n / 4)))
        cost = np.sort(cost, axis=-1) if monotone else cost
        costs.append(cost)
        every = np.broadcast_to(cost, utility.shape)
        lowest, highest = float(every.min(axis=1).sum()), float(every.max(axis=1).sum())
        room = draw(st.one_of(st.floats(0, 1.1), st.integers(0, 8).map(lambda n: n / 8)))
        bounds.append(float(np.nextafter((lowest + room * (highest - lowest)) / size, np.inf)))
    return Problem(utility, costs, bounds)


@given(_problems(monotone=True))
def test_several_budgets_agree_with_a_linear_solver(problem: Problem) -> None:
    best = problem.optimum()
    found = problem.solve()
    assert best is not None
    assert found.mixed_utility == pytest.approx(best, abs=1e-6)
    assert found.bound == pytest.approx(max(best, found.utility), abs=1e-6)
    assert found.utility <= found.bound + 1e-12


@given(_problems(monotone=True))
def test_no_budget_is_overspent_and_few_questions_are_split(problem: Problem) -> None:
    found = problem.solve()
    assert problem.fits(found.choice.tolist())
    weights = problem.weights(found)
    assert weights.min() >= -1e-9
    for cost, bound in zip(problem.costs, problem.bounds, strict=True):
        assert (weights * cost).sum() / len(weights) <= bound + 1e-9
    split = ((weights > 1e-9) & (weights < 1 - 1e-9)).any(axis=1)
    assert split.sum() <= len(problem.costs)
    mean = float((weights * problem.table.utility).sum()) / len(weights)
    assert found.mixed_utility == pytest.approx(mean, abs=1e-9)
    assert found.mixed_cost == pytest.approx((weights * problem.costs[0]).sum() / len(weights))


@given(_problems(monotone=True))
def test_prices_satisfy_complementary_slackness(problem: Problem) -> None:
    found = problem.solve()
    weights = problem.weights(found)
    assert list(found.prices) == list(found.costs) == problem.names
    for price, cost, bound in zip(
        [found.price, *found.prices.values()], problem.costs, problem.bounds, strict=True
    ):
        assert price >= 0
        assert price * (bound - (weights * cost).sum() / len(weights)) == pytest.approx(0, abs=1e-9)
    rows = np.arange(len(weights))
    for spent, cost in zip([found.cost, *found.costs.values()], problem.costs, strict=True):
        assert spent == pytest.approx(cost[rows, found.choice].mean())


@given(_problems(monotone=False))
def test_levels_that_trade_one_cost_for_another_are_solved_or_rejected(problem: Problem) -> None:
    best, found, refusal = problem.optimum(), None, ""
    try:
        found = problem.solve()
    except InfeasibleBudget as error:
        refusal = str(error)
    if found is None and best is None:
        choices = itertools.product(range(problem.table.n_levels), repeat=len(problem.table))
        assert not any(problem.fits(list(choice)) for choice in choices)
    elif found is None:
        assert "mixture" in refusal
    else:
        assert problem.fits(found.choice.tolist())
        assert found.mixed_utility == pytest.approx(best, abs=1e-6)
        assert found.bound == pytest.approx(max(best or 0.0, found.utility), abs=1e-6)


@pytest.mark.parametrize("budgets", [2, 3])
def test_larger_tables_agree_with_a_linear_solver(budgets: int) -> None:
    rng = np.random.default_rng(4)
    utility = np.cumsum(rng.random((120, 4)) * np.array([1.0, 0.3, 0.2, 0.1]), axis=1) / 2
    costs = [np.array([1.0, 2.0, 4.0, 8.0]), np.sort(rng.random((120, 4)) * 1e4, axis=1)]
    costs.append(np.sort(rng.integers(1, 50, (120, 4)).astype(np.float64), axis=1))
    problem = Problem(utility, costs[:budgets], [2.4, 3600.0, 18.5][:budgets])
    found = problem.solve()
    best = problem.optimum()
    assert best is not None
    assert found.mixed_utility == pytest.approx(best, abs=1e-6)
    assert min(found.price, *found.prices.values()) > 0
    assert found.gap < 0.02


def test_at_most_as_many_questions_are_split_as_there_are_budgets() -> None:
    third, two_thirds = 1 / 3, 2 / 3
    utility = np.array([[third, 1], [0, 1], [third, 1], [0, 1], [0, two_thirds], [0, 1]])
    cost = np.array([[1.0, 2], [4, 4], [0, 4], [2, 4], [1, 4], [0, 4]])
    bounds = [float(np.nextafter(total / 6, np.inf)) for total in (14, 26)]
    problem = Problem(utility, [cost, np.array([4.0, 5.0])], bounds)
    weights = problem.weights(problem.solve())
    assert ((weights > 1e-9) & (weights < 1 - 1e-9)).any(axis=1).sum() <= 2


def test_without_limits_it_equals_solve() -> None:
    rng = np.random.default_rng(0)
    table = UtilityTable(rng.random((50, 3)), np.array([1.0, 2.0, 4.0]))
    plain, found = solve(table, 1.7), solve_limits(table, 1.7, {})
    assert np.array_equal(plain.choice, found.choice)
    assert plain.mixed_utility == pytest.approx(found.mixed_utility)
    assert plain.price == found.price
    assert found.prices == found.costs == {}


def test_a_slack_limit_has_no_price() -> None:
    table = UtilityTable(
        np.array([[0.0, 1.0], [0.0, 0.5]]),
        np.array([1, 2]),
        extra_costs={"latency": np.array([1, 9])},
    )
    found = solve_limits(table, 1.5, {"latency": 9.0})
    assert (found.price, found.prices, found.choice.tolist()) == (0.5, {"latency": 0.0}, [1, 0])
    assert found.costs == {"latency": 5.0}


def test_a_limit_met_exactly_needs_no_split() -> None:
    table = UtilityTable(
        np.array([[0.0, 1.0], [0.0, 0.5]]),
        np.array([1, 2]),
        extra_costs={"latency": np.array([1, 3])},
    )
    found = solve_limits(table, 2.0, {"latency": 2.0})
    assert (found.choice.tolist(), len(found.split)) == ([1, 0], 0)
    assert found.gap == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_a_limit_rounded_down_is_not_exceeded(size: int) -> None:
    """(size + 2) / size may be rounded down as a float; then one upgrade less fits."""
    table = UtilityTable(
        np.tile([0.0, 1.0], (size, 1)), np.array([3, 5]), extra_costs={"latency": np.array([1, 2])}
    )
    limit = (size + 2) / size
    found = solve_limits(table, 5.0, {"latency": limit})
    fits = 2 if Fraction(limit) * size >= size + 2 else 1
    assert found.choice.sum() == fits
    assert found.mixed_utility == pytest.approx(2 / size)


def test_a_total_above_a_limit_by_rounding_is_repaired() -> None:
    """1.4 × 5 is slightly below 7 as a float: a mixture fits two upgrades, the choice only one."""
    table = UtilityTable(
        np.array([[0.0, 1.0], [0.0, 0.5], [0.25, 0.75], [0.0, 1.0], [0.25, 0.0]]),
        np.array([3, 5]),
        extra_costs={"latency": np.array([1, 2])},
    )
    found = solve_limits(table, 4.2, {"latency": 1.4})
    assert Fraction(1.4) * 5 < 7
    assert sorted([*np.flatnonzero(found.choice), *found.split.question]) == [0, 3]
    assert found.split.probability.tolist() == [1.0]
    assert found.mixed_utility == pytest.approx(0.5)


def test_a_probability_that_rounds_to_one_is_no_split() -> None:
    """1 / 15 is rounded down as a float: the upgrade does not fit by 2 ** -56."""
    utility, cost = np.zeros((15, 2)), np.zeros((15, 2))
    utility[7, 1] = cost[7, 1] = 1.0
    table = UtilityTable(utility, cost, extra_costs={"latency": np.array([1.0, 1.0])})
    assert 1 - Fraction(1 / 15) * 15 == Fraction(1, 2**56)
    plain, found = solve(table, 1 / 15), solve_limits(table, 1 / 15, {"latency": 1.0})
    assert plain.split.probability.tolist() == [1.0]
    assert plain.choice.tolist() == found.choice.tolist() == [0] * 15
    assert found.mixed_utility == pytest.approx(1 / 15)


def test_limits_without_a_feasible_mixture_are_infeasible() -> None:
    table = UtilityTable(
        np.array([[0.5, 0.5]]), np.array([1, 3]), extra_costs={"latency": np.array([3, 1])}
    )
    with pytest.raises(InfeasibleBudget, match="no allocation"):
        solve_limits(table, 1.5, {"latency": 1.5})


def test_limits_that_only_a_mixture_meets_are_rejected() -> None:
    table = UtilityTable(
        np.array([[0.5, 0.5]]), np.array([1, 3]), extra_costs={"latency": np.array([3, 1])}
    )
    with pytest.raises(InfeasibleBudget, match="mixture"):
        solve_limits(table, 2.0, {"latency": 2.0})


@pytest.mark.parametrize(("budget", "limit", "name"), [(0.5, 9.0, "cost"), (9.0, 0.5, "latency")])
def test_a_budget_below_the_minimum_of_one_cost_is_infeasible(
    budget: float, limit: float, name: str
) -> None:
    table = UtilityTable(
        np.array([[0.0, 1.0]]), np.array([1, 2]), extra_costs={"latency": np.array([1, 2])}
    )
    with pytest.raises(InfeasibleBudget, match=rf"0\.5 on {name} is below 1"):
        solve_limits(table, budget, {"latency": limit})


def test_a_limit_on_an_unknown_cost_is_rejected() -> None:
    table = UtilityTable(np.array([[0.0]]), np.array([1.0]))
    with pytest.raises(ConfigError, match=r"'latency'.*none"):
        solve_limits(table, 1.0, {"latency": 1.0})


def test_limits_must_be_finite() -> None:
    table = UtilityTable(
        np.array([[0.0]]), np.array([1.0]), extra_costs={"latency": np.array([1.0])}
    )
    for limit in (np.nan, np.inf):
        with pytest.raises(ConfigError, match="finite"):
            solve_limits(table, 1.0, {"latency": limit})


def test_a_table_without_questions_is_rejected() -> None:
    with pytest.raises(DataError, match="no question"):
        solve_limits(UtilityTable(np.empty((0, 2)), np.array([1.0, 2.0])), 1.0, {})


def test_an_aborted_search_still_returns_a_valid_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    costs = [np.array([1.0, 2.0, 4.0]), np.sort(rng.random((60, 3)) * 9, axis=1)]
    problem = Problem(np.sort(rng.random((60, 3)), axis=1), costs, [2.0, 3.0])
    best = problem.optimum()
    assert best is not None
    monkeypatch.setattr(module, "MAX_STEPS", 1)
    found = problem.solve()
    assert problem.fits(found.choice.tolist())
    assert found.mixed_utility < best - 1e-6
    assert found.bound > best + 1e-6
