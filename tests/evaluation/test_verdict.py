"""Verdicts on populations whose truth is known: gains, no gains, and shares of the accuracy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.evaluation.factories import Experiment
from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.verdict import (
    calibrate,
    calibrate_share,
    count_questions_needed,
    judge,
)
from adacompute.testing.populations import Population

Make = Callable[[Population], Experiment]


@pytest.fixture(scope="module")
def experiment_of(pool_of: Callable[..., Pool]) -> Make:
    def make(population: Population) -> Experiment:
        return Experiment(
            pool_of(population, 16), (1, 2, 3, 4, 6, 8), (2.0,), n_permutations=8, seed=0
        )

    return make


def uninformative(questions: int, seed: int) -> Population:
    """Return questions on which every answer is equally likely, so that voting cannot help."""
    rng = np.random.default_rng(seed)
    return Population(np.full((questions, 4), 0.25), rng.random((questions, 3), dtype=np.float32))


def test_a_gain_is_found_where_there_is_one(telling: Experiment) -> None:
    found = calibrate(telling, "sequential", budget=3.0, n_prices=24)
    assert (found["verdict"], found["advice"]) == ("gain", "use this policy")
    assert 0 < found["gain_low"] < found["gain"] < found["gain_high"]
    assert found["questions_needed"] == 0
    assert found["retry_gain"] == 0.0
    assert found["cost"] < found["cost_high"] <= 3.0 + 1e-9
    assert found["cost_high"] > 2.8


def test_no_gain_is_found_where_there_is_none(experiment_of: Make) -> None:
    experiment = experiment_of(uninformative(120, 0))
    found = calibrate(experiment, "sequential", budget=2.0, n_prices=12)
    assert found["verdict"] == "no gain"
    assert found["advice"].startswith("use n = ")
    assert found["gain_low"] <= 0
    assert found["questions_needed"] is None or found["questions_needed"] > 0


def test_the_gain_of_retrying_unparsed_samples_is_separate(experiment_of: Make) -> None:
    chance = np.tile([0.9, 0.1, 0.0], (120, 1))
    population = Population(chance, np.ones((120, 2), dtype=np.float32), unparsed_rate=0.4)
    found = calibrate(experiment_of(population), "sequential", budget=2.0, n_prices=12)
    assert found["gain"] > 0.05
    assert found["retry_gain"] > 0.8 * found["gain"]


def test_without_a_gain_the_best_mixture_is_advised(telling: Experiment) -> None:
    costs, utility = telling.table.costs.mean(axis=0), telling.table.utility.mean(axis=0)
    lowest, highest = costs[0], costs[-1]
    none = Interval(0.0, -0.1, 0.1)
    assert judge(telling, none, float(lowest))["advice"] == "use n = 1"
    assert judge(telling, none, float(highest) * 2)["advice"] == (
        f"use n = {telling.levels[int(utility.argmax())]}"
    )
    between = judge(telling, none, float(lowest) * 1.5)["advice"]
    assert re.fullmatch(r"use n = 1, and n = \d+ for \d+ % of the questions", between)


def test_a_share_of_the_accuracy_is_kept_at_the_lowest_cost(telling: Experiment) -> None:
    options: dict[str, Any] = {"accuracy_of": 8, "n_prices": 24}
    large = calibrate_share(telling, "sequential", share=0.95, **options)
    small = calibrate_share(telling, "sequential", share=0.85, **options)
    assert large["share_low"] >= 0.95
    assert small["cost"] < large["cost"] < large["full_cost"] == 8.0
    assert large["accuracy"] >= 0.95 * large["full_accuracy"]


def test_a_share_that_cannot_be_shown_is_refused(experiment_of: Make) -> None:
    experiment = experiment_of(uninformative(60, 1))
    with pytest.raises(DataError, match="99% of the accuracy of 8 samples"):
        calibrate_share(experiment, "sequential", accuracy_of=8, share=0.99, n_prices=8)
    with pytest.raises(ConfigError, match="7 samples"):
        calibrate_share(experiment, "sequential", accuracy_of=7, share=0.9)


def test_too_few_questions_and_unparsed_samples_are_refused(experiment_of: Make) -> None:
    with pytest.raises(DataError, match="30 different questions"):
        calibrate(experiment_of(uninformative(30, 0)), "sequential", budget=2.0)
    unparsed = replace(uninformative(60, 0), unparsed_rate=0.7)
    with pytest.raises(DataError, match="parsed, more than 50%"):
        calibrate(experiment_of(unparsed), "sequential", budget=2.0)


def test_the_questions_needed_grow_with_the_width_of_the_interval() -> None:
    assert count_questions_needed(Interval(0.01, -0.01, 0.03), 100) == 300
    assert count_questions_needed(Interval(0.02, 0.01, 0.03), 100) == 0
    assert count_questions_needed(Interval(0.0, -0.01, 0.01), 100) is None
