"""Stopping: rules that look at the votes after some draws and stop when they agree.

Adaptive-Consistency (Aggarwal et al., 2023) draws one at a time and stops when the leading answer
is likely to stay ahead of the second; early-stopping self-consistency (ESC; Li et al., 2024) draws
windows and stops when one of them is unanimous. Neither looks at the question, and neither knows
that a question may be hopeless: disagreement always means more draws, up to the cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.policy import ObservedSamples


@lru_cache
def lead_table(max_samples: int) -> FloatArray:
    """Chance that the leading answer is the more frequent of the two, by their votes.

    Entry [v1, v2] is 1 − BetaCDF(½; v1 + 1, v2 + 1): with whole votes, the chance of at most v1
    heads in v1 + v2 + 1 fair tosses.
    """
    table = np.empty((max_samples + 1, max_samples + 1))
    for v1 in range(max_samples + 1):
        for v2 in range(max_samples + 1):
            tosses = v1 + v2 + 1
            table[v1, v2] = sum(math.comb(tosses, j) for j in range(v1 + 1)) / 2**tosses
    return table


@dataclass(frozen=True)
class AdaptiveConsistencyRule:
    """Draw one at a time until the lead is likely to be real, up to a cap."""

    threshold: float
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """One more, or no more."""
        lead = lead_table(self.max_samples)
        leading = np.minimum(observed.leading, self.max_samples)
        settled = lead[leading, np.minimum(observed.runner_up, self.max_samples)] >= self.threshold
        stop = (observed.n_samples > 0) & (settled | (observed.n_samples >= self.max_samples))
        return np.where(stop, observed.n_samples, observed.n_samples + 1)


@dataclass(frozen=True)
class EarlyStoppingRule:
    """Draw windows until one is unanimous and readable, up to a cap."""

    window: int
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """One more window, or no more."""
        unanimous = observed.streak >= self.window
        stop = (observed.n_samples > 0) & (unanimous | (observed.n_samples >= self.max_samples))
        return np.where(
            stop, observed.n_samples, np.minimum(self.max_samples, observed.n_samples + self.window)
        )


ADAPTIVE_THRESHOLDS = (*np.linspace(0.5, 0.99, 30).tolist(), 0.995, 0.999)
ADAPTIVE_CAPS = (2, 3, 4, 6, 8, 12, 16)
WINDOWS = (2, 3, 4, 5, 8)


def adaptive_grid(max_samples: int) -> tuple[AdaptiveConsistencyRule, ...]:
    """Thresholds × caps that are tried, with one draw; of those that always agree, the first."""
    rules = {(1, b""): AdaptiveConsistencyRule(0.5, 1)}
    for cap in [cap for cap in ADAPTIVE_CAPS if cap <= max_samples]:
        lead = lead_table(cap)
        for threshold in ADAPTIVE_THRESHOLDS:
            settled = (lead >= threshold).tobytes()
            rules.setdefault((cap, settled), AdaptiveConsistencyRule(threshold, cap))
    return tuple(rules.values())


def early_grid(max_samples: int) -> tuple[EarlyStoppingRule, ...]:
    """Windows × caps that are tried, with one draw."""
    rules = [
        EarlyStoppingRule(window, cap)
        for window in WINDOWS
        for cap in sorted({window, 2 * window, 3 * window, 4 * window, 16})
        if window <= cap <= max_samples
    ]
    return (EarlyStoppingRule(1, 1), *rules)
