from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from adacompute.core.allocation.oracle import solve
from adacompute.core.types import UtilityTable
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.oracles import (
    PAPER_LEVELS,
    allocation_utility,
    cross_fitted_oracle,
    in_sample_oracle,
)
from test_support.populations import Population, make_population

LEVELS = (1, 2, 4, 8)
BUDGETS = (1.5, 2.0, 4.0)


def best_truth(population: Population, budget: float) -> float:
    truth = population.true_utility(LEVELS)
    return solve(UtilityTable(truth, np.array(LEVELS, dtype=np.float64)), budget).mixed_utility


def test_in_sample_oracle_is_optimistic_and_cross_fitted_is_not(
    pool_of: Callable[..., Pool],
) -> None:
    population, _ = make_population(500, feature_signal=0.0, unparsed_rate=0.1, seed=3)
    pool = pool_of(population, 16)
    in_sample, cross_fitted = (
        in_sample_oracle(pool, BUDGETS),
        cross_fitted_oracle(pool, LEVELS, BUDGETS, seed=0),
    )
    luck = pool.table(LEVELS).utility.mean() - population.true_utility(LEVELS).mean()
    for budget in BUDGETS:
        truth = best_truth(population, budget) + luck  # on questions as these samples show them
        assert in_sample[budget][1].mean() > truth + 0.01
        assert cross_fitted[budget][1].mean() < truth
        assert cross_fitted[budget][0] <= budget + 1e-9


def test_only_the_in_sample_oracle_gains_on_equal_questions(
    pool_of: Callable[..., Pool],
) -> None:
    chance = np.tile([0.46, 0.18, 0.18, 0.18], (500, 1))
    population = Population(chance, np.zeros((500, 1), dtype=np.float32))
    pool = pool_of(population, 32)
    mean = pool.table(LEVELS).utility.mean(axis=0)
    in_sample, cross_fitted = (
        in_sample_oracle(pool, BUDGETS),
        cross_fitted_oracle(pool, LEVELS, BUDGETS, seed=0),
    )
    for budget in BUDGETS:
        mixture = solve(
            UtilityTable(mean[None, :], np.array(LEVELS, dtype=np.float64)), budget
        ).mixed_utility
        assert in_sample[budget][1].mean() > mixture + 0.015
        # Half of the samples choose worse than all of them would: a little is lost, none gained.
        assert mixture - 0.03 < cross_fitted[budget][1].mean() < mixture + 0.005


def test_oracle_reports_its_real_cost_below_the_budget(
    pool_of: Callable[..., Pool],
) -> None:
    certain = Population(np.tile([1.0, 0.0], (20, 1)), np.zeros((20, 1), dtype=np.float32))
    pool = pool_of(certain, 16)
    for found in (
        cross_fitted_oracle(pool, LEVELS, (4.0,), seed=0),
        in_sample_oracle(pool, (4.0,)),
    ):
        cost, value = found[4.0]
        assert cost == 1.0
        assert (value == 1.0).all()


def test_in_sample_oracle_uses_five_levels_and_windows(small: Pool) -> None:
    cost, value = in_sample_oracle(small, (2.0,))[2.0]
    samples = tuple(n for n in PAPER_LEVELS if n <= 12)
    expected = solve(small.table(samples, windows=True), 2.0)
    assert samples == (1, 2, 4, 8)
    assert cost == expected.mixed_cost == pytest.approx(2.0)
    assert value.mean() == pytest.approx(expected.mixed_utility)


def test_allocation_utility_includes_the_split() -> None:
    table = UtilityTable(np.array([[0.0, 1.0], [0.5, 0.6]]), np.array([1.0, 2.0]))
    found = solve(table, 1.25)
    assert found.choice.tolist() == [0, 0]
    scored = np.array([[0.2, 0.4], [0.3, 0.9]])
    assert allocation_utility(found, scored).tolist() == pytest.approx([0.3, 0.3])
    assert scored.tolist() == [[0.2, 0.4], [0.3, 0.9]]


def test_same_seed_gives_the_same_halves(small: Pool) -> None:
    first, again, other = (
        cross_fitted_oracle(small, (1, 2, 4), (2.0,), seed=seed)[2.0][1] for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert (first != other).any()
