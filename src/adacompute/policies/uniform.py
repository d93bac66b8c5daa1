"""Uniform rules: the same number of samples, or of parsed samples, for every question.

``FixedRule`` is the rule of the policies fixed, mixture, random and longest-first. ``RetryRule``
samples again if an answer could not be parsed. Neither looks at the votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adacompute.core.types import IntArray
from adacompute.policies.policy import ObservedSamples

RETRY_PARSED = (1, 2, 3, 4, 5, 6, 8, 10)
RETRY_CAPS = (1, 2, 3, 4, 6, 8, 10, 12, 16)


@dataclass(frozen=True)
class FixedRule:
    """The same number of samples for every question."""

    decides_once: ClassVar[bool] = True
    n_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Return the fixed number."""
        return np.maximum(observed.n_samples, self.n_samples)


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


def retry_grid(max_samples: int) -> tuple[RetryRule, ...]:
    """Return the retry rules that are tried in training."""
    return tuple(
        RetryRule(k, cap) for k in RETRY_PARSED for cap in RETRY_CAPS if k <= cap <= max_samples
    )
