"""Prior: what a question's text says about its samples before there are any.

A question is summarised by a few numbers, its response profile: how often one sample is correct,
what more samples add, how often two samples agree, how often an answer cannot be parsed. This is
predicted from the features by ridge regression, with a penalty chosen by leave-one-out error.
Training questions with similar profiles form clusters, and the predictions shift how likely each
cluster is; if they carry no information, they shift nothing. Predictions are rounded to the nearest
of a few cells, each with its own prior, so that everything after that is a table.

This module does not know prices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.states import StateMeasure
from adacompute.core.utility import estimate
from adacompute.policies.learners import fit_clusters, fit_softmax

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.core.types import Float32Array, FloatArray, IntArray

MAX_CLUSTERS = 12
MAX_CELLS = 24
QUESTIONS_PER_CLUSTER = 8
"""Training questions that are needed per cluster."""

QUESTIONS_PER_CELL = 4
"""Training questions that are needed per cell."""

CLIP = 5.0
"""Standardised features are clipped to this many standard deviations."""

MIN_STD = 1e-3
"""Added to the standard deviation of each feature, so that constant features stay small."""

PENALTIES = np.geomspace(1e-2, 1e4, 25)
"""Ridge penalties that are tried, per feature."""

EPSILON = 1e-6


@dataclass(frozen=True, eq=False)
class Prior:
    """Assigns a question to the nearest of P cells in the space of predicted profiles.

    ``slope`` (F, D) turns standardised features into D predictions; ``cell_centre`` is (P, D).
    """

    mean: Float32Array
    scale: Float32Array
    slope: Float32Array
    cell_centre: Float32Array

    def find_cell(self, features: Float32Array) -> IntArray:
        """Return the cell of each question."""
        if len(self.cell_centre) == 1:
            return np.zeros(len(features), dtype=np.int64)
        predicted = standardise(features, self.mean, self.scale) @ self.slope
        # |predicted − centre|² minus |predicted|², which is the same for every cell.
        distance = (self.cell_centre**2).sum(axis=1) - 2.0 * (predicted @ self.cell_centre.T)
        return np.asarray(distance.argmin(axis=1), dtype=np.int64)


def standardise(features: Float32Array, mean: Float32Array, scale: Float32Array) -> Float32Array:
    """Return features minus their mean, in standard deviations, clipped."""
    return np.asarray(np.clip((features - mean) * scale, -CLIP, CLIP), dtype=np.float32)


def pooled_prior(n_features: int) -> Prior:
    """Return a prior with one cell for all questions."""
    zeros = np.zeros(n_features, dtype=np.float32)
    slope = np.zeros((n_features, 0), dtype=np.float32)
    return Prior(zeros, zeros, slope, np.zeros((1, 0), dtype=np.float32))


def response_profile(answers: Answers, max_samples: int) -> FloatArray:
    """Return the response profile of each question, (N, 5), from its recorded samples."""
    levels = sorted({1, min(3, max_samples), max_samples})
    utility = estimate(answers, levels, standard_errors=False).utility
    pairs = answers.n_samples * np.maximum(answers.n_samples - 1, 1)
    votes = answers.count_classes().n_samples
    agreement = (votes * (votes - 1)).sum(axis=1) / pairs
    unparsed = 1.0 - answers.n_parsed / answers.n_samples
    gain = utility - utility[:, :1]
    return np.column_stack([utility[:, 0], gain[:, 1:], agreement, unparsed])


class FittedPrior(NamedTuple):
    """A prior, and the weight of each training question in each cell, (N, P).

    ``inverse_penalty`` is that of the softmax regression; None if the features are not informative.
    """

    prior: Prior
    weight: FloatArray
    inverse_penalty: float | None = None


def fit_prior(
    features: Float32Array,
    profile: FloatArray,
    group: IntArray,
    *,
    inverse_penalty: float | None = None,
    seed: int = 0,
) -> FittedPrior:
    """Fit the prior to response profiles; an ``inverse_penalty`` that is given is not chosen again.

    Copies of a question are one group and are left out together.
    """
    size = len(profile)
    pooled = FittedPrior(pooled_prior(features.shape[1]), uniform_weight(size))
    varying = profile[:, profile.std(axis=0) > EPSILON]
    n_clusters = min(MAX_CLUSTERS, size // QUESTIONS_PER_CLUSTER)
    n_cells = min(MAX_CELLS, size // QUESTIONS_PER_CELL)
    too_few = min(n_clusters, n_cells) < 2  # noqa: PLR2004 - one of each says nothing
    if not features.shape[1] or not varying.shape[1] or too_few:
        return pooled
    cluster, _ = fit_clusters(profile, n_clusters, seed=seed)
    if cluster.max() == 0:
        return pooled
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = (1.0 / (features.std(axis=0, dtype=np.float64) + MIN_STD)).astype(np.float32)
    points = standardise(features, mean, scale).astype(np.float64)
    predicted, slope = _ridge(points, varying, group)
    if not predicted.shape[1]:
        return pooled
    std = predicted.std(axis=0) + EPSILON
    predicted, slope = predicted / std, slope / std
    softmax = fit_softmax(predicted, cluster, group, inverse_penalty=inverse_penalty, seed=seed)
    if softmax is None:
        return pooled
    _, centre = fit_clusters(predicted, n_cells, seed=seed)
    member = np.eye(int(cluster.max()) + 1)[cluster] / np.bincount(cluster)
    prior = Prior(mean, scale, slope.astype(np.float32), centre.astype(np.float32))
    weight = member @ softmax.probabilities(centre).T
    return FittedPrior(prior, weight, softmax.inverse_penalty)


def uniform_weight(size: int) -> FloatArray:
    """Return equal weights of all training questions in one cell."""
    return np.full((size, 1), 1.0 / size)


def shrink(weight: FloatArray, pseudo_questions: float) -> FloatArray:
    """Shrink each cell towards the pool by this many pseudo-questions."""
    effective = 1.0 / (weight**2).sum(axis=0)
    share = pseudo_questions / (pseudo_questions + effective)
    return np.asarray((1.0 - share) * weight + share / len(weight), dtype=np.float64)


def mix_measures(measure: StateMeasure, weight: FloatArray) -> StateMeasure:
    """Return the state measure of each cell."""
    return measure.map(lambda table: table @ weight)


def _ridge(
    features: FloatArray, target: FloatArray, group: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Fit a ridge regression of each target, with the penalty of least leave-one-out error.

    Returns the prediction of each question by all others, and the slopes of the full fit, both
    relative to the mean. Targets that cannot be predicted are dropped. All penalties and all
    predictions come from one decomposition. Copies of a question have the same features, so they
    are left out together by the same formula.
    """
    copies = np.bincount(group)[group][:, None]
    centred = target - target.mean(axis=0)
    left, singular, right = np.linalg.svd(features, full_matrices=False)
    projected = left.T @ centred
    best = np.full(target.shape[1], np.inf)
    predicted, slope = np.zeros(target.shape), np.zeros((features.shape[1], target.shape[1]))
    variance = (centred**2).mean(axis=0)
    for penalty in PENALTIES * features.shape[1]:
        shrunk = singular**2 / (singular**2 + penalty)
        fitted = left @ (shrunk[:, None] * projected)
        leverage = np.minimum(((left**2) @ shrunk)[:, None], (1.0 - EPSILON) / copies)
        residual = centred - fitted
        residual += leverage / (1.0 - copies * leverage) * _sum_groups(residual, group)
        without = centred - residual
        error = ((centred - without) ** 2).mean(axis=0)
        better = error < best
        best[better] = error[better]
        predicted[:, better] = without[:, better]
        slope[:, better] = (right.T @ ((singular / (singular**2 + penalty))[:, None] * projected))[
            :, better
        ]
    is_predictable = best < variance
    return predicted[:, is_predictable], slope[:, is_predictable]


def _sum_groups(value: FloatArray, group: IntArray) -> FloatArray:
    """Return the sum of each column over the group of each row."""
    total = np.zeros((int(group.max()) + 1, value.shape[1]))
    np.add.at(total, group, value)
    return total[group]
