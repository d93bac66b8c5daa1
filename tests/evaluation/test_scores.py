from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import ConfigError, DataError
from adacompute.core.types import KeyArray
from adacompute.evaluation.factories import POLICY_FACTORIES, ROUTERS
from adacompute.evaluation.intervals import bootstrap_weights
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.scores import ORACLES, HeldOutScores, evaluate
from adacompute.testing.populations import Population, mix_archetypes

BUDGETS = (1.5, 3.0)
ASKED: dict[str, Any] = {
    "budgets": BUDGETS,
    "levels": (1, 2, 4, 6, 8),
    "n_permutations": 6,
    "n_folds": 3,
}


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def scores(small: Pool, said: list[str]) -> HeldOutScores:
    """Score every policy there is on questions whose archetype the features give away."""
    return evaluate(small, **ASKED, progress=said.append)


def row_of(scores: HeldOutScores, policy: str, budget: float) -> dict[str, Any]:
    (row,) = [r for r in scores.rows if (r["policy"], r["budget"]) == (policy, budget)]
    return row


def test_every_policy_has_a_row_at_every_budget(scores: HeldOutScores, said: list[str]) -> None:
    names = [*POLICY_FACTORIES, *ORACLES]
    assert [(row["policy"], row["budget"]) for row in scores.rows] == [
        (name, budget) for name in names for budget in BUDGETS
    ]
    assert said == ["oracle", "mixture", *names]


def test_levels_above_half_of_the_samples_are_left_out(scores: HeldOutScores) -> None:
    assert scores.levels == (1, 2, 4, 6)
    assert scores.levels_excluded == (8,)
    assert (scores.n_questions, scores.n_excluded, scores.n_samples) == (120, 0, 12)


def test_every_row_says_what_it_says_consistently(scores: HeldOutScores) -> None:
    for row in scores.rows:
        assert row["cost"] <= row["budget"] + 1e-9
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["difference_low"] - 1e-9 <= row["difference"] <= row["difference_high"] + 1e-9
        assert ("regret" in row) == (row["policy"] in ROUTERS)
        mixture = row["accuracy"] - row["difference"]
        assert row["relative_gain"] == pytest.approx(row["difference"] / mixture)


def test_the_mixture_is_the_zero_of_every_difference(scores: HeldOutScores) -> None:
    for budget in BUDGETS:
        row = row_of(scores, "mixture", budget)
        assert (row["difference"], row["difference_low"], row["difference_high"]) == (0, 0, 0)
        assert row["cost"] == budget
        fixed = row_of(scores, "fixed", budget)
        assert fixed["cost"] == {1.5: 1.0, 3.0: 2.0}[budget]
        assert fixed["difference"] == pytest.approx(0.0, abs=0.01)


def test_headroom_is_the_share_of_what_the_oracle_gains(pool_of: Callable[..., Pool]) -> None:
    chance = np.tile([[1.0, 0.0, 0.0, 0.0], [0.46, 0.18, 0.18, 0.18]], (60, 1))
    halves = Population(chance, np.zeros((120, 1), np.float32))
    names = ["fixed", "mixture", "early-stopping", "oracle", "oracle-in-sample"]
    scores = evaluate(pool_of(halves, 16), **{**ASKED, "policies": names})
    oracle = row_of(scores, "oracle", 3.0)
    assert oracle["difference_low"] > 0
    assert oracle["headroom"] == pytest.approx(1.0)
    for row in (row_of(scores, name, 3.0) for name in names):
        room = oracle["accuracy"] - (row["accuracy"] - row["difference"])
        assert row["headroom"] == pytest.approx(row["difference"] / room)


def test_the_bounds_of_theorems_2_and_3_hold_for_every_router(scores: HeldOutScores) -> None:
    for row in (row_of(scores, name, budget) for name in ROUTERS for budget in BUDGETS):
        assert 0 <= row["imitation"] <= 1
        assert -1e-9 <= row["regret"] <= row["regret_bound"] + 1e-9
        assert row["recovery_gap"] <= row["recovery_bound"] + 1e-9


def test_the_same_seed_gives_the_same_scores_and_another_one_does_not(small: Pool) -> None:
    asked: dict[str, Any] = {**ASKED, "policies": ["early-stopping", "oracle"]}
    first, again = evaluate(small, **asked), evaluate(small, **asked)
    assert first.rows == again.rows
    assert evaluate(small, **asked, seed=1).rows != first.rows


def test_where_no_headroom_is_left_none_is_reported(pool_of: Callable[..., Pool]) -> None:
    certain = Population(np.tile([1.0, 0.0], (40, 1)), np.zeros((40, 1), dtype=np.float32))
    asked: dict[str, Any] = {**ASKED, "policies": ["early-stopping", "oracle"]}
    for row in evaluate(pool_of(certain, 8), **asked).rows:
        assert row["accuracy"] == 1.0
        assert row["difference"] == 0.0
        assert row["headroom"] is None
    hopeless = Population(np.tile([0.0, 1.0], (40, 1)), np.zeros((40, 1), dtype=np.float32))
    for row in evaluate(pool_of(hopeless, 8), **asked).rows:
        assert row["relative_gain"] is None
        assert row["cost"] <= row["budget"]


def test_a_policy_that_does_worse_where_the_oracle_gains_nothing_has_no_headroom(
    pool_of: Callable[..., Pool],
) -> None:
    # Equal questions: the cross-fitted oracle can only lose, and a ratio of losses says nothing.
    equal = Population(np.tile([0.46, 0.18, 0.18, 0.18], (60, 1)), np.zeros((60, 1), np.float32))
    asked: dict[str, Any] = {**ASKED, "policies": ["early-stopping", "oracle", "oracle-in-sample"]}
    rows = evaluate(pool_of(equal, 12), **asked).rows
    assert row_of(HeldOutScores(rows, 0, 0, 0, (), ()), "oracle", 3.0)["difference"] < 0
    assert all(row["headroom"] is None for row in rows if row["budget"] == 3.0)


def test_where_the_oracle_hardly_gains_there_is_no_headroom_to_speak_of(
    pool_of: Callable[..., Pool],
) -> None:
    population, _ = mix_archetypes(60, telling=0.0, null_rate=0.1, seed=5)
    asked: dict[str, Any] = {**ASKED, "policies": ["early-stopping", "retry", "oracle"]}
    rows = evaluate(pool_of(population, 12), **asked).rows
    oracle = next(row for row in rows if row["policy"] == "oracle" and row["difference"] > 0)
    assert oracle["difference_low"] <= 0  # it gains, and may gain nothing
    beside = [row for row in rows if row["budget"] == oracle["budget"]]
    assert [row["headroom"] for row in beside] == [None] * 3
    assert all(row["difference"] is not None for row in beside)


@pytest.mark.slow
def test_a_router_gains_where_the_text_tells_and_nothing_where_it_does_not(
    pool_of: Callable[..., Pool],
) -> None:
    found = {}
    for telling in (0.0, 1.0):
        population, _ = mix_archetypes(300, telling=telling, null_rate=0.1, seed=3)
        rows = evaluate(
            pool_of(population, 16),
            budgets=(1.5, 4.0),
            levels=(1, 2, 4, 8),
            policies=["value-router"],
            n_permutations=8,
        ).rows
        found[telling] = rows
    for row in found[0.0]:
        assert row["difference_low"] <= 0
    for row in found[1.0]:
        assert row["difference"] > 0.005
        assert row["difference_low"] > 0


def test_unreadable_samples_are_no_gain_when_they_are_left_out(
    pool_of: Callable[..., Pool],
) -> None:
    population, _ = mix_archetypes(100, telling=0.0, null_rate=0.4, seed=2)
    pool = pool_of(population, 20)
    asked: dict[str, Any] = {**ASKED, "policies": ["retry"]}
    with_nulls = evaluate(pool, **asked)
    without = evaluate(pool, **asked, drop_unparsed=True)
    assert row_of(with_nulls, "retry", 1.5)["difference_low"] > 0
    assert row_of(without, "retry", 1.5)["difference"] == pytest.approx(0.0, abs=0.005)
    assert without.n_samples < with_nulls.n_samples
    assert without.n_excluded > 0


def test_costs_in_another_unit_are_those_of_the_samples(small: Pool) -> None:
    scaled = replace(small, sample_cost=10 * small.sample_cost)
    asked: dict[str, Any] = {**ASKED, "policies": ["retry", "oracle", "fixed"]}
    plain = evaluate(small, **asked).rows
    tens = evaluate(scaled, **{**asked, "budgets": (15.0, 30.0)}).rows
    for one, ten in zip(plain, tens, strict=True):
        assert ten["cost"] == pytest.approx(10 * one["cost"])
        assert ten["accuracy"] == pytest.approx(one["accuracy"])
        assert ten["difference_high"] == pytest.approx(one["difference_high"])


def test_copies_of_a_text_widen_the_interval(pool_of: Callable[..., Pool]) -> None:
    population, _ = mix_archetypes(120, telling=0.0, null_rate=0.1, seed=4)
    pool = pool_of(population, 12)
    asked: dict[str, Any] = {**ASKED, "policies": ["mixture"]}
    alone = row_of(evaluate(pool, **asked), "mixture", 3.0)
    by_kind = np.unique(population.chance, axis=0, return_inverse=True)[1].astype(np.uint64)
    groups = by_kind * np.uint64(10) + pool.key % np.uint64(3)  # ten in one are alike
    together = row_of(evaluate(replace(pool, group=groups), **asked), "mixture", 3.0)
    assert together["accuracy_high"] - together["accuracy_low"] > 1.5 * (
        alone["accuracy_high"] - alone["accuracy_low"]
    )


def test_resampling_counts_every_question_once_and_then_whole_groups() -> None:
    group: KeyArray = np.array([3, 3, 8, 9, 9, 9], dtype=np.uint64)
    weights = bootstrap_weights(group, 500, seed=0)
    assert (weights[0] == 1).all()
    assert weights.shape == (501, 6)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, 3] == weights[:, 5]).all()
    assert (weights[1:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert weights[1:, 2].mean() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"policies": ["mixture", "magic"]}, ConfigError, "there is no policy 'magic'; there are"),
        ({"budgets": (0.5,)}, ConfigError, "a budget of 0.5 is below 1,"),
        ({"budgets": (float("nan"),)}, ConfigError, "a budget of nan is below"),
        ({"levels": (7, 9)}, DataError, "6 of 12, and the lowest level is 7: .* at least 14"),
        ({"levels": ()}, DataError, "6 of 12, .* collect at least 2 samples"),
        ({"levels": (6, 8)}, DataError, "6 of 12, .* one of the levels 6, 8, .* needs two"),
        ({"n_folds": 121}, DataError, "120 different questions are too few"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_sentence(
    small: Pool, changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        evaluate(small, **{**ASKED, "policies": ["mixture"], **changes})
    assert "\n" not in str(caught.value)
