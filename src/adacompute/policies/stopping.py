"""Stopping rules: look at the votes after some samples and stop when they agree.

Adaptive-Consistency (Aggarwal et al., 2023) draws one sample at a time and stops when the leading
answer is likely to stay ahead of the second. A vote lead stops when the leading answer is some
votes ahead, or when the remaining samples cannot change the vote. None looks at the question, and
none recognises hopeless questions: disagreement always leads to more samples, up to the maximum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from adacompute.core.types import FloatArray, IntArray
from adacompute.policies.policy import ObservedSamples

ADAPTIVE_THRESHOLDS = (*np.linspace(0.5, 0.99, 30).tolist(), 0.995, 0.999)
ADAPTIVE_CAPS = (2, 3, 4, 6, 8, 12, 16)


@lru_cache
def lead_table(max_votes: int) -> FloatArray:
    """Return the probability that the leading answer is the more frequent one, by vote counts.

    Entry [v1, v2] is 1 − BetaCDF(½; v1 + 1, v2 + 1): for integer counts, the probability of at most
    v1 heads in v1 + v2 + 1 fair coin flips.
    """
    table = np.empty((max_votes + 1, max_votes + 1))
    for v1 in range(max_votes + 1):
        for v2 in range(max_votes + 1):
            flips = v1 + v2 + 1
            table[v1, v2] = sum(math.comb(flips, j) for j in range(v1 + 1)) / 2**flips
    return table


@dataclass(frozen=True)
class AdaptiveConsistencyRule:
    """Draw one sample at a time until the lead passes a threshold, up to ``max_samples``."""

    decides_once: ClassVar[bool] = False
    threshold: float
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Add one sample, or stop."""
        table, n_samples = lead_table(self.max_samples), observed.n_samples
        leading = np.minimum(observed.leading, self.max_samples)
        runner_up = np.minimum(observed.runner_up, self.max_samples)
        is_settled = table[leading, runner_up] >= self.threshold
        stop = (n_samples > 0) & (is_settled | (n_samples >= self.max_samples))
        return np.where(stop, n_samples, n_samples + 1)


@dataclass(frozen=True)
class VoteLeadRule:
    """Draw until an answer is ``lead`` votes ahead, or the vote of ``max_samples`` is decided.

    It is decided when the lead is larger than the number of samples that are left; a lead of equal
    size could end in a tie. Each round draws the least number of samples that could end it. A lead
    of more than half of the samples stops only at decided votes.
    """

    decides_once: ClassVar[bool] = False
    lead: int
    max_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Add the samples that could end it, or stop."""
        n_samples, ahead = observed.n_samples, observed.leading - observed.runner_up
        left = np.maximum(0, self.max_samples - n_samples)
        stop = (ahead >= self.lead) | (ahead > left) | (left == 0)
        needed = np.minimum(self.lead - ahead, (left - ahead) // 2 + 1)
        return np.where(stop, n_samples, n_samples + needed)


def adaptive_grid(max_samples: int) -> tuple[AdaptiveConsistencyRule, ...]:
    """Return the rules that are tried in training: one sample, and thresholds × caps.

    Of rules that always decide alike only the first is kept.
    """
    rules = {(1, b""): AdaptiveConsistencyRule(0.5, 1)}
    for cap in [cap for cap in ADAPTIVE_CAPS if cap <= max_samples]:
        table = lead_table(cap)
        for threshold in ADAPTIVE_THRESHOLDS:
            settled = (table >= threshold).tobytes()
            rules.setdefault((cap, settled), AdaptiveConsistencyRule(threshold, cap))
    return tuple(rules.values())


def lead_grid(max_samples: int) -> tuple[VoteLeadRule, ...]:
    """Return the vote leads that decide differently, by rising lead; the last is the decided vote.

    >>> [rule.lead for rule in lead_grid(5)]
    [1, 2, 5]
    """
    leads = (*range(1, max_samples // 2 + 1), max_samples)
    return tuple(VoteLeadRule(lead, max_samples) for lead in dict.fromkeys(leads))


def decided_grid(max_samples: int) -> tuple[VoteLeadRule, ...]:
    """Return the decided votes of 1, 2, … samples."""
    return tuple(VoteLeadRule(size, size) for size in range(1, max_samples + 1))
