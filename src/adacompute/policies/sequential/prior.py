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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.core.answers import number_by_appearance
from adacompute.core.utility import estimate
from adacompute.policies.learners import fit_clusters, fit_softmax

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.core.types import Float32Array, FloatArray, IntArray

MAX_CLUSTERS = 12
MIN_CELLS, MAX_CELLS = 2, 24
QUESTIONS_PER_CLUSTER = 8
"""Training questions that are needed per cluster."""

QUESTIONS_PER_CELL = 4
"""Training questions that are needed per cell."""

MAX_QUESTIONS = 20_000
"""Training questions that the text model is fitted to at most; more hardly change it."""

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
    """A prior, the cluster of each training question, and the share of each cluster in each cell.

    ``cell_share`` is (clusters, cells). ``inverse_penalty`` is that of the softmax regression; None
    if the features are not informative, and then there is one cluster and one cell.
    """

    prior: Prior
    cluster: IntArray
    cell_share: FloatArray
    inverse_penalty: float | None = None


def pooled_fit(n_features: int, n_questions: int) -> FittedPrior:
    """Return the prior that ignores the features: one cell and one cluster of all questions."""
    one = np.zeros(n_questions, dtype=np.int64)
    return FittedPrior(pooled_prior(n_features), one, np.ones((1, 1)))


def fit_prior(
    features: Float32Array,
    profile: FloatArray,
    group: IntArray,
    *,
    inverse_penalty: float | None = None,
    seed: int = 0,
) -> FittedPrior:
    """Fit the prior to response profiles; an ``inverse_penalty`` that is given is not chosen again.

    Copies of a question are one group and are left out together. Of more than MAX_QUESTIONS
    questions, that many are used; the others are assigned to the nearest cluster.
    """
    if len(profile) > MAX_QUESTIONS:
        rows = np.sort(np.random.default_rng(seed).permutation(len(profile))[:MAX_QUESTIONS])
        some = number_by_appearance(group[rows])
        known: dict[str, Any] = {"inverse_penalty": inverse_penalty, "seed": seed}
        fitted = fit_prior(features[rows], profile[rows], some, **known)
        return fitted._replace(cluster=_assign_clusters(profile, profile[rows], fitted.cluster))
    size = len(profile)
    pooled = pooled_fit(features.shape[1], size)
    n_clusters = min(MAX_CLUSTERS, size // QUESTIONS_PER_CLUSTER)
    n_cells = min(MAX_CELLS, size // QUESTIONS_PER_CELL)
    if not features.shape[1] or min(n_clusters, n_cells) < MIN_CELLS:
        return pooled
    cluster, _ = fit_clusters(profile, n_clusters, seed=seed)
    found = None if cluster.max() == 0 else _predict(features, profile, group)
    if found is None:
        return pooled
    softmax = fit_softmax(
        found.predicted, cluster, group, inverse_penalty=inverse_penalty, seed=seed
    )
    if softmax is None:
        return pooled
    inverse_penalty, model = softmax
    prior, _, centre = found.fit_cells(n_cells, seed)
    return FittedPrior(prior, cluster, model.predict_proba(centre).T, inverse_penalty)


def fit_cells(
    features: Float32Array, profile: FloatArray, group: IntArray, *, seed: int = 0
) -> tuple[Prior, IntArray]:
    """Fit cells of predicted profiles; return them and the cell of each training question.

    A training question is in the cell of what the others predict for it. Without a profile that
    can be predicted there is one cell.
    """
    n_cells = min(MAX_CELLS, len(profile) // QUESTIONS_PER_CELL)
    found = None if n_cells < MIN_CELLS else _predict(features, profile, group)
    if found is None:
        return pooled_prior(features.shape[1]), np.zeros(len(profile), dtype=np.int64)
    prior, cell, _ = found.fit_cells(n_cells, seed)
    return prior, cell


class _Predictions(NamedTuple):
    """What the other questions predict for each one, and how features become predictions."""

    mean: Float32Array
    scale: Float32Array
    slope: FloatArray
    predicted: FloatArray

    def fit_cells(self, n_cells: int, seed: int) -> tuple[Prior, IntArray, FloatArray]:
        """Return cells of predictions, the cell of each question, and their exact centres."""
        cell, centre = fit_clusters(self.predicted, n_cells, n_starts=1, seed=seed)
        slope, rounded = self.slope.astype(np.float32), centre.astype(np.float32)
        return Prior(self.mean, self.scale, slope, rounded), cell, centre


def _predict(features: Float32Array, profile: FloatArray, group: IntArray) -> _Predictions | None:
    """Predict profiles from features, in standard deviations; None if none can be predicted."""
    varying = profile[:, profile.std(axis=0) > EPSILON]
    if not features.shape[1] or not varying.shape[1]:
        return None
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = (1.0 / (features.std(axis=0, dtype=np.float64) + MIN_STD)).astype(np.float32)
    points = standardise(features, mean, scale).astype(np.float64)
    predicted, slope = _ridge(points, varying, group)
    if not predicted.shape[1]:
        return None
    std = predicted.std(axis=0) + EPSILON
    return _Predictions(mean, scale, slope / std, predicted / std)


def _assign_clusters(profile: FloatArray, known: FloatArray, cluster: IntArray) -> IntArray:
    """Return the cluster of each question: the one whose mean profile is nearest."""
    size = np.bincount(cluster)
    centre = np.stack([np.bincount(cluster, column) / size for column in known.T], axis=1)
    distance = (centre**2).sum(axis=1) - 2.0 * (profile @ centre.T)
    return np.asarray(distance.argmin(axis=1), dtype=np.int64)


def question_weights(
    cell_share: FloatArray, cluster_size: FloatArray, pseudo_questions: float
) -> FloatArray:
    """Return the weight of a question of each cluster in each cell, (clusters, cells).

    The weights of all questions in a cell sum to 1. Each cell is shrunk towards all questions by
    this many pseudo-questions; infinitely many make all weights equal.
    """
    n_questions = float(cluster_size.sum())
    own = cell_share / np.maximum(cluster_size, 1.0)[:, None]
    if np.isinf(pseudo_questions):
        return np.full(own.shape, 1.0 / n_questions)
    effective = 1.0 / (cluster_size[:, None] * own**2).sum(axis=0)
    share = pseudo_questions / (pseudo_questions + effective)
    return np.asarray((1.0 - share) * own + share / n_questions, dtype=np.float64)


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
    squared, vectors = np.linalg.eigh(features.T @ features)
    used = squared > EPSILON**2 * max(squared[-1], EPSILON)
    singular, right = np.sqrt(squared[used]), vectors[:, used].T
    left = features @ (right.T / singular)
    projected = left.T @ centred
    penalties = PENALTIES * features.shape[1]
    kept = singular[:, None] ** 2 / (singular[:, None] ** 2 + penalties)  # (rank, penalties)
    n_targets, n_penalties = target.shape[1], len(penalties)
    shrunk = (kept[:, :, None] * projected[:, None, :]).reshape(-1, n_penalties * n_targets)
    residual = np.tile(centred, (1, n_penalties)) - left @ shrunk
    leverage = np.minimum((left**2) @ kept, (1.0 - EPSILON) / copies)
    factor = np.repeat(leverage / (1.0 - copies * leverage), n_targets, axis=1)
    residual += factor * _sum_groups(residual, group)
    error = (residual**2).mean(axis=0).reshape(n_penalties, n_targets)
    best = error.argmin(axis=0)
    columns = best * n_targets + np.arange(n_targets)
    predicted = centred - residual[:, columns]
    slope = right.T @ (projected * (singular[:, None] / (singular[:, None] ** 2 + penalties[best])))
    is_predictable = error.min(axis=0) < (centred**2).mean(axis=0)
    return predicted[:, is_predictable], slope[:, is_predictable]


def _sum_groups(value: FloatArray, group: IntArray) -> FloatArray:
    """Return the sum of each column over the group of each row."""
    total = np.zeros((int(group.max()) + 1, value.shape[1]))
    np.add.at(total, group, value)
    return total[group]
