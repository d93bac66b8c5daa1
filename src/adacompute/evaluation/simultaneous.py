"""Simultaneous bands: bounds that hold at all settings of a policy at once.

Whoever searches many settings for one that is good enough finds one whose estimate is good by
chance. A band that covers all settings together also covers the one that is chosen. Its width comes
from a multiplier bootstrap: the deviations of each group of questions get a random factor, and the
largest standardised deviation over all settings is recorded, many times.

N questions, S settings. Nothing here knows about policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from adacompute.evaluation.intervals import student_quantile, sum_by_group

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, KeyArray

N_RESAMPLES = 2000
RESAMPLES_AT_ONCE = 100


@dataclass(frozen=True, eq=False)
class Band:
    """Standard errors of S values, and how many of them a bound is away.

    ``quantile`` is for lower bounds alone or upper bounds alone, and ``two_sided`` for intervals.
    """

    standard_error: FloatArray
    quantile: float
    two_sided: float


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
