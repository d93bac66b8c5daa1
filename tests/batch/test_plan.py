"""The price of a batch: from costs of classes and the number of questions in each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.batch.planning.plan import ClassCosts, CostCurve, plan_at_total
from adacompute.core.errors import ConfigError, InfeasibleBudget

CURVE = CostCurve(np.array([0.4, 0.1, 0.05, 0.01]), np.array([1.0, 2.0, 2.0, 5.0]))
counts = st.lists(st.integers(0, 10**9), min_size=3, max_size=3).filter(any)


@given(st.floats(1.0, 5.0))
def test_price_and_cost_are_inverse(cost: float) -> None:
    assert CURVE.cost_at(CURVE.price_at(cost)) == pytest.approx(cost, rel=1e-9)


def test_of_several_prices_with_one_cost_the_highest_is_taken() -> None:
    assert CURVE.price_at(2.0) == 0.1
    assert CURVE.price_at(1.0) == 0.4
    assert CURVE.price_at(5.0) == 0.01


def test_costs_end_with_the_curve() -> None:
    assert CURVE.price_at(9.0) == 0.01
    assert CURVE.cost_at(0.0) == CURVE.cost_at(1e-30) == 5.0
    assert CURVE.cost_at(7.0) == 1.0
    for cost in (0.99, float("nan")):
        with pytest.raises(InfeasibleBudget):
            CURVE.price_at(cost)


@given(counts)
def test_the_cost_of_a_batch_is_the_sum_over_its_classes(number: list[int]) -> None:
    costs = ClassCosts(np.array([0.2, 0.1]), np.array([[1.0, 1.0, 2.0], [1.5, 4.0, 2.0]]))
    curve = costs.curve(np.array(number))
    total = sum(n * cost for n, cost in zip(number, costs.costs[1], strict=True))
    assert curve.cost_at(0.1) * sum(number) == pytest.approx(total)


def test_costs_of_a_curve_never_fall() -> None:
    costs = ClassCosts(np.array([0.2, 0.1]), np.array([[2.0], [1.0]]))
    assert costs.curve(np.array([3])).costs.tolist() == [2.0, 2.0]


def test_corrected_costs_have_the_known_mean() -> None:
    prices = np.array([0.4, 0.2, 0.1])
    costs = ClassCosts(prices, np.array([[1.0, 1.0], [1.5, 2.5], [2.0, 6.0]]))
    share = np.array([0.5, 0.5])
    known = CostCurve(prices[1:], np.array([1.6, 5.0]))
    fixed = costs.corrected(share, known)
    assert fixed.curve(share).costs == pytest.approx([1.0, 1.6, 5.0])
    assert fixed.costs[2] == pytest.approx([1 + 1.0 * 4 / 3, 1 + 5.0 * 4 / 3])
    assert fixed.costs[0].tolist() == [1.0, 1.0]


def test_a_plan_spends_the_total_or_all_it_can() -> None:
    plan = plan_at_total(CURVE, n_questions=10, total=35.0)
    assert plan.expected_cost == pytest.approx(35.0)
    assert 0.01 < plan.price < 0.05
    rich = plan_at_total(CURVE, n_questions=10, total=900.0)
    assert (rich.price, rich.expected_cost) == (0.01, 50.0)


@pytest.mark.parametrize("total", [0.0, -1.0, float("inf"), float("nan")])
def test_a_total_is_an_amount(total: float) -> None:
    with pytest.raises(ConfigError):
        plan_at_total(CURVE, n_questions=10, total=total)


def test_a_batch_without_questions_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan_at_total(CURVE, n_questions=0, total=1.0)
