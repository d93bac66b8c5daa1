"""Price search: held-out scores along prices, and prices that hold a budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacompute.core.errors import InfeasibleBudget
from adacompute.evaluation.factories import Experiment, find_factory
from adacompute.evaluation.price_search import (
    PriceSweep,
    find_price,
    list_frontier,
    mean_cost,
    sweep_prices,
)


@pytest.fixture(scope="module")
def sweep(telling: Experiment) -> PriceSweep:
    return sweep_prices(telling, find_factory("sequential"), 24)


def test_every_budget_finds_its_step_of_the_cost(sweep: PriceSweep) -> None:
    budgets = np.linspace(1.2, 7.0, 59)
    found = [
        find_price(sweep, budget, confidence=0.95, horizon=None) for budget in budgets.tolist()
    ]
    prices, costs = np.array([(price, result.cost.mean()) for price, result in found]).T
    assert (np.diff(prices) <= 0).all()
    assert (np.diff(costs) >= -1e-9).all()
    assert (costs > budgets * 0.75).all()


def test_a_horizon_leaves_more_room_than_the_long_run(sweep: PriceSweep) -> None:
    long_run, soon = (
        find_price(sweep, 3.0, confidence=0.95, horizon=horizon) for horizon in (None, 60)
    )
    assert soon[0] > long_run[0]
    assert soon[1].cost.mean() < long_run[1].cost.mean()
    cost = mean_cost(sweep, soon[1])
    assert cost.value + cost.margin(0.95, 60) <= 3.0 + 1e-9


def test_a_budget_below_the_cheapest_price_is_refused(sweep: PriceSweep) -> None:
    with pytest.raises(InfeasibleBudget, match=r"0\.9 .* 95%"):
        find_price(sweep, 0.9, confidence=0.95, horizon=None)


def test_every_question_is_scored_by_a_policy_that_has_not_seen_it(telling: Experiment) -> None:
    prices = (0.1, 0.01)
    sweep = sweep_prices(telling, find_factory("sequential"), prices)
    rows = np.flatnonzero(sweep.fold == 0)
    answers = telling.pool.answers
    correct = answers.correct.copy()
    correct[np.isin(answers.question, rows)] = False  # the key of the held-out questions
    changed = replace(telling.pool, answers=replace(answers, correct=correct))
    other = sweep_prices(replace(telling, pool=changed), find_factory("sequential"), prices)
    for first, again in zip(sweep.results, other.results, strict=True):
        assert (first.cost[rows] == again.cost[rows]).all()
    assert all((result.accuracy[rows] == 0).all() for result in other.results)


def test_the_frontier_rises_in_cost_and_encloses_its_means(sweep: PriceSweep) -> None:
    points = list_frontier(sweep, 0.95)
    costs = [point["cost"] for point in points]
    assert len(points) == 24
    assert costs == sorted(costs)
    for point in points:
        assert point["cost_low"] <= point["cost"] <= point["cost_high"]
        assert point["accuracy_low"] <= point["accuracy"] <= point["accuracy_high"]
