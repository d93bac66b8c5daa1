"""Uniform: rules that treat every question alike, and the policy that turns through rules.

fixed, mixture, random and longest-first decide how many samples before the first one; retry redraws
what could not be read. Each is the same policy with other rules on its dial, and so are the
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

    def reach(self, draws: ObservedSamples) -> IntArray:
        """As many as there are means stop."""


@dataclass(frozen=True)
class FixedRule:
    """The same number of samples for every question."""

    samples: int

    def reach(self, draws: ObservedSamples) -> IntArray:
        """Draw them all at once."""
        return np.maximum(draws.size, self.samples)


@dataclass(frozen=True)
class RetryRule:
    """Redraw until so many samples could be read, up to a cap."""

    readable: int
    cap: int

    def reach(self, draws: ObservedSamples) -> IntArray:
        """Draw at once what is missing."""
        missing = np.maximum(0, self.readable - draws.n_parsed)
        return np.maximum(draws.size, np.minimum(self.cap, draws.size + missing))


TICKETS = ("key", "length", "none")


@dataclass(frozen=True)
class RulePolicy:
    """A policy that turns through rules by price.

    Between two rules, questions are mixed by a ticket: a number drawn from the key, or the rank of
    the question's length among those of training (``lengths``, sorted), longest first, or not at
    all. ``length_feature`` is the column of the features that holds the length.
    """

    name: str
    levels: tuple[Level, ...]
    rules: tuple[Rule, ...]
    dial: PriceSchedule
    ticket: str = "key"
    lengths: tuple[float, ...] = ()
    length_feature: int = 0
    _samples: IntArray = field(init=False, repr=False, compare=False)
    _lengths: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        samples = np.array([level.samples for level in self.levels])
        object.__setattr__(self, "_samples", samples)
        object.__setattr__(self, "_lengths", np.asarray(self.lengths, dtype=np.float64))

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep the length alone, where tickets go by it."""
        if self.ticket == "length":
            return features[:, [self.length_feature]]
        return features[:, :0]

    def decide(self, state: State, price: float) -> IntArray:
        """Ask each question's rule how many samples it should have."""
        if len(self.rules) == 1:
            reach = self.rules[0].reach(state.draws)
        else:
            place = self.dial.turn(price, self._tickets(state))
            reach = np.empty(len(state), dtype=np.int64)
            for setting in np.unique(place):
                rows = np.flatnonzero(place == setting)
                reach[rows] = self.rules[setting].reach(state.draws.take(rows))
        level = np.searchsorted(self._samples, reach)
        # A ladder that lacks the number takes the next one; a question that stops stays.
        level = np.minimum(level, len(self.levels) - 1)
        return np.where(reach > state.draws.size, level, state.level)

    def _tickets(self, state: State) -> FloatArray:
        if self.ticket == "none":
            return np.ones(len(state))
        if self.ticket == "length":
            length = state.features[:, 0]
            rank = np.searchsorted(self._lengths, length, side="left")
            return np.asarray(1.0 - rank / max(1, len(self.lengths)), dtype=np.float64)
        return mixing_uniform(state.key)


RETRY_READABLE = (1, 2, 3, 4, 5, 6, 8, 10)
RETRY_CAPS = (1, 2, 3, 4, 6, 8, 10, 12, 16)


def retry_grid(most: int) -> tuple[RetryRule, ...]:
    """Readable samples × caps that are tried."""
    return tuple(
        RetryRule(k, cap) for k in RETRY_READABLE for cap in RETRY_CAPS if k <= cap <= most
    )
