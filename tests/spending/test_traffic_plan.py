from __future__ import annotations

import math

import numpy as np
import pytest

from adacompute.core.errors import ConfigError
from adacompute.spending.pacing import Aim, Counters, Pacer, PriceCurve
from adacompute.spending.traffic_plan import DAY_S, TrafficPlan

CURVE = PriceCurve((1.0, 2.0, 4.0, 8.0), (0.8, 0.1, 0.02, 0.001))
PACER = Pacer(CURVE, max_cost=16)
DAY = TrafficPlan((1000.0, 0.0, 3000.0, 1000.0), (2.0, 2.0, 4.0, 1.0), budget=3.0)


def serve_day(
    plan: TrafficPlan, total: float, counts: list[int], factors: list[float]
) -> tuple[float, list[float]]:
    """Serve questions per slot that cost ``factors`` times what the frontier is asked for.

    Return what was spent, and the prices.
    """
    state, prices = PACER.start(plan.aim(total / plan.n_questions, time_s=0.0)), []
    for slot, (count, factor) in enumerate(zip(counts, factors, strict=True)):
        for i in range(count):
            n, time_s = state.settled + 1, (slot + i / count) * plan.period_s / len(counts)
            spent = state.spent + factor * PACER.budget(state)
            aim = plan.aim_total(
                total,
                time_s=time_s,
                n_served=n,
                planned=state.planned + state.target,
                curve=CURVE,
            )
            state = PACER.advance(state, Counters(n, n, spent), aim)
            prices.append(PACER.price(state))
    return state.spent, prices


def test_the_targets_of_a_day_have_the_budget_as_their_mean() -> None:
    times = [DAY_S * (slot + 0.5) / 4 for slot in range(4)]
    aims = [DAY.aim(2.5, time_s=time_s) for time_s in times]
    assert np.average([aim.target for aim in aims], weights=DAY.questions) == pytest.approx(2.5)
    assert {aim.budget for aim in aims} == {2.5 / DAY.mean_cost * 3.0}
    assert aims[2].target == pytest.approx(2 * aims[0].target)


def test_an_even_plan_aims_at_the_budget() -> None:
    plan = TrafficPlan.uniform(1000, 2.0)
    assert plan.aim(3.0, time_s=5.0) == Aim(3.0, 3.0)


def test_a_plan_from_a_log_counts_by_slot() -> None:
    plan = TrafficPlan.from_log([0, 10, DAY_S / 2, 2 * DAY_S], [1, 3, 6, 2], budget=2.0, n_slots=3)
    assert plan.questions == (3.0, 1.0, 0.0)
    assert plan.mean_costs == (2.0, 6.0, 3.0)


def test_with_a_right_plan_the_price_stays_the_same_and_the_total_is_held() -> None:
    total = 2.5 * DAY.n_questions
    factors = [cost / 3.0 for cost in DAY.mean_costs]
    spent, prices = serve_day(DAY, total, [1000, 0, 3000, 1000], factors)
    assert spent == pytest.approx(total, rel=2e-3)
    assert max(prices[:-50]) / min(prices[:-50]) < 1.05


def test_without_the_plan_of_hours_the_price_follows_the_traffic() -> None:
    steady = TrafficPlan.uniform(DAY.n_questions, 3.0)
    factors = [cost / 3.0 for cost in DAY.mean_costs]
    spent, prices = serve_day(steady, 2.5 * DAY.n_questions, [1000, 0, 3000, 1000], factors)
    assert max(prices) / min(prices) > 2
    assert spent == pytest.approx(2.5 * DAY.n_questions, rel=0.05)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_a_total_is_held_although_costs_differ_from_the_plan(factor: float) -> None:
    plan = TrafficPlan.uniform(10_000, 3.0)
    spent, _ = serve_day(plan, 30_000.0, [10_000], [factor])
    assert spent == pytest.approx(30_000, rel=0.01)


@pytest.mark.parametrize("volume", [0.7, 1.5])
def test_a_total_is_held_although_more_or_fewer_questions_come(volume: float) -> None:
    plan = TrafficPlan.uniform(10_000, 3.0)
    spent, _ = serve_day(plan, 30_000.0, [int(10_000 * volume)], [1.0])
    assert spent == pytest.approx(30_000, rel=0.02)


def test_a_used_up_total_leaves_the_cheapest_budget() -> None:
    plan = TrafficPlan.uniform(1000, 3.0)
    aim = plan.aim_total(3000, time_s=DAY_S / 2, n_served=900, planned=3000.0, curve=CURVE)
    assert aim == Aim(1.0, 1.0)


def test_idle_hours_leave_more_for_the_rest() -> None:
    plan = TrafficPlan.uniform(1000, 3.0)
    aims = [
        plan.aim_total(3000, time_s=share * DAY_S, n_served=0, planned=0.0, curve=CURVE).target
        for share in (0.0, 0.1, 0.2)
    ]
    assert aims[0] == pytest.approx(3.0)
    assert aims[0] < aims[1] < aims[2] < CURVE.max_budget


@pytest.mark.parametrize(
    ("questions", "costs", "budget", "period_s"),
    [
        ((), (), 1.0, 1.0),
        ((1.0,), (1.0, 2.0), 1.0, 1.0),
        ((0.0,), (1.0,), 1.0, 1.0),
        ((1.0,), (-1.0,), 1.0, 1.0),
        ((1.0,), (math.nan,), 1.0, 1.0),
        ((1.0,), (1.0,), 0.0, 1.0),
        ((1.0,), (1.0,), 1.0, 0.0),
    ],
)
def test_other_plans_are_refused(
    questions: tuple[float, ...], costs: tuple[float, ...], budget: float, period_s: float
) -> None:
    with pytest.raises(ConfigError):
        TrafficPlan(questions, costs, budget, period_s)


def test_an_empty_log_is_no_plan() -> None:
    with pytest.raises(ConfigError):
        TrafficPlan.from_log([], [], budget=2.0)
