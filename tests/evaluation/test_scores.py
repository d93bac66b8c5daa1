from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError, InfeasibleBudget
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import POLICY_FACTORIES, ROUTER
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.registry import ORACLES
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.evaluation.scoring.scores import HeldOutScores
from test_support.pools import score_pool
from test_support.populations import Population, make_population

BUDGETS = (1.5, 3.0)
OPTIONS: dict[str, Any] = {
    "budgets": BUDGETS,
    "levels": (1, 2, 4, 6, 8),
    "n_permutations": 6,
}


@pytest.fixture(scope="module")
def progress() -> list[str]:
    return []


@pytest.fixture(scope="module")
def scores(small: Pool, progress: list[str]) -> HeldOutScores:
    """Score every policy on questions whose features predict their archetype."""
    return score_pool(small, **OPTIONS, progress=progress.append)


def row_of(scores: HeldOutScores, policy: str, budget: float) -> dict[str, Any]:
    (row,) = [r for r in scores.rows if (r["policy"], r["budget"]) == (policy, budget)]
    return row


def test_every_policy_has_a_row_at_every_budget(scores: HeldOutScores, progress: list[str]) -> None:
    names = [*POLICY_FACTORIES, *ORACLES]
    assert [(row["policy"], row["budget"]) for row in scores.rows] == [
        (name, budget) for name in names for budget in BUDGETS
    ]
    assert progress == ["mixture", "oracle", *names]


def test_levels_above_half_of_the_samples_are_excluded_from_headroom(
    scores: HeldOutScores,
) -> None:
    assert scores.levels == (1, 2, 4, 6, 8)
    assert scores.levels_excluded == (8,)
    assert (scores.n_questions, scores.n_excluded, scores.n_samples) == (120, 0, 12)


def test_mixture_has_no_difference_to_itself(scores: HeldOutScores) -> None:
    for budget in BUDGETS:
        row = row_of(scores, "mixture", budget)
        assert (row["difference"], row["difference_low"], row["difference_high"]) == (0, 0, 0)
        assert (row["verdict"], row["cost"]) == ("no gain", pytest.approx(budget, abs=1e-9))
        fixed = row_of(scores, "fixed", budget)
        assert fixed["cost"] == {1.5: 1.0, 3.0: 2.0}[budget]
        assert fixed["difference"] == pytest.approx(0.0, abs=0.01)


def test_a_row_is_the_score_of_the_policy_at_the_budget(small: Pool, scores: HeldOutScores) -> None:
    experiment = Experiment(small, (1, 2, 4, 6, 8), BUDGETS, n_permutations=6)
    score = score_policy(experiment, "retry")
    point = score.curve.read(3.0)
    row, gain = row_of(scores, "retry", 3.0), score.gain(point)
    assert (row["difference"], row["difference_low"], row["difference_high"]) == (
        gain.value,
        gain.low,
        gain.high,
    )
    assert row["accuracy"] == point.accuracy


def test_headroom_is_a_share_of_the_gain_of_the_oracle(pool_of: Callable[..., Pool]) -> None:
    chance = np.tile([[1.0, 0.0, 0.0, 0.0], [0.46, 0.18, 0.18, 0.18]], (60, 1))
    halves = Population(chance, np.zeros((120, 1), np.float32))
    names = ["fixed", "mixture", "early-stopping", "oracle", "oracle-in-sample"]
    scores = score_pool(pool_of(halves, 16), **{**OPTIONS, "policies": names})
    assert scores.levels_excluded == ()
    oracle = row_of(scores, "oracle", 3.0)
    assert oracle["difference_low"] > 0
    assert oracle["headroom"] == 1.0
    assert row_of(scores, "oracle-in-sample", 3.0)["headroom"] is None
    for row in (row_of(scores, name, 3.0) for name in names[:3]):
        assert row["headroom"] == pytest.approx(row["difference"] / oracle["difference"])


def test_headroom_compares_levels_up_to_half_of_the_samples(pool_of: Callable[..., Pool]) -> None:
    chance = np.tile([[1.0, 0.0, 0.0, 0.0], [0.46, 0.18, 0.18, 0.18]], (60, 1))
    pool = pool_of(Population(chance, np.zeros((120, 1), np.float32)), 16)
    names = ["early-stopping", "oracle"]
    options: dict[str, Any] = {**OPTIONS, "policies": names, "budgets": (*BUDGETS, 6.0)}
    half, whole = (score_pool(pool, **{**options, "levels": n}) for n in ((1, 2, 8), (1, 2, 8, 16)))
    assert (half.levels_excluded, whole.levels_excluded) == ((), (16,))
    for budget in BUDGETS:
        first, again = (row_of(scores, "early-stopping", budget) for scores in (half, whole))
        assert again["headroom"] == pytest.approx(first["headroom"], abs=1e-9)
        assert row_of(half, "oracle", budget) == row_of(whole, "oracle", budget)
    first, again = (row_of(scores, "early-stopping", 6.0) for scores in (half, whole))
    assert again["cost"] > first["cost"]


def test_bounds_of_theorems_2_and_3_hold_for_the_router(scores: HeldOutScores) -> None:
    for row in (row_of(scores, ROUTER, budget) for budget in BUDGETS):
        assert 0 <= row["imitation"] <= 1
        assert -1e-9 <= row["regret"] <= row["regret_bound"] + 1e-9
        assert row["recovery_gap"] <= row["recovery_bound"] + 1e-9


def test_headroom_is_none_if_the_gain_of_the_oracle_may_be_zero(
    pool_of: Callable[..., Pool],
) -> None:
    population, _ = make_population(60, feature_signal=0.0, unparsed_rate=0.1, seed=6)
    options: dict[str, Any] = {**OPTIONS, "policies": ["early-stopping", "retry", "oracle"]}
    rows = score_pool(pool_of(population, 12), **options).rows
    oracle = next(row for row in rows if row["policy"] == "oracle" and row["difference"] > 0)
    assert oracle["difference_low"] <= 0  # it gains, and may gain nothing
    beside = [row for row in rows if row["budget"] == oracle["budget"]]
    assert [row["headroom"] for row in beside] == [None] * 3
    assert all(row["difference"] is not None for row in beside)


def test_retry_gains_nothing_without_unparsed_samples(
    pool_of: Callable[..., Pool],
) -> None:
    population, _ = make_population(100, feature_signal=0.0, unparsed_rate=0.4, seed=2)
    pool = pool_of(population, 20)
    options: dict[str, Any] = {**OPTIONS, "policies": ["retry"]}
    with_nulls = score_pool(pool, **options)
    without = score_pool(pool, **options, drop_unparsed=True)
    assert row_of(with_nulls, "retry", 1.5)["difference_low"] > 0
    assert row_of(without, "retry", 1.5)["difference"] == pytest.approx(0.0, abs=0.005)
    assert without.n_samples < with_nulls.n_samples
    assert without.n_excluded > 0


def test_costs_in_another_unit_come_from_the_samples(small: Pool) -> None:
    scaled = replace(small, sample_cost=10 * small.sample_cost)
    options: dict[str, Any] = {**OPTIONS, "policies": ["retry", "oracle", "fixed"]}
    plain = score_pool(small, **options).rows
    tens = score_pool(scaled, **{**options, "budgets": (15.0, 30.0)}).rows
    for one, ten in zip(plain, tens, strict=True):
        assert ten["cost"] == pytest.approx(10 * one["cost"])
        assert ten["accuracy"] == pytest.approx(one["accuracy"])
        assert ten["difference_high"] == pytest.approx(one["difference_high"])


def test_copies_of_a_text_widen_the_interval(pool_of: Callable[..., Pool]) -> None:
    population, _ = make_population(120, feature_signal=0.0, unparsed_rate=0.1, seed=4)
    pool = pool_of(population, 12)
    options: dict[str, Any] = {**OPTIONS, "policies": ["mixture"]}
    alone = row_of(score_pool(pool, **options), "mixture", 3.0)
    by_kind = np.unique(population.probability, axis=0, return_inverse=True)[1].astype(np.uint64)
    groups = by_kind * np.uint64(10) + pool.key % np.uint64(3)  # ten in one are alike
    together = row_of(score_pool(replace(pool, group=groups), **options), "mixture", 3.0)
    assert together["accuracy_high"] - together["accuracy_low"] > 1.5 * (
        alone["accuracy_high"] - alone["accuracy_low"]
    )


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"policies": ["mixture", "magic"]}, ConfigError, "there is no policy 'magic'; there are"),
        ({"budgets": (0.5,)}, InfeasibleBudget, "0.5"),
        ({"budgets": (float("nan"),)}, ConfigError, "nan"),
        ({"levels": (13, 14)}, DataError, "12 samples .* 0 of the levels 13, 14, .* needs two"),
        ({"levels": (12, 14)}, DataError, "12 samples .* 1 of the levels 12, 14, .* needs two"),
    ],
)
def test_invalid_options_are_refused(
    small: Pool, changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        score_pool(small, **{**OPTIONS, "policies": ["mixture"], **changes})
    assert "\n" not in str(caught.value)
