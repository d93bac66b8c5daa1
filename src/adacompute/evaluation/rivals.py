"""Rivals: rules that are scored beside our policies, and cannot be saved or served.

Early-stopping self-consistency (ESC; Li et al., 2024) draws windows of samples and stops when one
of them is unanimous. ``RetryRule`` samples again if an answer could not be parsed.
``LongestFirst`` gives the larger of two numbers of samples to the longest questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from adacompute.core.types import Float32Array, FloatArray, IntArray
from adacompute.policies.lookup import Lookup
from adacompute.policies.policy import ObservedSamples, PreparedKind, State
from adacompute.policies.rule_policy import RulePolicy

RETRY_PARSED = (1, 2, 3, 4, 5, 6, 8, 10)
RETRY_CAPS = (1, 2, 3, 4, 6, 8, 10, 12, 16)
WINDOWS = (2, 3, 4, 5, 8)


@dataclass(frozen=True)
class LongestFirst(RulePolicy):
    """Between two rules, the longest questions take the more expensive one.

    Their rank among the sorted ``training_lengths`` decides. ``length_feature`` is the feature
    column that holds the length.
    """

    training_lengths: tuple[float, ...] = ()
    length_feature: int = 0

    @cached_property
    def _lengths(self) -> FloatArray:
        return np.asarray(self.training_lengths, dtype=np.float64)

    @property
    def prepared(self) -> PreparedKind:
        """The length of a question."""
        return PreparedKind.FEATURES

    def make_lookup(self) -> Lookup | None:
        """Return None: decisions need lengths."""
        return None

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep the length."""
        return features[:, [self.length_feature]]

    def uniform(self, state: State) -> FloatArray:
        """Return the number of each question that selects between two rules."""
        rank = np.searchsorted(self._lengths, state.features[:, 0], side="left")
        return np.asarray(1.0 - rank / max(1, len(self.training_lengths)), dtype=np.float64)


@dataclass(frozen=True)
class RetryRule:
    """Sample until ``min_parsed`` answers could be parsed, up to ``max_samples``."""

    decides_once: ClassVar[bool] = False
    min_parsed: int
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Add the number of parsed answers that are missing."""
        missing = np.maximum(0, self.min_parsed - observed.n_parsed)
        target = np.minimum(self.max_samples, observed.n_samples + missing)
        return np.maximum(observed.n_samples, target)


@dataclass(frozen=True)
class EarlyStoppingRule:
    """Draw windows until all answers of one are parsed and equal, up to ``max_samples``."""

    decides_once: ClassVar[bool] = False
    window: int
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Add one window, or stop."""
        n_samples, is_unanimous = observed.n_samples, observed.streak >= self.window
        stop = (n_samples > 0) & (is_unanimous | (n_samples >= self.max_samples))
        return np.where(stop, n_samples, np.minimum(self.max_samples, n_samples + self.window))


def retry_grid(max_samples: int) -> tuple[RetryRule, ...]:
    """Return the retry rules that are tried in training."""
    return tuple(
        RetryRule(k, cap) for k in RETRY_PARSED for cap in RETRY_CAPS if k <= cap <= max_samples
    )


def early_grid(max_samples: int) -> tuple[EarlyStoppingRule, ...]:
    """Return the rules that are tried in training: one sample, and windows × caps."""
    rules = [
        EarlyStoppingRule(window, cap)
        for window in WINDOWS
        for cap in sorted({window, 2 * window, 3 * window, 4 * window, 16})
        if window <= cap <= max_samples
    ]
    return (EarlyStoppingRule(1, 1), *rules)
