"""Frontier: the prices of the final fit that hold a budget, and bounds of the cost."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.errors import InfeasibleBudget
from adacompute.core.types import FloatArray
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.scoring.frontier import CalibrationSettings, PriceFrontier, list_frontier
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.evaluation.scoring.verdict import calibrate
from adacompute.policies.bundles.bundle import Bundle, FrontierPoint
from test_support.arm_pools import make_arm_pool


def frontier_of(experiment: Experiment, name: str) -> PriceFrontier:
    score = score_policy(experiment, name)
    final = find_factory(name)(experiment, np.arange(len(experiment.pool)))
    return PriceFrontier(score, final, CalibrationSettings())


def final_cost(frontier: PriceFrontier, price: float) -> float:
    """Return the cost of the final policy on its training questions, by a replay of its own."""
    return float(frontier.score.experiment.run(frontier.final, (price,)).cost.mean())


@pytest.fixture(scope="module")
def frontier(telling: Experiment) -> PriceFrontier:
    return frontier_of(telling, "sequential")


def test_a_setting_gets_the_price_that_costs_as_much_in_training(frontier: PriceFrontier) -> None:
    for setting in (2.0, 3.5, 5.0):
        cost = final_cost(frontier, frontier.price_at(setting))
        assert cost == pytest.approx(setting, rel=5e-3)  # a question's orders change together
        rough = final_cost(frontier, frontier.rough_price(setting))
        assert rough == pytest.approx(setting, rel=0.05)


def test_every_price_over_arms_costs_as_much_in_training() -> None:
    # With few questions and two arms, many prices cost the same, and the next one much more.
    pool = make_arm_pool(40, useless=True, large=1.6)
    experiment = Experiment(pool, (1, 2), (2.0,), n_permutations=2)
    frontier = frontier_of(experiment, "sequential")
    cost = np.array([final_cost(frontier, price) for price in frontier.final.prices])
    assert (np.diff(cost) == 0).any()
    settings = np.geomspace(cost.min(), cost.max(), 40).tolist()
    for setting in settings:
        for price in (frontier.rough_price(setting), frontier.price_at(setting)):
            assert final_cost(frontier, price) == pytest.approx(setting, rel=0.03)


def test_prices_do_not_transfer_between_fits_but_training_costs_do(telling: Experiment) -> None:
    score = score_policy(telling, "sequential")
    point = score.curve.read(3.0)
    prices = []
    for fold in score.curve.folds:
        (first,), _ = fold.locate(np.array([point.setting]))
        prices.append(fold.prices[first])
    assert max(prices) > 1.02 * min(prices)
    assert point.setting == pytest.approx(point.cost, rel=0.05)


def test_prices_fall_as_budgets_rise(frontier: PriceFrontier) -> None:
    budgets = np.linspace(1.2, 5.3, 30).tolist()
    points = [frontier.find(budget) for budget in budgets]
    assert [point.cost for point in points] == pytest.approx(budgets, abs=1e-9)
    prices = [frontier.rough_price(point.setting) for point in points]
    assert (np.diff(prices) <= 0).all()


def test_a_calibrated_budget_has_exactly_the_price_of_the_calibration(
    frontier: PriceFrontier,
) -> None:
    for budget in (1.0, 2.0, 3.3, 6.9):  # the last one is more than the policy can spend
        found = calibrate(frontier.score, frontier.final, budget=budget)
        points = tuple(FrontierPoint(**point) for point in found["frontier"])
        bundle = Bundle(frontier.final.policy, frontier=points)
        assert bundle.price_for(budget) == found["price"]
        highest = frontier.score.curve.cost[-1]
        assert found["cost"] == pytest.approx(min(budget, highest), abs=1e-9)
        assert [point.budget for point in points] == sorted(point.budget for point in points)
        assert (np.diff([point.price for point in points]) <= 0).all()
        with pytest.raises(InfeasibleBudget):
            bundle.price_for(0.9)


def test_a_budget_below_the_cheapest_price_is_refused(frontier: PriceFrontier) -> None:
    with pytest.raises(InfeasibleBudget, match=r"0\.9 .* 1,"):
        frontier.find(0.9)


def test_a_budget_beyond_the_most_expensive_price_is_the_end(frontier: PriceFrontier) -> None:
    end = frontier.find(100.0)
    assert end.cost == pytest.approx(frontier.score.curve.cost[-1])
    assert end.cost < 8.0
    assert frontier.price_at(end.setting) <= frontier.final.prices[0]


def test_the_frontier_rises_in_cost_and_encloses_its_means(frontier: PriceFrontier) -> None:
    points = list_frontier(frontier)
    costs = [point["cost"] for point in points]
    assert len(points) == 64
    assert costs == sorted(costs) == [point["budget"] for point in points]
    for point in points:
        assert point["cost_low"] <= point["cost"] <= point["cost_high"]
        assert point["accuracy_low"] <= point["accuracy"] <= point["accuracy_high"]
        assert point["rounds"] == pytest.approx(point["cost"])  # one sample per round, at cost 1


def test_a_stepped_policy_is_calibrated_to_a_step_within_the_budget(
    telling: Experiment,
) -> None:
    stepped = frontier_of(telling, "fixed")
    for budget, cost in ((1.0, 1.0), (2.9, 2.0), (4.0, 4.0), (5.9, 4.0), (50.0, 8.0)):
        point = stepped.find(budget)
        assert point.cost == cost
        assert final_cost(stepped, stepped.price_at(point.setting)) == cost
    points = list_frontier(stepped, stepped.find(3.0))
    assert [point["cost"] for point in points] == [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]
    bundle = Bundle(stepped.final.policy, frontier=tuple(FrontierPoint(**p) for p in points))
    for row in points:
        assert final_cost(stepped, bundle.price_for(row["budget"])) == row["cost"]


def influence_spread(score: PolicyScore, cost: float) -> FloatArray:
    return score.curve.read(cost).result.cost


def test_mean_cost_covers_questions_and_fits(frontier: PriceFrontier) -> None:
    score = frontier.score
    point = score.curve.read(3.0)
    cost, refit = score.mean_cost(point), score.refit_variance(point)
    spread = influence_spread(score, 3.0).std(ddof=1) / np.sqrt(len(score.group))
    assert cost.standard_error**2 == pytest.approx(spread**2 + refit.cost)
    assert refit.cost > 0


def test_a_final_fit_is_not_changed(frontier: PriceFrontier) -> None:
    final: FittedPolicy = frontier.final
    assert frontier.price_at(2.0) == frontier.price_at(2.0)
    assert final.prices == tuple(sorted(final.prices, reverse=True))
