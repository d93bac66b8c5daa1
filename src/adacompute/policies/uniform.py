"""Uniform: rules that treat every question alike, and the policy that turns through rules.

fixed, mixture, random and longest-first decide how many samples before the first one; retry redraws
what could not be read. Each is the same policy with other rules on its schedule, and so are the
stopping rules next door. Only longest-first looks at the question, and only at its length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from adacompute.core.types import Float32Array, FloatArray, IntArray, Level
from adacompute.policies.policy import ObservedSamples, State, mixing_uniform
from adacompute.policies.price_schedule import PriceSchedule


class Rule(Protocol):
    """One setting of a policy: how many samples each question should have by the next decision."""

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """As many as there are means stop."""


@dataclass(frozen=True)
class FixedRule:
    """The same number of samples for every question."""

    n_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Draw them all at once."""
        return np.maximum(observed.n_samples, self.n_samples)


@dataclass(frozen=True)
class RetryRule:
    """Redraw until so many samples could be read, up to a cap."""

    min_parsed: int
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Draw at once what is missing."""
        missing = np.maximum(0, self.min_parsed - observed.n_parsed)
        return np.maximum(
            observed.n_samples, np.minimum(self.max_samples, observed.n_samples + missing)
        )


MIX_BY = ("key", "length", "none")


@dataclass(frozen=True)
class RulePolicy:
    """A policy that turns through rules by price.

    Between two rules, ``mix_by`` says which questions take the more expensive one: "key" draws
    pseudo-randomly from the key, "length" takes the longest first, by their rank among the sorted
    ``training_lengths``, and "none" does not mix. ``length_feature`` is the
    feature column that holds the length.
    """

    name: str
    levels: tuple[Level, ...]
    rules: tuple[Rule, ...]
    schedule: PriceSchedule
    mix_by: str = "key"
    training_lengths: tuple[float, ...] = ()
    length_feature: int = 0
    _samples: IntArray = field(init=False, repr=False, compare=False)
    _lengths: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        samples = np.array([level.n_samples for level in self.levels])
        object.__setattr__(self, "_samples", samples)
        object.__setattr__(self, "_lengths", np.asarray(self.training_lengths, dtype=np.float64))

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep the length alone, where tickets go by it."""
        if self.mix_by == "length":
            return features[:, [self.length_feature]]
        return features[:, :0]

    def decide(self, state: State, price: float) -> IntArray:
        """Ask each question's rule how many samples it should have."""
        if len(self.rules) == 1:
            target_samples = self.rules[0].target_samples(state.observed)
        else:
            place = self.schedule.select(price, self._tickets(state))
            target_samples = np.empty(len(state), dtype=np.int64)
            for setting in np.unique(place):
                rows = np.flatnonzero(place == setting)
                target_samples[rows] = self.rules[setting].target_samples(state.observed.take(rows))
        level = np.searchsorted(self._samples, target_samples)
        # A ladder that lacks the number takes the next one; a question that stops stays.
        level = np.minimum(level, len(self.levels) - 1)
        return np.where(target_samples > state.observed.n_samples, level, state.level)

    def _tickets(self, state: State) -> FloatArray:
        if self.mix_by == "none":
            return np.ones(len(state))
        if self.mix_by == "length":
            length = state.features[:, 0]
            rank = np.searchsorted(self._lengths, length, side="left")
            return np.asarray(1.0 - rank / max(1, len(self.training_lengths)), dtype=np.float64)
        return mixing_uniform(state.key)


RETRY_PARSED = (1, 2, 3, 4, 5, 6, 8, 10)
RETRY_CAPS = (1, 2, 3, 4, 6, 8, 10, 12, 16)


def retry_grid(max_samples: int) -> tuple[RetryRule, ...]:
    """Readable samples × caps that are tried."""
    return tuple(
        RetryRule(k, cap) for k in RETRY_PARSED for cap in RETRY_CAPS if k <= cap <= max_samples
    )
