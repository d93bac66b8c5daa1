"""Rule policy: switches between rules by price.

A rule says how many samples each question should have by the next decision. The policy has a price
schedule of rules, so mixtures and the stopping rules are all this policy with different rules. None
looks at the question.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray, Level
from adacompute.policies.lookup import MAX_REMEMBERED, Lookup, observe
from adacompute.policies.policy import (
    ObservedSamples,
    Policy,
    PreparedKind,
    State,
    mixing_uniform,
)
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.spec import PolicySpec, read_choice, read_entry, read_number, read_numbers
from adacompute.policies.stopping import AdaptiveConsistencyRule, VoteLeadRule
from adacompute.policies.uniform import FixedRule

RULES: dict[str, type[FixedRule | AdaptiveConsistencyRule | VoteLeadRule]] = {
    "fixed": FixedRule,
    "adaptive-consistency": AdaptiveConsistencyRule,
    "vote-lead": VoteLeadRule,
}
"""Rules by their name in a bundle."""

MIX_BY = ("key", "none")
"""What decides which questions take the more expensive of two rules."""


class Rule(Protocol):
    """One setting of a rule policy; ``decides_once`` if it does not look at the votes."""

    decides_once: ClassVar[bool]

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Return the number of samples for the next decision; the current number means stop."""


@dataclass(frozen=True)
class RulePolicy(Policy):
    """A policy that selects a rule by price.

    Between two rules, ``mix_by`` says which questions take the more expensive one: "key" decides
    pseudo-randomly by the key, and "none" does not mix.
    """

    name: str = field()
    levels: tuple[Level, ...]
    rules: tuple[Rule, ...]
    schedule: PriceSchedule = field()
    mix_by: str = "key"
    _level_samples: IntArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        samples = np.array([level.n_samples for level in self.levels])
        object.__setattr__(self, "_level_samples", samples)

    @property
    def decides_once(self) -> bool:
        """Whether the first decision, before there are samples, is the last."""
        return all(rule.decides_once for rule in self.rules)

    @property
    def is_stepped(self) -> bool:
        """Whether questions are never mixed between two rules."""
        return self.mix_by == "none"

    @property
    def prepared(self) -> PreparedKind:
        """Nothing: no rule looks at the question."""
        return PreparedKind.NOTHING

    def make_lookup(self) -> Lookup | None:
        """Return a lookup of what rules say about answers."""
        return RuleLookup(self)

    def list_uniform(self) -> list[tuple[int, str | None]]:
        """Return the number of samples of each rule; none if some rule looks at votes."""
        if not self.decides_once:
            return []
        return [(int(rule.target_samples(observe(()))[0]), None) for rule in self.rules]

    def decide(self, state: State, price: float) -> IntArray:
        """Apply each question's rule."""
        if len(self.rules) == 1:
            target = self.rules[0].target_samples(state.observed)
        else:
            setting = self.schedule.select(price, self.uniform(state))
            target = np.empty(len(state), dtype=np.int64)
            for number in np.unique(setting):
                rows = np.flatnonzero(setting == number)
                target[rows] = self.rules[number].target_samples(state.observed.take(rows))
        level = np.searchsorted(self._level_samples, target)
        # If no level has this number of samples, take the next larger one, or the largest.
        level = np.minimum(level, len(self.levels) - 1)
        return np.where(target > state.observed.n_samples, level, state.level)

    def uniform(self, state: State) -> FloatArray:
        """Return the number of each question that selects between two rules."""
        return np.ones(len(state)) if self.mix_by == "none" else mixing_uniform(state.key)


class RuleLookup:
    """Levels that each rule of a policy leads to."""

    def __init__(self, policy: RulePolicy) -> None:
        any_price = PriceSchedule((1.0,))
        self._single = [replace(policy, rules=(rule,), schedule=any_price) for rule in policy.rules]
        self._policy = policy
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
        schedule = self._policy.schedule
        if len(self._single) == 1:
            rule = 0
        elif self._policy.mix_by == "key":
            rule = schedule.select_one(price, key)
        else:
            rule = schedule.position(price)[0]
        return self._level(rule, level, answers)

    def _decide_by(self, rule: int, level: int, answers: tuple[int, ...]) -> int:
        """Decide about one question by a rule, which uses only the answers and the level."""
        state = State(
            key=np.zeros(1, dtype=np.uint64),
            features=np.empty((1, 0), dtype=np.float32),
            cost=np.zeros((1, len(self._policy.levels))),
            observed=observe(answers),
            level=np.array([level]),
            rounds_left=np.array([1]),
        )
        return int(self._single[rule].decide(state, 1.0)[0])


def to_spec(policy: RulePolicy) -> PolicySpec:
    """Describe the policy as plain data."""
    content = {
        "name": policy.name,
        "prices": policy.schedule.prices,
        "rules": [_rule_to_json(rule) for rule in policy.rules],
        "mix_by": policy.mix_by,
    }
    return PolicySpec(policy.levels, content)


def from_spec(spec: PolicySpec) -> RulePolicy:
    """Build the policy from plain data."""
    content = spec.content
    schedule = PriceSchedule(read_numbers(content["prices"]))
    rules = tuple(_rule_from_json(dict(rule), spec.max_samples) for rule in content["rules"])
    if len(rules) != len(schedule.prices):
        raise BundleError(f"{len(schedule.prices)} prices need as many rules, got {len(rules)}")
    return RulePolicy(
        read_entry(content, "name", str),
        spec.levels,
        rules,
        schedule,
        mix_by=read_choice(MIX_BY, content["mix_by"]),
    )


def _rule_to_json(rule: Rule) -> dict[str, Any]:
    for name, kind in RULES.items():
        if isinstance(rule, kind):
            return {"rule": name, **asdict(rule)}
    raise BundleError(f"a rule of type {type(rule).__name__} cannot be saved in a bundle")


def _rule_from_json(content: dict[str, Any], max_samples: int) -> Rule:
    """Build a rule; all its counts must be from 1 to the samples of the largest level."""
    name = content.pop("rule")
    if name not in RULES:
        raise BundleError(f"rule {name!r} is unknown to this version")
    rule: Rule = RULES[name](**content)
    counts = [read_entry(content, key, int) for key in content if key != "threshold"]
    if not all(1 <= count <= max_samples for count in counts):
        raise BundleError(f"{rule} does not fit levels of up to {max_samples} samples")
    read_number(content.get("threshold", 0.0))
    return rule
