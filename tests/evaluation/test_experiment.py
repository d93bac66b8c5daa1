"""An experiment on the same samples with the same settings keeps what was computed for it."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from adacompute.evaluation.experiment import Experiment, recall
from adacompute.evaluation.policy_score import score_policy
from adacompute.evaluation.pool import Pool

LEVELS, BUDGETS = (1, 2, 4), (2.0,)


def test_scores_are_shared_by_equal_experiments(small: Pool) -> None:
    first = recall(Experiment(small, LEVELS, BUDGETS, 4))
    score = score_policy(first, "adaptive-consistency")
    again = recall(Experiment(copy.deepcopy(small), LEVELS, BUDGETS, 4))
    assert again is first
    assert score_policy(again, "adaptive-consistency") is score
    assert score_policy(again, "early-stopping") is not score


@pytest.mark.parametrize("change", ["seed", "levels", "sample_cost", "answers"])
def test_scores_are_not_shared_by_different_experiments(small: Pool, change: str) -> None:
    first = recall(Experiment(small, LEVELS, BUDGETS, 4))
    changed = {
        "seed": replace(first, seed=1),
        "levels": replace(first, levels=(1, 2)),
        "sample_cost": replace(first, pool=replace(small, sample_cost=small.sample_cost * 2)),
        "answers": replace(
            first,
            pool=replace(
                small, answers=replace(small.answers, correct=small.answers.correct & False)
            ),
        ),
    }[change]
    assert recall(changed) is changed
    assert recall(first) is first


def test_scores_do_not_move_to_an_experiment_with_other_settings(small: Pool) -> None:
    first = Experiment(small, LEVELS, BUDGETS, 4)
    score = score_policy(first, "adaptive-consistency")
    assert score_policy(replace(first, max_rounds=2), "adaptive-consistency") is not score
