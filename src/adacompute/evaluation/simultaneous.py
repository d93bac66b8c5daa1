"""Simultaneous bands: bounds on many means that all hold at once, so that any may be chosen.

The means are over the same questions. Groups of copies are resampled together, by random
multipliers of what each group contributes. It knows nothing of policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, KeyArray

N_RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Band:
    """Standard errors of S means, (S,), and how many of them a one-sided bound is away."""

    standard_error: FloatArray
    quantile: float


def simultaneous_band(
    influence: FloatArray,
    group: KeyArray,
    *,
    confidence: float,
    extra_variance: float = 0.0,
    seed: int = 0,
) -> Band:
    """Return the band of the means of S columns, (N, S), over questions in groups of copies."""
    _, inverse = np.unique(group, return_inverse=True)
    centred = influence - influence.mean(axis=0)
    total = np.stack([np.bincount(inverse, column) for column in centred.T], axis=1)
    n_groups = len(total)
    scale = np.sqrt(n_groups / max(1, n_groups - 1)) / len(influence)
    standard_error = np.sqrt((scale * total**2 * scale).sum(axis=0) + extra_variance)
    weight = np.random.default_rng(seed).standard_normal((N_RESAMPLES, n_groups))
    varies = standard_error > 0
    if not varies.any():
        return Band(standard_error, 0.0)
    drawn = scale * (weight @ total[:, varies]) / standard_error[varies]
    return Band(standard_error, float(np.quantile(drawn.max(axis=1), confidence)))
