"""Rules that are scored beside our policies decide as the literature says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from adacompute.core.errors import BundleError
from adacompute.core.types import IntArray, make_levels
from adacompute.evaluation.rivals import (
    EarlyStoppingRule,
    LongestFirst,
    RetryRule,
    early_grid,
    retry_grid,
)
from adacompute.policies.bundles.serialization import policy_to_json
from adacompute.policies.episode import start_state
from adacompute.policies.policy import SampleMatrix, State
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.uniform import FixedRule

PlayRule: TypeAlias = Callable[[Rule, IntArray], IntArray]


def fresh(length: IntArray) -> State:
    """Return questions of these lengths without samples."""
    size = len(length)
    return start_state(
        key=np.arange(size, dtype=np.uint64),
        features=length[:, None].astype(np.float32),
        cost=np.ones((size, 3)),
        samples=SampleMatrix(np.zeros((size, 8), np.int64)),
    )


def retry(answers: list[int], min_parsed: int, max_samples: int) -> int:
    drawn = 0
    while drawn < max_samples and sum(a >= 0 for a in answers[:drawn]) < min_parsed:
        drawn += 1
    return drawn


def early(answers: list[int], window: int, max_samples: int) -> int:
    """Early-stopping self-consistency in plain Python."""
    drawn = 0
    while drawn < max_samples:
        new = answers[drawn : min(max_samples, drawn + window)]
        drawn += len(new)
        if len(new) == window and len(set(new)) == 1 and new[0] >= 0:
            break
    return drawn


def test_retry_samples_until_enough_are_parsed(play_rule: PlayRule, sequences: IntArray) -> None:
    for rule in retry_grid(16):
        expected = [retry(row, rule.min_parsed, rule.max_samples) for row in sequences.tolist()]
        assert play_rule(rule, sequences).tolist() == expected, rule


def test_early_stopping_stops_at_a_unanimous_parsed_window(
    play_rule: PlayRule, sequences: IntArray
) -> None:
    for rule in (*early_grid(16), EarlyStoppingRule(3, 7)):
        expected = [early(row, rule.window, rule.max_samples) for row in sequences.tolist()]
        assert play_rule(rule, sequences).tolist() == expected, rule


def test_a_streak_across_windows_is_not_unanimous(play_rule: PlayRule) -> None:
    answer = np.array([[1, 0, 0, 2, 2, 2], [1, 0, 0, 0, 2, 2], [-1, -1, -1, 0, 0, 0]])
    assert play_rule(EarlyStoppingRule(2, 6), answer).tolist() == [6, 4, 6]


def test_longest_first_gives_the_larger_level_to_the_longest() -> None:
    length = np.random.default_rng(0).permutation(1000)
    policy = LongestFirst(
        "longest-first",
        make_levels((1, 4)),
        (FixedRule(1), FixedRule(4)),
        PriceSchedule((0.4, 0.1)),
        training_lengths=tuple(range(1000)),
        length_feature=1,
    )
    both = np.stack([np.zeros(1000), length], axis=1).astype(np.float32)
    assert (policy.prepare_features(both)[:, 0] == length).all()
    level = policy.decide(fresh(length), policy.schedule.price_at(0.3))
    assert length[level == 1].min() > length[level == 0].max()
    assert level.mean() == pytest.approx(0.3, abs=0.0011)
    unseen = np.array([-5, 10_000])
    assert policy.decide(fresh(unseen), policy.schedule.price_at(0.001)).tolist() == [0, 1]


def test_rivals_are_not_saved() -> None:
    levels, schedule = make_levels((1, 4)), PriceSchedule((1.0,))
    for policy in (
        LongestFirst("longest-first", levels, (FixedRule(4),), schedule),
        RulePolicy("retry", levels, (RetryRule(1, 4),), schedule),
        RulePolicy("early-stopping", levels, (EarlyStoppingRule(2, 4),), schedule),
    ):
        with pytest.raises(BundleError, match="cannot be saved"):
            policy_to_json(policy)


def test_the_retry_grid_has_all_numbers_up_to_the_caps() -> None:
    grid = retry_grid(6)
    assert len(set(grid)) == len(grid)
    assert {(rule.min_parsed, rule.max_samples) for rule in grid} == {
        (k, max_samples)
        for k in (1, 2, 3, 4, 5, 6)
        for max_samples in (1, 2, 3, 4, 6)
        if k <= max_samples
    }


def test_the_early_grid_has_all_windows_and_caps() -> None:
    assert early_grid(1) == (EarlyStoppingRule(1, 1),)
    caps = {(rule.window, rule.max_samples) for rule in early_grid(6)}
    assert caps == {(1, 1), (2, 2), (2, 4), (2, 6), (3, 3), (3, 6), (4, 4), (5, 5)}
    assert max(rule.max_samples for rule in early_grid(50)) == 32
