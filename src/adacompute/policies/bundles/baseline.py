"""Baseline: what a bundle knows of its training questions, to notice that others differ.

It does not watch anything: the gateway does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.policies.spec import read_number, read_numbers

if TYPE_CHECKING:
    from adacompute.core.types import Float32Array, FloatArray, IntArray

MIN_STD = 1e-3
"""Standard deviation of a feature up to which it is constant."""

MAX_DRIFT = 25.0
"""Squared distance, in one feature or in all, that counts at most."""


@dataclass(frozen=True)
class Baseline:
    """Statistics of the training questions, to detect drift and to predict costs.

    ``feature_mean`` and ``feature_std`` are those of each feature. ``agreement`` is the probability
    that two parsed samples of a question agree, ``unparsed`` that a sample cannot be parsed.
    ``cell_share`` is the share of questions in each cell of the prior, and ``cell_cost`` their mean
    cost at each price of a policy over arms, (prices, cells); both are empty if not known.
    ``distance`` is the mean squared distance of the questions from their own mean.
    """

    feature_mean: tuple[float, ...]
    feature_std: tuple[float, ...]
    agreement: float
    unparsed: float
    cell_share: tuple[float, ...] = ()
    cell_cost: tuple[tuple[float, ...], ...] = ()
    distance: float = 1.0

    @cached_property
    def _varying(self) -> tuple[IntArray, Float32Array, Float32Array]:
        """The places of the features that vary, with their means and standard deviations."""
        mean, std = (np.asarray(one, np.float32) for one in (self.feature_mean, self.feature_std))
        varies = np.flatnonzero(std > MIN_STD)
        return varies, mean[varies], std[varies]

    def measure_drift(self, features: Float32Array) -> FloatArray:
        """Return how far questions are from the training questions, (N,); these have 1 on average.

        It is 1 and by how much their squared distance, in standard deviations, is larger than that
        of the training questions. It is limited in each feature and in all: many features are of
        rare words, and one of those would outweigh all others.
        """
        varies, mean, std = self._varying
        if not len(mean):
            return np.ones(len(features))
        squared = ((features[:, varies] - mean) / std) ** 2
        capped = np.minimum(squared, MAX_DRIFT).mean(axis=1, dtype=np.float64)
        return np.asarray(np.clip(1.0 + capped - self.distance, 0.0, MAX_DRIFT))


def read_baseline(content: Mapping[str, Any] | None) -> Baseline | None:
    """Build a baseline from JSON values."""
    if content is None:
        return None
    mean, std = (read_numbers(content[name]) for name in ("feature_mean", "feature_std"))
    distance = read_number(content["distance"])
    if not distance > 0:
        raise ValueError(f"distance must be above 0, got {distance}")
    if len(mean) != len(std):
        raise ValueError("feature_mean and feature_std must have the same length")
    return Baseline(
        mean,
        std,
        read_number(content["agreement"]),
        read_number(content["unparsed"]),
        read_numbers(content.get("cell_share", [])),
        tuple(read_numbers(row) for row in content.get("cell_cost", [])),
        distance,
    )
