from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from adacompute.core.types import IntArray, make_levels
from adacompute.policies.episode import start_state
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, SampleMatrix, State
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy
from adacompute.policies.stopping import VoteLeadRule
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


def at_size(size: int, at: int) -> State:
    state = fresh(np.zeros(1, dtype=np.int64))
    observed = ObservedSamples(state.observed.samples, np.zeros(1, np.int64), np.array([size]))
    return State(state.key, state.features, state.cost, observed, np.array([at]), state.rounds_left)


@pytest.mark.parametrize("samples", [1, 3, 16])
def test_fixed_ignores_the_answers(play_rule: PlayRule, sequences: IntArray, samples: int) -> None:
    assert (play_rule(FixedRule(samples), sequences) == samples).all()


def test_a_missing_level_is_rounded_up() -> None:
    policy = RulePolicy(
        "lead", make_levels((1, 4, 6)), (VoteLeadRule(2, 16),), PriceSchedule((1.0,))
    )
    record = SampleMatrix(np.full((1, 8), -1))
    levels = []
    for size, at in ((0, NO_LEVEL), (1, 0), (4, 1), (6, 2)):
        state = at_size(size, at)
        observed = ObservedSamples(record, np.zeros(1, np.int64), np.array([size]))
        state = State(
            state.key, state.features, state.cost, observed, state.level, state.rounds_left
        )
        levels += policy.decide(state, 1.0).tolist()
    assert levels == [1, 1, 2, 2]


def test_a_mixture_gives_the_larger_level_to_a_share() -> None:
    policy = RulePolicy(
        "mixture", make_levels((1, 4)), (FixedRule(1), FixedRule(4)), PriceSchedule((0.4, 0.1))
    )
    level = policy.decide(fresh(np.zeros(20_000, dtype=np.int64)), policy.schedule.price_at(0.3))
    assert level.mean() == pytest.approx(0.3, abs=0.012)


def test_without_mixing_all_questions_take_the_cheaper_setting() -> None:
    policy = RulePolicy(
        "fixed",
        make_levels((1, 4)),
        (FixedRule(1), FixedRule(4)),
        PriceSchedule((0.4, 0.1)),
        mix_by="none",
    )
    state = fresh(np.zeros(50, dtype=np.int64))
    assert (policy.decide(state, policy.schedule.price_at(0.99)) == 0).all()
    assert (policy.decide(state, 0.1) == 1).all()
