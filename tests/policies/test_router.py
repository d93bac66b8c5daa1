from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import Float32Array, FloatArray, IntArray, UtilityTable, make_levels
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, SampleMatrix, State
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.router import (
    RouterPolicy,
    RouterTraining,
    fit_router,
    max_regret,
)

LEVELS = make_levels((1, 2, 4))
COST = np.array([1.0, 2.0, 4.0])


@dataclass(frozen=True)
class Told:
    """A predictor whose scores are its features."""

    def predict(self, features: Float32Array) -> FloatArray:
        return features.astype(np.float64)


@dataclass(frozen=True)
class Always:
    """A predictor that always scores one level highest."""

    level: int

    def predict(self, features: Float32Array) -> FloatArray:
        return np.tile(np.eye(3)[self.level], (len(features), 1))


def state_of(features: FloatArray | Float32Array, at: IntArray | None = None) -> State:
    size = len(features)
    return State(
        key=np.arange(size, dtype=np.uint64),
        features=np.asarray(features, dtype=np.float32),
        cost=np.broadcast_to(COST, (size, 3)),
        observed=ObservedSamples(
            SampleMatrix(np.zeros((size, 4), np.int64)), np.arange(size), np.zeros(size, int)
        ),
        level=np.full(size, NO_LEVEL) if at is None else at,
        rounds_left=np.ones(size, dtype=np.int64),
    )


def separable(questions: int = 200) -> tuple[Float32Array, UtilityTable]:
    """Return a feature that identifies which of three curves a question has."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, questions)
    curves = np.array([[0.9, 0.9, 0.9], [0.1, 0.7, 0.7], [0.1, 0.15, 0.9]])
    features = np.stack([kind + rng.normal(0, 0.05, questions), rng.normal(size=questions)], axis=1)
    return features.astype(np.float32), UtilityTable(curves[kind], COST)


def test_routers_stop_once_a_level_is_reached() -> None:
    state = state_of(np.tile([0.0, 0.0, 1.0], (3, 1)), at=np.array([0, NO_LEVEL, 1]))
    assert RouterPolicy(LEVELS, (Told(),), PriceSchedule((1.0,))).decide(state, 0.01).tolist() == [
        0,
        2,
        1,
    ]
    there = state_of(np.ones((2, 3)), at=np.array([0, 1]))
    assert RouterPolicy(LEVELS, (Told(),), PriceSchedule((1.0,))).decide(there, 0.01).tolist() == [
        0,
        1,
    ]


def test_a_router_mixes_the_classifiers_of_two_prices() -> None:
    router = RouterPolicy(LEVELS, (Always(0), Always(1), Always(2)), PriceSchedule((0.4, 0.2, 0.1)))
    state = state_of(np.zeros((10_000, 1)))
    for level, price in enumerate(router.schedule.prices):
        assert (router.decide(state, price) == level).all()
    mixed = router.decide(state, router.schedule.price_at(1.25))
    assert set(mixed.tolist()) == {1, 2}
    assert (mixed == 2).mean() == pytest.approx(0.25, abs=0.015)


def test_max_regret_is_the_loss_of_the_worst_level() -> None:
    table = UtilityTable(np.array([[0.5, 0.6, 0.7], [0.2, 0.9, 0.1]]), COST)
    best = np.array([0, 1])
    weight = max_regret(table, best, 0.1)
    net = table.utility - 0.1 * COST
    assert weight == pytest.approx((net[[0, 1], best][:, None] - net).max(axis=1))


def test_a_router_learns_the_oracle_from_informative_features() -> None:
    features, table = separable()
    router = fit_router(features, table, LEVELS, RouterTraining(budgets=(1.2, 1.6, 2.3)))
    assert len(router.models) == len(router.schedule.prices) == 3
    for budget, price in zip((1.2, 1.6, 2.3), router.schedule.prices, strict=True):
        oracle = solve(table, budget)
        agree = router.decide(state_of(features), price) == oracle.choice
        assert (
            agree.mean() > 0.75
        )  # questions with equal ratios are bought by the hash of their keys
        assert price == pytest.approx(oracle.price)


def test_budgets_with_the_same_labels_share_one_classifier() -> None:
    features, table = separable(60)
    router = fit_router(features, table, LEVELS, RouterTraining(budgets=(9.0, 8.0, 7.0, 1.0, 1.0)))
    assert len(router.models) == len(router.schedule.prices) == 2
    assert (
        router.schedule.prices[1] == router.schedule.prices[0] / 2
    )  # if all upgrades fit, the price is 0
    everything = fit_router(features, table, LEVELS, RouterTraining(budgets=(9.0,)))
    assert everything.schedule.prices == (1.0,)


def test_budgets_with_equal_prices_keep_their_classifiers() -> None:
    table = UtilityTable(np.tile([0.2, 0.6], (40, 1)), np.array([1.0, 2.0]))
    features = np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32)
    router = fit_router(features, table, make_levels((1, 2)), RouterTraining(budgets=(1.25, 1.75)))
    assert len(router.models) == 2
    assert router.schedule.prices == pytest.approx((0.4, 0.4))
