"""Prior: what a question's text says of how its draws will fall, before there are any.

Few things matter of a question: how often one sample is right, what more samples add, how often two
agree, how often none can be read. They are predicted from the features by ridge regression, as
strongly as left-out questions support, and predictions alone are passed on: a handful of numbers
instead of hundreds. Training questions that behave alike form kinds, and the predictions shift how
likely each kind is; without any signal they shift nothing. Predictions are rounded to the nearest
of a few places, each with a prior of its own, so that everything after is a table.

It knows nothing of prices, and of draws only what the tables of the kinds say.
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

KINDS = 12
PLACES = 24
PER_KIND = 8
"""Training questions that a kind needs on average."""

PER_PLACE = 4
CLIP = 5.0
"""Standard deviations beyond which a feature says no more."""

LEAST_SPREAD = 1e-3
"""Spread of a feature below which its differences are made no larger."""

PENALTIES = np.geomspace(1e-2, 1e4, 25)
"""Penalties that are tried, for each feature."""

LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Prior:
    """Where a question's features put it: the nearest of P places in the space of predictions.

    ``slope`` (F, D) turns standardised features into D predictions; ``place`` is (P, D).
    """

    mean: Float32Array
    scale: Float32Array
    slope: Float32Array
    cell_centre: Float32Array

    def find_cell(self, features: Float32Array) -> IntArray:
        """Return the place of each question."""
        if len(self.cell_centre) == 1:
            return np.zeros(len(features), dtype=np.int64)
        at = standardise(features, self.mean, self.scale) @ self.slope
        # |at − place|², less |at|², which is the same for every place.
        away = (self.cell_centre**2).sum(axis=1) - 2.0 * (at @ self.cell_centre.T)
        return np.asarray(away.argmin(axis=1), dtype=np.int64)


def standardise(features: Float32Array, mean: Float32Array, scale: Float32Array) -> Float32Array:
    """Features about their mean, in standard deviations, no larger than they are worth."""
    return np.asarray(np.clip((features - mean) * scale, -CLIP, CLIP), dtype=np.float32)


def pooled_prior(features: int) -> Prior:
    """One place for every question."""
    none = np.zeros(features, dtype=np.float32)
    nothing = np.zeros((features, 0), dtype=np.float32)
    return Prior(none, none, nothing, np.zeros((1, 0), dtype=np.float32))


def response_profile(answers: Answers, max_samples: int) -> FloatArray:
    """What matters of each question, (N, 5), from its recorded samples."""
    levels = sorted({1, min(3, max_samples), max_samples})
    worth = estimate(answers, levels, standard_errors=False).utility
    pairs = answers.n_samples * np.maximum(answers.n_samples - 1, 1)
    question = answers.question[answers.answer >= 0]
    width = int(answers.answer.max(initial=0)) + 1
    cell = question * width + answers.answer[answers.answer >= 0]
    votes = np.bincount(cell, minlength=len(answers) * width).reshape(len(answers), width)
    agree = (votes * (votes - 1)).sum(axis=1) / pairs
    unread = 1.0 - answers.n_parsed / answers.n_samples
    gain = worth - worth[:, :1]
    return np.column_stack([worth[:, 0], gain[:, 1:], agree, unread])


class FittedPrior(NamedTuple):
    """A prior, how much each training question counts at each place (N, P), and how it was fitted.

    ``strength`` is how far predictions were let tell, None where they tell nothing.
    """

    prior: Prior
    weight: FloatArray
    strength: float | None = None


def fit_prior(
    features: Float32Array,
    behaviour: FloatArray,
    group: IntArray,
    *,
    strength: float | None = None,
    seed: int = 0,
) -> FittedPrior:
    """Fit the prior; a ``strength`` that was chosen before saves choosing it again.

    Copies of a question are one group and tell nothing of each other.
    """
    size = len(behaviour)
    flat = FittedPrior(pooled_prior(features.shape[1]), uniform_weight(size))
    varied = behaviour[:, behaviour.std(axis=0) > LEAST]
    kinds, places = min(KINDS, size // PER_KIND), min(PLACES, size // PER_PLACE)
    if not features.shape[1] or not varied.shape[1] or min(kinds, places) < 2:  # noqa: PLR2004
        return flat
    kind, _ = fit_clusters(behaviour, kinds, seed=seed)
    if kind.max() == 0:
        return flat
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = (1.0 / (features.std(axis=0, dtype=np.float64) + LEAST_SPREAD)).astype(np.float32)
    points = standardise(features, mean, scale).astype(np.float64)
    left_out, slope = _ridge(points, varied, group)
    if not left_out.shape[1]:
        return flat
    spread = left_out.std(axis=0) + LEAST
    left_out, slope = left_out / spread, slope / spread
    shift = fit_softmax(left_out, kind, group, strength=strength, seed=seed)
    if shift is None:
        return flat
    _, place = fit_clusters(left_out, places, seed=seed)
    member = np.eye(int(kind.max()) + 1)[kind] / np.bincount(kind)
    prior = Prior(mean, scale, slope.astype(np.float32), place.astype(np.float32))
    return FittedPrior(prior, member @ shift.probabilities(place).T, shift.strength)


def uniform_weight(size: int) -> FloatArray:
    """Every training question counts alike."""
    return np.full((size, 1), 1.0 / size)


def shrink(weight: FloatArray, questions: float) -> FloatArray:
    """Lend each place so many questions of the whole pool, as if they were its own."""
    effective = 1.0 / (weight**2).sum(axis=0)
    share = questions / (questions + effective)
    return np.asarray((1.0 - share) * weight + share / len(weight), dtype=np.float64)


def mix(measure: StateMeasure, weight: FloatArray) -> StateMeasure:
    """Chances at each place."""
    return measure.map(lambda table: table @ weight)


def _ridge(
    features: FloatArray, target: FloatArray, group: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Ridge regression of each target, its penalty chosen by leaving one question out.

    Returns the predictions of each question by all others, and the slopes of all, both about the
    mean. All penalties and all left-out predictions come from one decomposition. The copies of a
    question have its features, so they are left out together by the same formula.
    """
    copies = np.bincount(group)[group][:, None]
    centred = target - target.mean(axis=0)
    left, singular, turned = np.linalg.svd(features, full_matrices=False)
    inside = left.T @ centred
    best = np.full(target.shape[1], np.inf)
    left_out, slope = np.zeros(target.shape), np.zeros((features.shape[1], target.shape[1]))
    nothing = (centred**2).mean(axis=0)
    for penalty in PENALTIES * features.shape[1]:
        kept = singular**2 / (singular**2 + penalty)
        fitted = left @ (kept[:, None] * inside)
        weight = np.minimum(((left**2) @ kept)[:, None], (1.0 - LEAST) / copies)
        missed = centred - fitted
        missed += weight / (1.0 - copies * weight) * _sum_groups(missed, group)
        without = centred - missed
        error = ((centred - without) ** 2).mean(axis=0)
        better = error < best
        best[better] = error[better]
        left_out[:, better] = without[:, better]
        slope[:, better] = (turned.T @ ((singular / (singular**2 + penalty))[:, None] * inside))[
            :, better
        ]
    told = best < nothing  # what cannot be predicted is not passed on
    return left_out[:, told], slope[:, told]


def _sum_groups(value: FloatArray, group: IntArray) -> FloatArray:
    """Sum of each column over the group of each row."""
    total = np.zeros((int(group.max()) + 1, value.shape[1]))
    np.add.at(total, group, value)
    return total[group]
