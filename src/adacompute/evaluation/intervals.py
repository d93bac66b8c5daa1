"""Intervals: means over questions, with bounds, and a sequential test.

Copies of a question form one group, and a group counts as one independent observation. A
bound can be for the mean over all questions like these, or a prediction for the mean over the next
``horizon`` questions; a prediction adds the noise of those questions and of their samples.

N questions. Nothing here knows about policies or prices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, KeyArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float

    def clip(self, low: float, high: float) -> Interval:
        """Return the interval with its ends limited to a range."""
        return Interval(self.value, max(low, self.low), min(high, self.high))


@dataclass(frozen=True)
class Mean:
    """A mean over questions, with its standard error and the standard deviation of one question."""

    value: float
    standard_error: float
    std: float
    n_groups: int

    @staticmethod
    def of(values: FloatArray, sample_variance: FloatArray | float, group: KeyArray) -> Mean:
        """Average over questions.

        ``sample_variance`` is the variance of each question's value over random samples of it. It
        is part of ``std``, and so only of predictions.
        """
        mean = float(values.mean())
        deviation = np.bincount(_number_groups(group.dtype.str, group.tobytes()), values - mean)
        n_groups = len(deviation)
        variance = float((deviation**2).sum()) * n_groups / max(1, n_groups - 1)
        std = math.sqrt(float(values.var()) + float(np.mean(sample_variance)))
        return Mean(mean, math.sqrt(variance) / len(values), std, n_groups)

    def widen(self, variance: float) -> Mean:
        """Return the mean with a variance that is added to that of its standard error."""
        return replace(self, standard_error=math.sqrt(self.standard_error**2 + variance))

    def margin(self, confidence: float, horizon: int | None = None) -> float:
        """Return the distance from the mean to its one-sided bound.

        With ``horizon`` the bound is a prediction for the mean of that many further questions.
        """
        variance = self.std**2 / horizon if horizon else 0.0
        quantile = student_quantile(confidence, self.n_groups)
        return quantile * math.sqrt(self.standard_error**2 + variance)

    def interval(self, confidence: float) -> Interval:
        """Return the two-sided interval of the mean."""
        margin = self.margin(0.5 + confidence / 2)
        return Interval(self.value, self.value - margin, self.value + margin)


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
    from statistics import NormalDist

    z, degrees = NormalDist().inv_cdf(probability), max(1, n_groups - 1)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def betting_test(values: FloatArray, group: KeyArray, *, lowest: float, confidence: float) -> bool:
    """Return whether the mean of the values is above zero with this confidence.

    A gambler bets on each value in turn. If the mean is zero or less, the capital cannot grow on
    average, so by Ville's inequality it reaches 1 / (1 - confidence) with a probability of at most
    1 - confidence. This holds for any number of independent values above ``lowest``, whatever their
    distribution.
    """
    inverse = _number_groups(group.dtype.str, group.tobytes())
    value = np.bincount(inverse, values) / np.bincount(inverse)
    count = np.arange(1, len(value) + 1)
    # A bet depends on earlier values only and risks at most half of the capital.
    mean = np.cumsum(value) / (count + 1)
    variance = (0.25 + np.cumsum((value - mean) ** 2)) / (count + 1)
    stake = np.clip(mean / (variance + mean**2), 0.0, 0.5 / -lowest)
    growth = np.log1p(np.concatenate([[0.0], stake[:-1]]) * value)
    return bool(growth.sum() >= -math.log(1 - confidence))
