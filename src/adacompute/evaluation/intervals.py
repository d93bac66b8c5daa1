"""Intervals: means over questions, with bounds for one setting or for many at once.

Copies of a question form one group, and a group counts as one independent observation.

Whoever searches many settings for one that is good enough finds one whose estimate is good by
chance. A band that covers all settings together also covers the one that is chosen. Its width comes
from a multiplier bootstrap: the deviations of each group of questions get a random factor, and the
largest standardised deviation over all settings is recorded, many times.

N questions, S settings. Nothing here knows about policies or prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, KeyArray

CONFIDENCE = 0.95
N_RESAMPLES = 2000
RESAMPLES_AT_ONCE = 100


@dataclass(frozen=True)
class Interval:
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float

    def clip(self, low: float, high: float) -> Interval:
        """Return the interval with its ends limited to a range."""
        return Interval(self.value, max(low, self.low), min(high, self.high))

    def named(self, name: str) -> dict[str, float]:
        """Return the value and the ends under a name, as results hold them."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class Mean:
    """A mean over questions, with its standard error."""

    value: float
    standard_error: float
    n_groups: int

    @staticmethod
    def of(values: FloatArray, group: KeyArray) -> Mean:
        """Average over questions."""
        mean = float(values.mean())
        deviation = sum_by_group(values - mean, group)
        n_groups = len(deviation)
        variance = float((deviation**2).sum()) * n_groups / max(1, n_groups - 1)
        return Mean(mean, math.sqrt(variance) / len(values), n_groups)

    def widen(self, variance: float) -> Mean:
        """Return the mean with a variance that is added to that of its standard error."""
        return replace(self, standard_error=math.sqrt(self.standard_error**2 + variance))

    def margin(self, confidence: float) -> float:
        """Return the distance from the mean to its one-sided bound."""
        return student_quantile(confidence, self.n_groups) * self.standard_error

    def interval(self, confidence: float) -> Interval:
        """Return the two-sided interval of the mean."""
        margin = self.margin(0.5 + confidence / 2)
        return Interval(self.value, self.value - margin, self.value + margin)


def sum_by_group(values: FloatArray, group: KeyArray) -> FloatArray:
    """Return the sum of values over the questions of each group; of (N, S), one per column."""
    number = _number_groups(group.dtype.str, group.tobytes())
    if values.ndim == 1:
        return np.asarray(np.bincount(number, values), dtype=np.float64)
    return np.stack([np.bincount(number, column) for column in values.T], axis=1)


@lru_cache(maxsize=16)
def _number_groups(dtype: str, content: bytes) -> IntArray:
    """Return the number of each question's group; many means are over the same questions."""
    _, inverse = np.unique(np.frombuffer(content, dtype=dtype), return_inverse=True)
    return inverse


def student_quantile(probability: float, n_groups: int) -> float:
    """Return the quantile of Student's t for the mean of ``n_groups`` observations.

    It expands the normal quantile in the reciprocal of the degrees of freedom, which is accurate to
    0.1 % at 30 observations.
    """
    z, degrees = NormalDist().inv_cdf(probability), max(1, n_groups - 1)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


@dataclass(frozen=True, eq=False)
class Band:
    """Standard errors of S values, and how many of them a bound is away.

    ``quantile`` is for lower bounds alone or upper bounds alone, and ``two_sided`` for intervals.
    """

    standard_error: FloatArray
    quantile: float
    two_sided: float

    @property
    def margin(self) -> FloatArray:
        """Distance of each value from its lower bound, and from its upper bound."""
        return self.quantile * self.standard_error


def simultaneous_band(
    influence: FloatArray,
    group: KeyArray,
    *,
    confidence: float,
    extra_variance: float = 0.0,
    seed: int = 0,
) -> Band:
    """Return the band of means over questions, from the influence of each question, (N, S).

    Questions of one group are resampled together. ``extra_variance`` is added to the variance at
    every setting, with one random number for all of them: that of a fit, for example.
    """
    deviation = sum_by_group(influence - influence.mean(axis=0), group) / len(influence)
    n_groups = len(deviation)
    deviation *= np.sqrt(n_groups / max(1, n_groups - 1))
    error = np.sqrt((deviation**2).sum(axis=0) + extra_variance)
    varies = error > 0
    if not varies.any():
        return Band(error, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    deviation, scale = deviation[:, varies], error[varies]
    highest, largest = [], []
    for _ in range(0, N_RESAMPLES, RESAMPLES_AT_ONCE):
        drawn = rng.standard_normal((RESAMPLES_AT_ONCE, n_groups)) @ deviation
        drawn += np.sqrt(extra_variance) * rng.standard_normal((RESAMPLES_AT_ONCE, 1))
        highest.append((drawn / scale).max(axis=1))
        largest.append(np.abs(drawn / scale).max(axis=1))
    # With few groups the standard errors are uncertain, as in the interval of one mean.
    exact = NormalDist().inv_cdf(confidence)
    widening = student_quantile(confidence, n_groups) / exact if exact > 0 else 1.0
    one, two = (
        float(np.quantile(np.concatenate(values), confidence)) for values in (highest, largest)
    )
    return Band(error, max(0.0, one) * widening, two * widening)
