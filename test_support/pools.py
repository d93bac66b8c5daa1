"""Pools: samples of synthetic questions, ready for evaluation, and their scores.

It does not know which policies or budgets they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adacompute.core.types import hash_keys
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.scores import HeldOutScores, evaluate, make_experiment
from test_support.populations import Population, make_population


def score_pool(
    pool: Pool,
    *,
    policies: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **options: Any,  # noqa: ANN401 - those of make_experiment
) -> HeldOutScores:
    """Score policies in a new experiment."""
    return evaluate(make_experiment(pool, **options), policies, progress=progress)


def record_samples(population: Population, n_samples: int, *, seed: int) -> Pool:
    """Draw samples of every question, each at a cost of 1."""
    answers = population.sample(n_samples, seed=seed)
    key = hash_keys(np.arange(len(population), dtype=np.uint64) + np.uint64(seed << 32))
    return Pool(
        answers=answers,
        key=key,
        group=key,
        features=population.features,
        sample_cost=np.ones(len(answers.answer)),
        sequential_features=population.features,
    )


def draw_pool(n_questions: int, n_samples: int, *, feature_signal: float, seed: int) -> Pool:
    """Draw questions of the four archetypes, a share of which their features reveal.

    Every sample costs 1.

    >>> pool = draw_pool(50, 8, feature_signal=0.3, seed=0)
    >>> len(pool), pool.n_samples
    (50, 8)
    """
    population, _ = make_population(n_questions, feature_signal=feature_signal, seed=seed)
    return record_samples(population, n_samples, seed=seed)
