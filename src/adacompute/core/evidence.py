"""Evidence: a test that may be looked at after every answer.

A test at a fixed number of answers is wrong too often if one looks until it rejects.
Evidence is the average, over all smaller shares of right answers, of how much better they explain
what was seen than the claimed share. While the claim holds, it ever reaches 1 / r with a
probability of at most r, however often one looks. It knows nothing of where answers come from.
"""

from __future__ import annotations

import math

import numpy as np

N_SHARES = 400
"""Smaller shares that are averaged over."""

N_STEPS = 40
"""Steps in which a bound is searched."""

ENOUGH = math.log10(20)
"""Evidence at which a claim is rejected with a confidence of 95 %."""


def measure_evidence(n_right: int, n_wrong: int, claimed: float) -> float:
    """Return the evidence that fewer answers are right than the claimed share, as a power of ten.

    >>> measure_evidence(90, 10, 0.9) < ENOUGH < measure_evidence(70, 30, 0.9)
    True
    """
    share = claimed * (np.arange(N_SHARES) + 0.5) / N_SHARES
    log_ratio = n_right * np.log(share / claimed)
    log_ratio += n_wrong * np.log((1 - share) / (1 - claimed))
    largest = float(log_ratio.max())
    return (largest + math.log(float(np.exp(log_ratio - largest).mean()))) / math.log(10)


def bound_share(n_right: int, n_wrong: int) -> tuple[float, float]:
    """Return the interval of the share of right answers, which holds however often one looks.

    >>> low, high = bound_share(90, 10)
    >>> 0.75 < low < 0.9 < high < 1
    True
    """
    return 1.0 - _bound_below(n_wrong, n_right), _bound_below(n_right, n_wrong)


def _bound_below(n_right: int, n_wrong: int) -> float:
    """Return the smallest claimed share of right answers that is rejected; 1 if none is."""
    low, high = n_right / max(1, n_right + n_wrong), 1.0 - 1e-9
    if n_right + n_wrong == 0 or measure_evidence(n_right, n_wrong, high) < ENOUGH:
        return 1.0
    for _ in range(N_STEPS):
        middle = (low + high) / 2
        if middle > 0 and measure_evidence(n_right, n_wrong, middle) >= ENOUGH:
            high = middle
        else:
            low = middle
    return high
