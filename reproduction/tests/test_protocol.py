"""The paper's protocol on questions with uninformative features."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.allocation.cutoff import choose
from adacompute.core.allocation.oracle import solve
from adacompute.core.errors import DataError, InfeasibleBudget
from adacompute.core.types import make_levels
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.uniform import FixedRule
from reproduction.heuristic import HEURISTIC, allocate_heuristic, make_heuristic
from reproduction.protocol import (
    LEAKING_ROUTER,
    add_single_pass_accuracy,
    decide_upfront,
    evaluate_paper,
    mean_of_scored,
)
from test_support.populations import make_population

NAMES = ["fixed", "random", HEURISTIC, "router", LEAKING_ROUTER, "oracle-in-sample"]

Rows = dict[tuple[str, float], dict[str, Any]]


@pytest.fixture(scope="module")
def noisy_pool() -> Pool:
    """Return 100 questions with features that say nothing about them."""
    population, _ = make_population(100, feature_signal=0.0, unparsed_rate=0.1, seed=5)
    answers = population.sample(10, seed=0)
    key = np.arange(100, dtype=np.uint64)
    return Pool(answers, key, key, population.features, np.ones(len(answers.answer)))


@pytest.fixture(scope="module")
def messages() -> list[str]:
    return []


@pytest.fixture(scope="module")
def rows(noisy_pool: Pool, messages: list[str]) -> Rows:
    found = evaluate_paper(noisy_pool, budgets=(3.0, 1.5, 3.0), progress=messages.append)
    return {(row["policy"], row["budget"]): row for row in found}


def test_every_policy_has_a_row_at_every_budget(rows: Rows, messages: list[str]) -> None:
    assert list(rows) == [(name, budget) for budget in (1.5, 3.0) for name in NAMES]
    assert [message.split()[-1] for message in messages] == ["1.5", "3"]


def test_oracle_is_best_and_never_overspends(noisy_pool: Pool, rows: Rows) -> None:
    for budget in (1.5, 3.0):
        oracle = rows["oracle-in-sample", budget]
        found = solve(noisy_pool.table((1, 2, 4, 8), windows=True), budget)
        assert oracle["accuracy"] == pytest.approx(found.utility)
        assert oracle["cost"] == pytest.approx(found.cost)
        assert oracle["cost"] <= budget
        for name in NAMES[:3]:
            assert rows[name, budget]["accuracy"] < oracle["accuracy"]


def test_oracle_imitates_itself_exactly_under_ties(noisy_pool: Pool) -> None:
    few = noisy_pool.keep(noisy_pool.answers.position < 4)
    table = few.table((1, 2, 4), windows=True)
    tied = solve(table, 1.3)
    assert (tied.choice != choose(table, tied.price)).any()
    found = {
        row["policy"]: row for row in evaluate_paper(few, budgets=(1.3,), classifier="logistic")
    }
    oracle, router = found["oracle-in-sample"], found["router"]
    assert (oracle["imitation"], oracle["held_out_imitation"], oracle["oracle_gap"]) == (1, 1, 0)
    assert router["oracle_gap"] == pytest.approx(oracle["accuracy"] - router["accuracy"])


def test_heuristic_has_the_costs_that_the_paper_reports() -> None:
    population, _ = make_population(200, feature_signal=0.0, seed=5)
    answers = population.sample(16, seed=0)
    key = np.arange(200, dtype=np.uint64)
    length = np.random.default_rng(0).permutation(200).astype(np.float32)
    pool = Pool(answers, key, key, length[:, None], np.ones(len(answers.answer)))
    table = pool.table((1, 2, 4, 8, 16), windows=True)
    cost = []
    for budget, n_longest in ((1.5, 7), (2.0, 14), (3.0, 27)):
        level = allocate_heuristic(pool, table, budget)
        assert np.array_equal(level == 4, length >= 200 - n_longest)
        assert (level == 0).sum() == 200 - n_longest
        cost.append(float(table.cost_of(level).mean()))
    assert cost == pytest.approx([1.525, 2.05, 3.025])  # 1.52, 2.05 and 3.02 in Table 1
    rows = evaluate_paper(pool, budgets=(2.0,), classifier="logistic")
    over = {row["policy"]: row["is_over_budget"] for row in rows}
    assert (over[HEURISTIC], over["fixed"], over["oracle-in-sample"]) == (True, False, False)


def test_heuristic_gives_held_out_questions_the_largest_level_by_length(noisy_pool: Pool) -> None:
    features = noisy_pool.features.copy()
    features[:, noisy_pool.length_feature] = np.arange(100)
    pool, levels = replace(noisy_pool, features=features), (1, 2, 4, 8)
    fitted = make_heuristic(Experiment(pool, levels, (1.63, 2.33)), np.arange(0, 100, 2))
    table = pool.table(levels)
    chosen = [decide_upfront(fitted.policy, pool, price, table) for price in fitted.prices]
    assert [np.flatnonzero(level == 3).tolist() for level in chosen] == [
        [],
        list(range(91, 100)),  # nine in a hundred at level 8 and the others at 1 cost 1.63
        list(range(81, 100)),
        list(range(100)),
    ]
    assert all(set(level.tolist()) <= {0, 3} for level in chosen)


def test_fixed_uses_the_level_below_the_budget_and_the_others_spend_it(rows: Rows) -> None:
    assert [rows["fixed", b]["cost"] for b in (1.5, 3.0)] == [1.0, 2.0]
    for name in ("random", HEURISTIC):
        assert [rows[name, b]["cost"] for b in (1.5, 3.0)] == pytest.approx([1.5, 3.0], abs=0.25)
    fixed = rows["fixed", 3.0]
    assert fixed["accuracy_low"] == pytest.approx(fixed["accuracy_high"])
    assert fixed["accuracy_low"] <= fixed["accuracy"] <= fixed["accuracy_high"] + 1e-12


def test_router_with_uninformative_features_imitates_only_training_questions(rows: Rows) -> None:
    for budget in (1.5, 3.0):
        router = rows["router", budget]
        assert router["imitation"] > router["held_out_imitation"] + 0.15
        assert router["accuracy_low"] <= router["accuracy"] <= router["accuracy_high"]
        assert router["regret"] <= router["regret_bound"] + 1e-9


def test_single_pass_accuracy_is_the_share_of_correct_samples(noisy_pool: Pool) -> None:
    table = noisy_pool.table((1, 2, 4, 8), windows=True)
    features = add_single_pass_accuracy(noisy_pool, table).features
    correct = noisy_pool.answers.correct.reshape(100, 10)
    assert np.allclose(features[:, -1], correct.mean(axis=1))
    assert np.array_equal(features[:, :-1], noisy_pool.features)


def test_single_pass_accuracy_makes_any_router_imitate_the_oracle(rows: Rows) -> None:
    for budget in (1.5, 3.0):
        router, leaking = rows["router", budget], rows[LEAKING_ROUTER, budget]
        assert leaking["held_out_imitation"] > router["held_out_imitation"] + 0.1
        assert leaking["imitation"] > router["imitation"]
        assert leaking["oracle_gap"] < router["oracle_gap"]
        for name in ("imitation", "oracle_gap", "held_out_imitation"):
            assert leaking[f"{name}_low"] < leaking[name] < leaking[f"{name}_high"]


def test_mean_of_scored_counts_copies_and_repetitions_once() -> None:
    scored = np.array([[True, True, False, True], [True, False, True, True]])
    values = np.array([[1.0, 0.0, 9.0, 1.0], [0.0, 9.0, 1.0, 1.0]])
    group = np.arange(4, dtype=np.uint64)
    alone = mean_of_scored(values, scored, group)
    assert alone.value == pytest.approx(4 / 6)
    copies = [np.concatenate([a, a], axis=-1) for a in (values, scored, group)]
    repeated = mean_of_scored(*copies)
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high))


def test_only_the_named_policies_are_scored(noisy_pool: Pool) -> None:
    rows = evaluate_paper(noisy_pool, budgets=(1.5,), policies=("fixed", "oracle-in-sample"))
    assert [row["policy"] for row in rows] == ["fixed", "oracle-in-sample"]


def test_heuristic_uses_the_length_feature(noisy_pool: Pool, rows: Rows) -> None:
    moved = replace(noisy_pool, features=noisy_pool.features[:, [2, 1, 0]].copy(), length_feature=2)
    again = evaluate_paper(moved, budgets=(3.0,), classifier="logistic")
    (longest,) = [row for row in again if row["policy"] == HEURISTIC]
    assert longest["accuracy"] == rows[HEURISTIC, 3.0]["accuracy"]


def test_unseen_fifth_above_the_budget_is_still_scored(noisy_pool: Pool) -> None:
    held_out = assign_folds(noisy_pool.group, 5, seed=0) == 0
    cost = np.where(held_out, 3.0, 1.0)[noisy_pool.answers.question]
    expensive = replace(noisy_pool, sample_cost=cost)
    rows = evaluate_paper(expensive, budgets=(1.45,), classifier="logistic")
    assert [row["policy"] for row in rows] == NAMES
    oracle = rows[-1]
    assert oracle["held_out_imitation"] <= 1.0
    assert oracle["cost"] <= 1.45


def test_budget_above_the_largest_level_uses_that_level(noisy_pool: Pool) -> None:
    rows = {
        row["policy"]: row
        for row in evaluate_paper(noisy_pool, budgets=(50.0,), classifier="logistic")
    }
    assert [rows[name]["cost"] for name in NAMES[:3]] == [8.0, 8.0, 8.0]


def test_decide_upfront_returns_the_level_before_the_first_sample(noisy_pool: Pool) -> None:
    table = noisy_pool.table((1, 2, 4, 8))
    policy = RulePolicy("fixed", make_levels((1, 2, 4, 8)), (FixedRule(4),), PriceSchedule((1.0,)))
    assert decide_upfront(policy, noisy_pool, 1.0, table).tolist() == [2] * 100


def test_too_small_budget_or_too_few_questions_are_rejected(noisy_pool: Pool) -> None:
    with pytest.raises(InfeasibleBudget, match="below 1"):
        evaluate_paper(noisy_pool, budgets=(0.5,))
    with pytest.raises(DataError, match="too few"):
        evaluate_paper(noisy_pool.take(np.arange(5)), budgets=(1.5,))
