"""An experiment on the same samples with the same settings keeps what was computed for it."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest

from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import POLICY_FACTORIES, find_factory
from adacompute.evaluation.kept_results import Arrays
from adacompute.evaluation.pool import Pool
from adacompute.evaluation.replay import ReplayResult
from adacompute.evaluation.rivals import EarlyStoppingRule, RetryRule
from adacompute.evaluation.scoring import held_out
from adacompute.evaluation.scoring.policy_score import score_policy
from adacompute.policies.episode import UNLIMITED_ROUNDS
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule
from adacompute.policies.uniform import FixedRule

LEVELS, BUDGETS = (1, 2, 4), (2.0,)


class InMemory(dict[str, Arrays]):
    """Results that are kept in memory."""

    def read(self, key: str) -> Arrays | None:
        return self.get(key)

    def write(self, key: str, arrays: Arrays) -> None:
        self[key] = dict(arrays)


@pytest.mark.parametrize("name", ["fixed", "early-stopping", "longest-first", "sequential"])
def test_kept_results_are_those_that_were_computed(
    small: Pool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = InMemory()
    first = score_policy(Experiment(small, LEVELS, BUDGETS, 4, kept=kept), name)
    point = first.curve.read(2.0)
    gain = first.gain(point)
    monkeypatch.setattr(held_out, "replay_splits", None)  # nothing is fitted again
    again = score_policy(Experiment(copy.deepcopy(small), LEVELS, BUDGETS, 4, kept=kept), name)
    assert again.curve.is_stepped == first.curve.is_stepped
    assert again.gain(again.curve.read(2.0)) == gain
    for one in fields(ReplayResult):
        found = getattr(again.curve.read(2.0).result, one.name)
        np.testing.assert_array_equal(found, getattr(point.result, one.name))


@pytest.mark.parametrize("name", POLICY_FACTORIES)
def test_results_are_kept_for_all_budgets_unless_the_policy_is_fitted_to_them(
    small: Pool, name: str
) -> None:
    factory, kept = find_factory(name), InMemory()
    low, high = (
        held_out.score_held_out(Experiment(small, LEVELS, (budget,), 4), factory)
        for budget in (1.5, 3.0)
    )
    held_out.score_held_out(Experiment(small, LEVELS, (1.5,), 4, kept=kept), factory)
    held_out.score_held_out(Experiment(small, LEVELS, (3.0,), 4, kept=kept), factory)
    is_same = all(
        np.array_equal(one.result.cost, other.result.cost)
        for one, other in zip(low.folds, high.folds, strict=True)
    )
    assert len(kept) == (1 if is_same else 2)


def test_results_of_unknown_functions_are_not_kept(small: Pool) -> None:
    kept = InMemory()
    experiment = Experiment(small, LEVELS, BUDGETS, 4, kept=kept)
    make_fixed = find_factory("fixed")
    held_out.score_held_out(experiment, partial(make_fixed))
    assert not kept
    held_out.score_held_out(experiment, make_fixed)
    assert len(kept) == 1


def test_a_policy_is_fitted_to_all_questions_once(small: Pool) -> None:
    experiment = Experiment(small, LEVELS, BUDGETS, 4)
    factory = find_factory("fixed")
    assert experiment.fit_final(factory) is experiment.fit_final(factory)


def test_equal_experiments_have_the_same_key(small: Pool) -> None:
    first = Experiment(small, LEVELS, BUDGETS, 4)
    again = Experiment(copy.deepcopy(small), LEVELS, BUDGETS, 4, kept=InMemory())
    assert again.run_rules([FixedRule(2)]) is not None
    assert again.key == first.key
    assert Experiment(small, LEVELS, BUDGETS, 4, max_rounds=2).key != first.key


@pytest.mark.parametrize("change", ["seed", "levels", "budgets", "sample_cost", "answers"])
def test_different_experiments_have_different_keys(small: Pool, change: str) -> None:
    first = Experiment(small, LEVELS, BUDGETS, 4)
    changed = {
        "seed": replace(first, seed=1),
        "levels": replace(first, levels=(1, 2)),
        "budgets": replace(first, budgets=(3.0,)),
        "sample_cost": replace(first, pool=replace(small, sample_cost=small.sample_cost * 2)),
        "answers": replace(
            first,
            pool=replace(
                small, answers=replace(small.answers, correct=small.answers.correct & False)
            ),
        ),
    }[change]
    assert changed.key != first.key


@pytest.mark.parametrize("max_rounds", [1, 3, UNLIMITED_ROUNDS])
def test_rules_are_replayed_as_by_episodes(small: Pool, max_rounds: int) -> None:
    experiment = Experiment(small, LEVELS, BUDGETS, 4, max_rounds=max_rounds)
    rules: tuple[Rule, ...] = (
        FixedRule(3),
        RetryRule(2, 4),
        AdaptiveConsistencyRule(0.8, 4),
        EarlyStoppingRule(2, 4),
    )
    found = experiment.run_rules(rules)
    for i, rule in enumerate(rules):
        policy = RulePolicy("rule", experiment.dense_levels, (rule,), PriceSchedule((1.0,)))
        none = policy.prepare_features(small.features)
        by_episode = experiment.replay._run_episode(policy, 1.0, none, 1.0)
        by_block = experiment.replay.run(policy, (1.0,), none, 1.0)
        for one in fields(ReplayResult):
            expected = getattr(by_episode, one.name)
            np.testing.assert_array_equal(getattr(found, one.name)[:, i], expected)
            np.testing.assert_array_equal(getattr(by_block, one.name)[:, 0], expected)


def test_scores_do_not_move_to_an_experiment_with_other_settings(small: Pool) -> None:
    first = Experiment(small, LEVELS, BUDGETS, 4)
    score = score_policy(first, "adaptive-consistency")
    assert score_policy(replace(first, max_rounds=2), "adaptive-consistency") is not score
