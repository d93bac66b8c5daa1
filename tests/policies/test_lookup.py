"""Lookups decide about single questions exactly as their policies do in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED
from adacompute.core.types import IntArray, make_levels
from adacompute.datasets.example import locate_bundle
from adacompute.policies import lookup
from adacompute.policies.bundles.bundle import load_bundle
from adacompute.policies.policy import NO_LEVEL, ObservedSamples, Policy, SampleMatrix, State
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.sequential.policy import SequentialPolicy
from adacompute.policies.stopping import AdaptiveConsistencyRule, VoteLeadRule
from adacompute.policies.uniform import FixedRule

LEVELS = make_levels(tuple(range(1, 9)))
RULES = (
    FixedRule(1),
    VoteLeadRule(4, 4),
    VoteLeadRule(3, 6),
    VoteLeadRule(2, 8),
    AdaptiveConsistencyRule(0.9, 8),
)
MIXED = RulePolicy("mixed", LEVELS, RULES, PriceSchedule((0.4, 0.2, 0.1, 0.05, 0.02)))


def example() -> SequentialPolicy:
    policy = load_bundle(locate_bundle(Path("example"))).policy
    assert isinstance(policy, SequentialPolicy)
    return policy


def make_policy(name: str) -> Policy:
    policies: dict[str, Callable[[], Policy]] = {
        "mixed": lambda: MIXED,
        "unmixed": lambda: replace(MIXED, mix_by="none"),
        "single": lambda: replace(MIXED, rules=RULES[4:], schedule=PriceSchedule((0.1,))),
        "sequential": example,
    }
    return policies[name]()


def make_state(policy: Policy, n_questions: int, seed: int) -> State:
    """Questions with random answers, as many as a level has, or none."""
    rng = np.random.default_rng(seed)
    level = rng.integers(NO_LEVEL, len(policy.levels), n_questions)
    answer = rng.integers(UNPARSED, 3, (n_questions, len(policy.levels)))
    samples = SampleMatrix(answer)
    cells = policy.votes.break_even_price.shape[1] if isinstance(policy, SequentialPolicy) else 1
    return State(
        key=rng.integers(0, 1 << 63, n_questions).astype(np.uint64) * np.uint64(2),
        features=rng.integers(0, cells, (n_questions, 1)).astype(np.float32),
        cost=rng.uniform(0.5, 2.0, (n_questions, len(policy.levels))),
        observed=ObservedSamples(samples, np.arange(n_questions), level + 1),
        level=level,
        rounds_left=np.full(n_questions, 1 << 30),
    )


def decide_by_lookup(policy: Policy, state: State, price: float) -> IntArray:
    table, found = policy.make_lookup(), []
    assert table is not None
    for i in range(len(state)):
        n_samples = int(state.observed.n_samples[i])
        level = table.decide(
            tuple(state.observed.samples.answer[i, :n_samples].tolist()),
            int(state.level[i]),
            price=price,
            key=int(state.key[i]),
            feature=float(state.features[i, 0]),
            next_cost=float(state.cost[i, min(n_samples, len(policy.levels) - 1)]),
        )
        found.append(level)
    return np.array(found)


@pytest.mark.parametrize("price", [0.5, 0.13, 0.02, 0.001])
@pytest.mark.parametrize("name", ["mixed", "unmixed", "single", "sequential"])
def test_lookups_decide_as_blocks_do(name: str, price: float) -> None:
    policy = make_policy(name)
    state = make_state(policy, 2000, seed=int(price * 1000))
    expected = policy.decide(state, price)
    assert (expected != state.level).any()
    np.testing.assert_array_equal(decide_by_lookup(policy, state, price), expected)


def test_lookups_forget_when_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MAX_REMEMBERED", 3)
    for policy in (MIXED, example()):
        state = make_state(policy, 200, seed=1)
        expected = policy.decide(state, 0.1)
        np.testing.assert_array_equal(decide_by_lookup(policy, state, 0.1), expected)


def test_policies_that_need_blocks_have_no_lookup() -> None:
    policy = example()
    table = replace(policy.votes, round_cost=1.0)
    assert replace(policy, table=table).make_lookup() is None
