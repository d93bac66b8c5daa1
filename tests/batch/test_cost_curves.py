"""Expected costs of policies: as their tables say, and as they really decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from adacompute.batch.planning.cost_curves import (
    cell_costs,
    frontier_curve,
    has_cell_costs,
    router_curve,
    sequential_costs,
)
from adacompute.core.errors import BundleError
from adacompute.core.states import states
from adacompute.core.types import IntArray
from adacompute.evaluation.evidence_factories import make_fitted
from adacompute.evaluation.experiment import Experiment
from adacompute.policies.bundles.bundle import Bundle
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, SampleMatrix, State
from adacompute.policies.router import RouterPolicy
from adacompute.policies.sequential.policy import SequentialPolicy


def walk(bundle: Bundle, cell: int, price: float, n_questions: int) -> float:
    """Return the mean cost of questions whose votes move as the measure of their cell says."""
    policy = bundle.policy
    assert isinstance(policy, SequentialPolicy)
    table, rng = states(), np.random.default_rng(cell)
    key = rng.integers(0, 2**63, n_questions).astype(np.uint64)
    state = np.zeros(n_questions, dtype=np.int64)
    alive, total = np.arange(n_questions), 0.0
    features = np.full((n_questions, 1), cell, dtype=np.float32)
    for n in range(len(policy.levels)):
        limit = policy.continue_price(state[alive, None], features[alive], key[alive])[:, 0]
        goes_on = (limit > price * bundle.sample_cost) | (n == 0)
        alive = alive[goes_on]
        total += len(alive) * bundle.sample_cost
        mass = policy.votes.measure.mass[:, cell]
        for one in np.unique(state[alive]):
            rows = alive[state[alive] == one]
            after, back = table.successor[one], table.backward_probability[one]
            weight = np.where(back > 0, mass[after] * back, 0.0)
            state[rows] = rng.choice(after, len(rows), p=weight / weight.sum())
    return total / n_questions


@pytest.mark.parametrize("cost", [1.0, 0.02])
def test_costs_of_cells_are_those_of_episodes(sequential: Bundle, cost: float) -> None:
    bundle = replace(sequential, sample_cost=cost)
    costs = sequential_costs(bundle)
    for cell, price in ((0, 0.05), (5, 0.02), (9, 0.005)):
        curve = costs.curve(np.eye(costs.costs.shape[1], dtype=np.int64)[cell])
        expected = walk(bundle, cell, price / cost, 4000)
        assert curve.cost_at(price / cost) == pytest.approx(expected, rel=0.05)


def test_costs_rise_from_one_sample_to_almost_all_that_help(sequential: Bundle) -> None:
    costs = sequential_costs(sequential)
    assert (np.diff(costs.prices) < 0).all()
    assert (np.diff(costs.costs, axis=0) >= -1e-5).all()
    assert costs.costs[0] == pytest.approx(1.0, abs=1e-4)
    assert costs.costs[-1].max() <= 16.0


def test_the_curve_is_near_the_frontier_of_the_calibration(sequential: Bundle) -> None:
    costs = sequential_costs(sequential)
    curve = costs.curve(np.ones(costs.costs.shape[1], dtype=np.int64))
    for point in sequential.frontier[::8]:
        assert curve.cost_at(point.price) == pytest.approx(point.cost, rel=0.3)


def test_costs_of_cells_agree_with_held_out_costs_on_the_training_questions(
    sequential: Bundle,
) -> None:
    baseline = sequential.baseline
    assert baseline is not None
    curve = cell_costs(sequential).curve(np.array(baseline.cell_share))
    for point in sequential.frontier[::4]:
        assert curve.cost_at(point.price) == pytest.approx(point.cost, rel=0.01)
    unknown = replace(sequential, baseline=replace(baseline, cell_share=()))
    assert cell_costs(unknown).costs.tolist() == sequential_costs(sequential).costs.tolist()


def test_costs_of_cells_over_arms_are_those_in_training(
    corrected: Bundle, arms: Experiment
) -> None:
    baseline = corrected.baseline
    assert has_cell_costs(corrected)
    assert baseline is not None
    assert not has_cell_costs(replace(corrected, baseline=replace(baseline, cell_cost=())))
    fitted = make_fitted(arms, np.arange(80), arms.pool.features)
    assert fitted.known is not None
    curve = cell_costs(corrected).curve(np.array(baseline.cell_share))
    for i in (5, 15, 28):
        mean = float(fitted.known.cost[:, i].mean())
        assert curve.cost_at(fitted.prices[i]) == pytest.approx(mean, rel=0.02)


def test_limited_rounds_have_no_costs_of_cells(sequential: Bundle, mixture: Bundle) -> None:
    assert has_cell_costs(sequential)
    assert has_cell_costs(replace(sequential, max_rounds=16))
    assert not has_cell_costs(replace(sequential, max_rounds=2))
    assert not has_cell_costs(mixture)
    with pytest.raises(TypeError):
        sequential_costs(mixture)
    with pytest.raises(TypeError):
        router_curve(mixture, np.ones((1, 1), dtype=np.int64))


def route(bundle: Bundle, features: np.ndarray, key: np.ndarray, price: float) -> IntArray:
    n = len(features)
    state = State(
        key=key,
        features=features,
        cost=np.broadcast_to(bundle.level_cost, (n, len(bundle.policy.levels))),
        observed=ObservedSamples(
            SampleMatrix(np.empty((n, 0), dtype=np.int64)),
            np.arange(n),
            np.zeros(n, dtype=np.int64),
        ),
        level=np.full(n, NO_LEVEL),
        rounds_left=np.full(n, 9),
    )
    return bundle.policy.decide(state, price)


def test_costs_of_the_router_are_those_of_its_decisions(
    router: Bundle, make_texts: Callable[[int], list[str]]
) -> None:
    from adacompute.features.text import extract_features

    policy = router.policy
    assert isinstance(policy, RouterPolicy)
    features = extract_features(make_texts(4000))
    choice = [model.predict(features).argmax(axis=1) for model in policy.models]
    counts = np.stack([np.bincount(one, minlength=4) for one in choice])
    curve = router_curve(router, counts)
    key = np.random.default_rng(0).integers(0, 2**63, 4000).astype(np.uint64)
    for price in (policy.schedule.prices[0] * 2, policy.schedule.price_at(0.6)):
        found = router.level_cost[0][route(router, features, key, price)].mean()
        assert curve.cost_at(price) == pytest.approx(found, rel=0.04)


def test_other_policies_have_the_curve_of_their_calibration(mixture: Bundle) -> None:
    curve = frontier_curve(mixture)
    assert curve.prices.tolist() == [0.2, 0.1]
    assert curve.costs.tolist() == [1.0, 4.0]
    with pytest.raises(BundleError):
        frontier_curve(replace(mixture, frontier=()))
