"""Lookup: decisions about single questions, remembered by what they depend on.

A decision of a block of arrays takes as long for one question as for 64. Rules and sequential
policies depend on little: the answers so far, and a number per question. So what a policy says
about a state is asked once, of the policy itself, and then found in a dictionary. Other policies,
limited rounds and rounds that cost something are not supported and are decided in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from adacompute.policies.policy import (
    NO_LEVEL,
    ObservedSamples,
    Policy,
    SampleMatrix,
    State,
    mixing_uniform_of,
)
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import RulePolicy
from adacompute.policies.sequential import SequentialPolicy, price_jitter_of

MAX_REMEMBERED = 1 << 14
"""Entries of a lookup; when there are more, the least recently used are forgotten."""


class Lookup(Protocol):
    """Decides about one question at a time as its policy does in blocks.

    ``feature`` is the first of the features that the policy prepared. ``next_cost`` is the cost of
    the next level from here.
    """

    def decide(
        self,
        answers: tuple[int, ...],
        level: int,
        *,
        price: float,
        key: int,
        feature: float,
        next_cost: float,
    ) -> int:
        """Return the next level; the current level means stop."""


def make_lookup(policy: Policy) -> Lookup | None:
    """Return a lookup for a policy, None if it needs blocks."""
    if isinstance(policy, RulePolicy) and policy.mix_by != "length":
        return RuleLookup(policy)
    if isinstance(policy, SequentialPolicy) and policy.is_index_rule:
        return SequentialLookup(policy)
    return None


class RuleLookup:
    """Levels that each rule of a policy leads to."""

    def __init__(self, policy: RulePolicy) -> None:
        any_price = PriceSchedule((1.0,))
        self._single = [replace(policy, rules=(rule,), schedule=any_price) for rule in policy.rules]
        self._policy = policy
        self._position = lru_cache(MAX_REMEMBERED)(policy.schedule.position)
        self._level = lru_cache(MAX_REMEMBERED)(self._decide_by)

    def decide(
        self,
        answers: tuple[int, ...],
        level: int,
        *,
        price: float,
        key: int,
        **_: float,
    ) -> int:
        """Return what the question's rule says about its answers."""
        rule = 0 if len(self._single) == 1 else self._rule(key, price)
        return self._level(rule, level, answers)

    def _decide_by(self, rule: int, level: int, answers: tuple[int, ...]) -> int:
        return _decide_alone(self._single[rule], answers, level)

    def _rule(self, key: int, price: float) -> int:
        """Return the rule of a question, as ``PriceSchedule.select`` does."""
        first, share = self._position(price)
        return first + (
            share > 0 and self._policy.mix_by == "key" and mixing_uniform_of(key) < share
        )


class SequentialLookup:
    """Break-even prices of each state, for all cells."""

    def __init__(self, policy: SequentialPolicy) -> None:
        self._policy = policy
        self._n_levels = len(policy.levels)
        self._break_even = lru_cache(MAX_REMEMBERED)(self._break_even_prices)

    def decide(
        self,
        answers: tuple[int, ...],
        level: int,
        *,
        price: float,
        key: int,
        feature: float,
        next_cost: float,
    ) -> int:
        """Add one sample while the break-even price is above the price of a sample."""
        n_samples = len(answers)
        if n_samples >= self._n_levels:
            return level
        if level == NO_LEVEL:
            return n_samples
        limit = self._break_even(answers)[int(feature)] / price_jitter_of(key)
        return n_samples if limit > price * next_cost else level

    def _break_even_prices(self, answers: tuple[int, ...]) -> list[float]:
        """Return the break-even price of a state in every cell."""
        prices: list[float] = self._policy.break_even_price[_observe(answers).states[0]].tolist()
        return prices


def _observe(answers: tuple[int, ...]) -> ObservedSamples:
    samples = SampleMatrix(np.array([answers], dtype=np.int64).reshape(1, len(answers)))
    return ObservedSamples(samples, np.zeros(1, dtype=np.int64), np.array([len(answers)]))


def _decide_alone(policy: Policy, answers: tuple[int, ...], level: int) -> int:
    """Decide in a block of one question, by a policy that uses only the answers and the level."""
    state = State(
        key=np.zeros(1, dtype=np.uint64),
        features=np.empty((1, 0), dtype=np.float32),
        cost=np.zeros((1, len(policy.levels))),
        observed=_observe(answers),
        level=np.array([level]),
        rounds_left=np.array([1]),
    )
    return int(policy.decide(state, 1.0)[0])
