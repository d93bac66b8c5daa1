"""Evidence: a test that may be looked at after every answer.

A test at a fixed number of answers is wrong too often if one looks until it rejects.
Evidence is the average, over all smaller shares of right answers, of how much better they explain
what was seen than the claimed share. While the claim holds, it ever reaches 1 / r with a
probability of at most r, however often one looks. It knows nothing of where answers come from.
"""

from __future__ import annotations

import math
from bisect import bisect, bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray

N_SHARES = 400
"""Smaller shares that are averaged over."""

RISK = 0.05
MIN_VALUES, MIXTURE = 30, 0.0081
"""Values from which a mean is nearly normal, and the mixture's variance: best at 1,000 values."""

N_STEPS = 40
"""Steps in which a bound is searched."""

ENOUGH = math.log10(1 / RISK)
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


def bound_mean(values: FloatArray) -> tuple[float, float]:
    """Return the interval of a mean, which holds however often one looks, with many values.

    It is a normal mixture's, narrowest relative to a single look at about 1,000 values.

    >>> low, high = bound_mean(np.tile([1.0, 3.0], 500))
    >>> 1.8 < low < 2.0 < high < 2.2
    True
    """
    size = len(values)
    if size < MIN_VALUES:
        return -math.inf, math.inf
    scale = size * MIXTURE
    width = math.sqrt(2 * (scale + 1) / (size * scale) * math.log(math.sqrt(scale + 1) / RISK))
    margin = float(values.std(ddof=1)) * width
    return float(values.mean()) - margin, float(values.mean()) + margin


def bound_quantile(values: FloatArray, share: float) -> tuple[float, float]:
    """Return the interval of a quantile, which holds however often one looks."""
    size = len(values)
    ordered = [-math.inf, *np.sort(values).tolist(), math.inf]
    below = range(size + 1)  # how many values may be below the quantile
    first = bisect(below, share, key=lambda n: bound_share(n, size - n)[1])
    last = bisect_left(below, share, key=lambda n: bound_share(n, size - n)[0])
    return ordered[first], ordered[last]
