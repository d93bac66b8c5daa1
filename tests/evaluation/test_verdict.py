"""Verdicts on populations whose truth is known: gains, no gains, and shares of the accuracy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.errors import DataError
from adacompute.evaluation.experiment import Experiment, FittedPolicy
from adacompute.evaluation.factories import find_factory
from adacompute.evaluation.intervals import Interval
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scoring.baseline import describe_baseline
from adacompute.evaluation.scoring.frontier import CalibrationSettings
from adacompute.evaluation.scoring.policy_score import PolicyScore, score_policy
from adacompute.evaluation.scoring.verdict import calibrate, judge
from test_support.populations import Population

Make = Callable[[Population], Experiment]


@pytest.fixture(scope="module")
def experiment_of(pool_of: Callable[..., Pool]) -> Make:
    def make(population: Population) -> Experiment:
        return Experiment(
            pool_of(population, 16), (1, 2, 3, 4, 6, 8), (2.0,), n_permutations=8, seed=0
        )

    return make


def calibrate_at(experiment: Experiment, budget: float, **settings: Any) -> dict[str, Any]:
    """Calibrate a sequential policy."""
    return calibrate(*scored(experiment), budget=budget, settings=CalibrationSettings(**settings))


def scored(experiment: Experiment) -> tuple[PolicyScore, FittedPolicy]:
    every = np.arange(len(experiment.pool))
    final = find_factory("sequential")(experiment, every)
    return score_policy(experiment, "sequential"), final


def uninformative(questions: int, seed: int) -> Population:
    """Return questions on which every answer is equally likely, so that voting cannot help."""
    rng = np.random.default_rng(seed)
    return Population(np.full((questions, 4), 0.25), rng.random((questions, 3), dtype=np.float32))


def test_a_gain_is_found_where_there_is_one(telling: Experiment) -> None:
    found = calibrate_at(telling, 3.0)
    assert (found["verdict"], found["advice"]) == ("gain", "use this policy")
    assert 0 < found["gain_low"] < found["gain"] < found["gain_high"]
    assert found["questions_needed"] == 0
    assert found["retry_gain"] == 0.0
    assert found["cost"] == pytest.approx(3.0, abs=1e-9)
    assert 2.7 < found["cost_low"] < 3.0 < found["cost_high"] < 3.3
    assert found["rounds"] == pytest.approx(3.0)


def test_no_gain_is_found_where_there_is_none(experiment_of: Make) -> None:
    found = calibrate_at(experiment_of(uninformative(120, 0)), 2.0)
    assert found["verdict"] in ("no gain", "inconclusive")
    assert found["advice"].startswith("use ")
    assert found["gain_low"] <= 0 <= found["gain_high"]
    certain = Population(np.tile([1.0, 0.0], (60, 1)), np.zeros((60, 1), dtype=np.float32))
    found = calibrate_at(experiment_of(certain), 1.0)
    assert (found["verdict"], found["questions_needed"]) == ("no gain", 0)
    assert (found["gain_low"], found["gain"], found["gain_high"]) == (0.0, 0.0, 0.0)


@pytest.mark.nightly
def test_a_useless_policy_seldom_has_a_verdict_of_gain_or_loss(experiment_of: Make) -> None:
    verdicts = [
        calibrate_at(experiment_of(uninformative(80, seed)), 2.0)["verdict"] for seed in range(20)
    ]
    assert sum(verdict in ("gain", "loss") for verdict in verdicts) <= 4


def test_the_margin_decides_what_no_gain_is() -> None:
    assert judge(Interval(0.001, -0.005, 0.005), 100) == ("no gain", 0)
    assert judge(Interval(0.01, -0.01, 0.03), 100) == ("inconclusive", 401)
    assert judge(Interval(0.0, -0.01, 0.01), 100) == ("inconclusive", 401)
    assert judge(Interval(0.0, 0.0, 0.0), 100) == ("no gain", 0)


def test_the_gain_of_retrying_unparsed_samples_is_separate(experiment_of: Make) -> None:
    chance = np.tile([0.9, 0.1, 0.0], (120, 1))
    population = Population(chance, np.ones((120, 2), dtype=np.float32), unparsed_rate=0.4)
    found = calibrate_at(experiment_of(population), 2.0)
    assert found["gain"] > 0.05
    assert found["retry_gain"] > 0.8 * found["gain"]


def test_rounds_are_limited(telling: Experiment) -> None:
    limited = replace(telling, max_rounds=2)
    found = calibrate_at(limited, 3.0)
    assert found["max_rounds"] == 2
    assert 1.0 < found["rounds"] <= 2.0
    assert found["cost"] == pytest.approx(3.0, abs=1e-9)
    assert max(point["rounds"] for point in found["frontier"]) <= 2.0
    assert calibrate_at(telling, 3.0)["max_rounds"] is None


def test_without_a_gain_the_best_mixture_is_advised(telling: Experiment) -> None:
    costs, utility = telling.dense_table.costs.mean(axis=0), telling.dense_table.utility
    assert describe_baseline(telling, float(costs[0])) == "use one sample per question"
    best = 1 + int(utility.mean(axis=0).argmax())
    assert describe_baseline(telling, float(costs[-1]) * 2) == f"use {best} samples per question"
    between = describe_baseline(telling, float(costs[0]) * 1.5)
    assert re.fullmatch(r"use one sample per question, and \d+ for \d+ % of the questions", between)


def test_too_few_questions_and_unparsed_samples_are_refused(experiment_of: Make) -> None:
    with pytest.raises(DataError, match="30 independent questions"):
        calibrate_at(experiment_of(uninformative(30, 0)), 2.0)
    unparsed = replace(uninformative(60, 0), unparsed_rate=0.7)
    with pytest.raises(DataError, match="parsed, more than 50%"):
        calibrate_at(experiment_of(unparsed), 2.0)


@pytest.mark.parametrize(
    ("gain", "verdict", "needed"),
    [
        (Interval(0.02, 0.01, 0.03), "gain", 0),
        (Interval(0.001, 0.0005, 0.0015), "gain", 0),
        (Interval(-0.02, -0.03, -0.01), "loss", 0),
        (Interval(0.0, 0.0, 0.0), "no gain", 0),
        (Interval(0.001, -0.003, 0.005), "no gain", 0),
        (Interval(0.001, -0.004, 0.006), "inconclusive", 157),
        (Interval(0.01, -0.01, 0.03), "inconclusive", 401),
        (Interval(-0.01, -0.03, 0.01), "inconclusive", 401),
        (Interval(0.0, -0.01, 0.01), "inconclusive", 401),
    ],
)
def test_a_verdict_comes_from_the_interval_alone(gain: Interval, verdict: str, needed: int) -> None:
    assert judge(gain, 100) == (verdict, needed)


@given(st.floats(-0.05, 0.05), st.floats(1e-3, 0.2), st.integers(40, 5000))
def test_as_many_questions_as_needed_decide_the_verdict(
    value: float, width: float, n_groups: int
) -> None:
    verdict, needed = judge(Interval(value, value - width, value + width), n_groups)
    if verdict != "inconclusive":
        assert needed == 0
        return
    assert needed > n_groups
    for count, decided in ((needed, True), (n_groups, False)):
        shrunk = width * (n_groups / count) ** 0.5
        again, _ = judge(Interval(value, value - shrunk, value + shrunk), count)
        assert (again != "inconclusive") == decided
