from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adacompute.core.errors import DataError, InfeasibleBudget
from adacompute.core.oracle import solve
from adacompute.core.types import make_levels
from adacompute.evaluation.pool import Pool, assign_folds
from adacompute.paper.protocol import decide_once, evaluate_paper
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.uniform import FixedRule, RulePolicy
from adacompute.testing.populations import mix_archetypes

NAMES = ["fixed", "random", "longest-first", "router", "oracle-in-sample"]


@pytest.fixture(scope="module")
def noisy(pool_of: Callable[..., Pool]) -> Pool:
    """Return questions whose features say nothing."""
    population, _ = mix_archetypes(100, telling=0.0, null_rate=0.1, seed=5)
    return pool_of(population, 10)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def rows(noisy: Pool, said: list[str]) -> dict[tuple[str, float], dict[str, Any]]:
    found = evaluate_paper(noisy, budgets=(3.0, 1.5, 3.0), progress=said.append)
    return {(row["policy"], row["budget"]): row for row in found}


def test_every_policy_of_the_paper_has_a_row_at_every_budget(
    rows: dict[tuple[str, float], dict[str, Any]], said: list[str]
) -> None:
    assert list(rows) == [(name, budget) for budget in (1.5, 3.0) for name in NAMES]
    assert said == ["budget 1.5", "budget 3"]


def test_the_oracle_is_the_best_of_its_table_and_never_overspends(
    noisy: Pool, rows: dict[tuple[str, float], dict[str, Any]]
) -> None:
    for budget in (1.5, 3.0):
        oracle = rows["oracle-in-sample", budget]
        found = solve(noisy.table((1, 2, 4, 8), method="windows"), budget)
        assert oracle["accuracy"] == pytest.approx(found.utility)
        assert oracle["cost"] == pytest.approx(found.cost)
        assert oracle["cost"] <= budget
        assert oracle["imitation"] > 0.9
        for name in NAMES[:3]:
            assert rows[name, budget]["accuracy"] < oracle["accuracy"]


def test_fixed_takes_the_level_below_the_budget_and_the_others_mix_around_it(
    rows: dict[tuple[str, float], dict[str, Any]],
) -> None:
    assert [rows["fixed", b]["cost"] for b in (1.5, 3.0)] == [1.0, 2.0]
    for name in ("random", "longest-first"):
        assert [rows[name, b]["cost"] for b in (1.5, 3.0)] == pytest.approx([1.5, 3.0], abs=0.25)
    fixed = rows["fixed", 3.0]
    assert fixed["accuracy_low"] == pytest.approx(fixed["accuracy_high"])
    assert fixed["accuracy_low"] <= fixed["accuracy"] <= fixed["accuracy_high"] + 1e-12


def test_on_features_that_say_nothing_the_router_imitates_only_what_it_has_seen(
    rows: dict[tuple[str, float], dict[str, Any]],
) -> None:
    for budget in (1.5, 3.0):
        router = rows["router", budget]
        assert router["imitation"] > router["held_out_imitation"] + 0.15
        assert router["accuracy_low"] <= router["accuracy"] <= router["accuracy_high"]
        assert router["regret"] <= router["regret_bound"] + 1e-9


def test_longest_first_looks_at_the_column_that_holds_the_length(
    noisy: Pool, rows: dict[tuple[str, float], dict[str, Any]]
) -> None:
    moved = replace(noisy, features=noisy.features[:, [2, 1, 0]].copy(), length_feature=2)
    again = evaluate_paper(moved, budgets=(3.0,), classifier="logistic")
    (longest,) = [row for row in again if row["policy"] == "longest-first"]
    assert longest["accuracy"] == rows["longest-first", 3.0]["accuracy"]


def test_a_fifth_that_costs_more_than_the_budget_is_still_scored(noisy: Pool) -> None:
    held = assign_folds(noisy.group, 5, seed=0) == 0
    cost = np.where(held, 3.0, 1.0)[noisy.answers.question]
    dear = replace(noisy, sample_cost=cost)
    rows = evaluate_paper(dear, budgets=(1.45,), classifier="logistic")
    assert [row["policy"] for row in rows] == NAMES
    oracle = rows[-1]
    assert oracle["held_out_imitation"] <= 1.0
    assert oracle["cost"] <= 1.45


def test_above_the_dearest_level_everyone_takes_it(noisy: Pool) -> None:
    rows = {
        row["policy"]: row for row in evaluate_paper(noisy, budgets=(50.0,), classifier="logistic")
    }
    assert [rows[name]["cost"] for name in NAMES[:3]] == [8.0, 8.0, 8.0]


def test_a_policy_decides_once_before_any_draw(noisy: Pool) -> None:
    table = noisy.table((1, 2, 4, 8))
    policy = RulePolicy("fixed", make_levels((1, 2, 4, 8)), (FixedRule(4),), PriceSchedule((1.0,)))
    assert decide_once(policy, noisy, 1.0, table).tolist() == [2] * 100


def test_a_budget_below_the_cheapest_level_or_too_few_questions_are_refused(noisy: Pool) -> None:
    with pytest.raises(InfeasibleBudget, match="below 1, the mean cost of every"):
        evaluate_paper(noisy, budgets=(0.5,))
    with pytest.raises(DataError, match="5 different questions are too few"):
        evaluate_paper(noisy.take(np.arange(5)), budgets=(1.5,))
