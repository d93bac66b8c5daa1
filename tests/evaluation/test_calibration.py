"""Calibration: budgets that hold, verdicts that can say no, on populations whose truth is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.calibration import (
    Gain,
    Mean,
    betting_test,
    calibrate,
    calibrate_share,
    frontier,
    judge,
    price_budget,
    quantile,
    sweep_prices,
)
from adacompute.evaluation.factories import Experiment, find_factory
from adacompute.evaluation.pool import Pool
from adacompute.testing.populations import Population, mix_archetypes

LEVELS = (1, 2, 3, 4, 6, 8)


def experiment_of(pool: Pool, *, orders: int = 8) -> Experiment:
    return Experiment(pool, LEVELS, (2.0,), orders=orders, seed=0)


@pytest.fixture(scope="module")
def telling(pool_of: Callable[..., Pool]) -> Experiment:
    population, _ = mix_archetypes(240, telling=1.0)
    return experiment_of(pool_of(population, 16))


def blank(questions: int, seed: int) -> Population:
    """Questions on which every answer is as likely as any other: voting cannot help."""
    rng = np.random.default_rng(seed)
    return Population(np.full((questions, 4), 0.25), rng.random((questions, 3), dtype=np.float32))


def test_a_gain_is_found_where_there_is_one(telling: Experiment) -> None:
    found = calibrate(telling, "sequential", budget=3.0, prices=24)
    assert (found["verdict"], found["advice"]) == ("gain", "use this policy")
    assert 0 < found["gain_low"] < found["gain"] < found["gain_high"]
    assert found["questions_needed"] == 0
    assert found["retry_gain"] == 0.0
    assert found["cost"] < found["cost_high"] <= 3.0 + 1e-9
    assert found["cost_high"] > 2.8


def test_no_gain_is_said_where_there_is_none(pool_of: Callable[..., Pool]) -> None:
    found = calibrate(
        experiment_of(pool_of(blank(120, 0), 16)), "sequential", budget=2.0, prices=12
    )
    assert found["verdict"] == "no gain"
    assert found["advice"].startswith("use n = ")
    assert found["gain_low"] <= 0
    assert found["questions_needed"] is None or found["questions_needed"] > 0


def test_redrawing_what_could_not_be_read_is_told_apart(pool_of: Callable[..., Pool]) -> None:
    chance = np.tile([0.9, 0.1, 0.0], (120, 1))
    population = Population(chance, np.ones((120, 2), dtype=np.float32), null_rate=0.4)
    found = calibrate(experiment_of(pool_of(population, 16)), "sequential", budget=2.0, prices=12)
    assert found["gain"] > 0.05
    assert found["retry_gain"] > 0.8 * found["gain"]


def test_a_price_for_the_next_questions_leaves_more_room_than_one_for_the_long_run(
    telling: Experiment,
) -> None:
    long_run, soon = (
        calibrate(telling, "sequential", budget=3.0, prices=24, horizon=horizon)
        for horizon in (None, 60)
    )
    assert soon["price"] > long_run["price"]
    assert soon["cost"] < long_run["cost"]
    assert soon["cost_high"] <= 3.0 + 1e-9


def test_every_budget_finds_its_step_of_the_staircase(telling: Experiment) -> None:
    sweep = sweep_prices(telling, find_factory("sequential"), 24)
    found = [
        price_budget(sweep, budget, confidence=0.95, horizon=None)
        for budget in np.linspace(1.2, 7.0, 59).tolist()
    ]
    prices, costs = np.array([(price, ran.cost.mean()) for price, ran in found]).T
    assert (np.diff(prices) <= 0).all()
    assert (np.diff(costs) >= -1e-9).all()
    assert (costs > np.linspace(1.2, 7.0, 59) * 0.75).all()


def test_without_a_gain_the_best_mixture_is_advised(telling: Experiment) -> None:
    costs, worth = telling.table.costs.mean(axis=0), telling.table.utility.mean(axis=0)
    one, most = costs[0], costs[-1]
    none = Gain(0.0, -0.1, 0.1, 60)
    assert judge(telling, none, float(one))["advice"] == "use n = 1"
    assert judge(telling, none, float(most) * 2)["advice"] == (
        f"use n = {telling.levels[int(worth.argmax())]}"
    )
    between = judge(telling, none, float(one) * 1.5)["advice"]
    assert re.fullmatch(r"use n = 1, and n = \d+ for \d+ % of the questions", between)


def test_a_budget_that_cannot_be_held_is_refused(telling: Experiment) -> None:
    with pytest.raises(ConfigError, match="cannot be held with 95% confidence"):
        calibrate(telling, "sequential", budget=0.9, prices=8)


def test_every_question_is_scored_by_a_policy_that_has_not_seen_it(telling: Experiment) -> None:
    prices = (0.1, 0.01)
    sweep = sweep_prices(telling, find_factory("sequential"), prices)
    rows = np.flatnonzero(sweep.fold == 0)
    answers = telling.pool.answers
    right = answers.correct.copy()
    mine = np.isin(answers.question, rows)
    right[mine] = False  # no policy that scores these may have looked at their key
    changed = replace(telling.pool, answers=replace(answers, correct=right))
    other = sweep_prices(replace(telling, pool=changed), find_factory("sequential"), prices)
    for first, again in zip(sweep.runs, other.runs, strict=True):
        assert (first.cost[rows] == again.cost[rows]).all()
    assert all((ran.accuracy[rows] == 0).all() for ran in other.runs)


def test_the_frontier_rises_in_cost_and_holds_its_means(telling: Experiment) -> None:
    points = frontier(sweep_prices(telling, find_factory("sequential"), (0.2, 0.02, 0.002)), 0.95)
    costs = [point["cost"] for point in points]
    assert costs == sorted(costs)
    for point in points:
        assert point["cost_low"] <= point["cost"] <= point["cost_high"]
        assert point["accuracy_low"] <= point["accuracy"] <= point["accuracy_high"]


def test_a_share_of_the_accuracy_is_kept_at_the_least_cost(telling: Experiment) -> None:
    kept: dict[str, Any] = {"accuracy_of": 8, "prices": 24}
    most = calibrate_share(telling, "sequential", share=0.95, **kept)
    less = calibrate_share(telling, "sequential", share=0.85, **kept)
    assert most["share_low"] >= 0.95
    assert less["cost"] < most["cost"] < most["full_cost"] == 8.0
    assert most["accuracy"] >= 0.95 * most["full_accuracy"]


def test_a_share_that_cannot_be_shown_is_refused(pool_of: Callable[..., Pool]) -> None:
    experiment = experiment_of(pool_of(blank(60, 1), 16))
    with pytest.raises(DataError, match="cannot show 99% of the accuracy of 8 samples"):
        calibrate_share(experiment, "sequential", accuracy_of=8, share=0.99, prices=8)
    with pytest.raises(ConfigError, match="7 samples are not a level"):
        calibrate_share(experiment, "sequential", accuracy_of=7, share=0.9)


def test_too_few_questions_and_unreadable_samples_are_refused(pool_of: Callable[..., Pool]) -> None:
    with pytest.raises(DataError, match="30 different questions are too few"):
        calibrate(experiment_of(pool_of(blank(30, 0), 16)), "sequential", budget=2.0)
    unread = replace(blank(60, 0), null_rate=0.7)
    with pytest.raises(DataError, match="could not be read, more than 50%"):
        calibrate(experiment_of(pool_of(unread, 16)), "sequential", budget=2.0)


def test_quantiles_are_those_of_student() -> None:
    tables = {10: 2.2622, 30: 2.0452, 100: 1.9842, 100_000: 1.9600}
    for groups, value in tables.items():
        assert quantile(0.975, groups) == pytest.approx(value, rel=2e-3)


def test_copies_of_a_question_do_not_narrow_an_interval() -> None:
    value = np.random.default_rng(0).random(50)
    alone = Mean.of(value, 0.0, np.arange(50, dtype=np.uint64))
    twice = Mean.of(np.tile(value, 2), 0.0, np.tile(np.arange(50, dtype=np.uint64), 2))
    assert twice.error == pytest.approx(alone.error)
    assert twice.bound(0.95) == pytest.approx(alone.bound(0.95))


def test_predictions_of_the_next_mean_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(2000):
        seen, horizon = rng.exponential(size=80), rng.exponential(size=30)
        mean = Mean.of(seen, 0.0, np.arange(80, dtype=np.uint64))
        held.append(horizon.mean() <= mean.value + mean.bound(0.95, 30))
    assert 0.92 <= np.mean(held) <= 0.98


def test_a_bet_is_seldom_won_without_an_edge_and_often_with_one() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(300, dtype=np.uint64)
    fair = [
        betting_test(rng.choice([-0.5, 0.5], 300), group, lowest=-0.5, confidence=0.95)
        for _ in range(1000)
    ]
    edge = [
        betting_test(
            rng.choice([-0.5, 0.5], 300, p=[0.35, 0.65]), group, lowest=-0.5, confidence=0.95
        )
        for _ in range(200)
    ]
    assert np.mean(fair) <= 0.05
    assert np.mean(edge) > 0.9


def test_more_questions_are_asked_for_as_the_interval_is_wider_than_the_gain() -> None:
    assert Gain(0.01, -0.01, 0.03, 100).more == 300
    assert Gain(0.02, 0.01, 0.03, 100).more == 0
    assert Gain(0.0, -0.01, 0.01, 100).more is None
