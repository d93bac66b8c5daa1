"""Uniform rule: the same number of samples for every question; mixtures are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from adacompute.core.types import IntArray
from adacompute.policies.policy import ObservedSamples


@dataclass(frozen=True)
class FixedRule:
    """The same number of samples for every question."""

    decides_once: ClassVar[bool] = True
    n_samples: int

    def target_samples(self, observed: ObservedSamples) -> IntArray:
        """Return the fixed number."""
        return np.maximum(observed.n_samples, self.n_samples)
