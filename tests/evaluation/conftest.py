"""Pools drawn from populations whose truth is known, for all tests of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool
from test_support.populations import Population, make_population

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def pool_of() -> Callable[..., Pool]:
    """Return a pool of samples drawn from a population, each at a cost of 1."""

    def draw(population: Population, samples: int, *, seed: int = 0) -> Pool:
        key = np.arange(len(population), dtype=np.uint64)
        return Pool(
            answers=population.sample(samples, seed=seed),
            key=key,
            group=key,
            features=population.features,
            sample_cost=np.ones(len(population) * samples),
        )

    return draw


@pytest.fixture(scope="session")
def small(pool_of: Callable[..., Pool]) -> Pool:
    """Return 120 questions of all archetypes with 12 samples each, some of them unparsed."""
    population, _ = make_population(120, feature_signal=1.0, unparsed_rate=0.2, seed=1)
    return pool_of(population, 12)


@pytest.fixture(scope="session")
def telling(pool_of: Callable[..., Pool]) -> Experiment:
    """Return an experiment on 240 questions whose features predict how they respond."""
    population, _ = make_population(240, feature_signal=1.0)
    levels = (1, 2, 3, 4, 6, 8)
    return Experiment(pool_of(population, 16), levels, (2.0,), n_permutations=8, seed=0)
