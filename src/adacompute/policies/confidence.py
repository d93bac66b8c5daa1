"""Confidence: what a sample tells about itself: its odds of being correct, and its weight in votes.

A sample tells something about itself: how likely the model found its own words, how long it is,
what a verifier thinks of it. For each arm, a logistic regression on the signals that are recorded
turns them into the log-odds of a correct answer, which decisions see. In votes a sample counts with
a weight, whose logarithm is linear in the same signals; ``vote_weights`` fits it.

A signal is used only if it tells correct samples of a training question from wrong ones.
The model does not know prices or states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.signals import SCORE, is_given

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray

LIKELIHOODS = ("mean_logprob", "min_logprob_window", "answer_logprob")
"""Log-probabilities, which a server reports."""

RISING = (*LIKELIHOODS, SCORE)
"""Signals that can only speak for a sample when they are larger."""

LENGTH = "log_length"
"""Logarithm of the number of tokens, or of characters where tokens are not recorded."""

SIGNALS = (*LIKELIHOODS, LENGTH)
"""Signals that are found in a reply; a caller gives the others (``core.signals``)."""

MAX_LOG_ODDS = 6.0
"""Log-odds are clipped to this size."""

MAX_LOG_WEIGHT = 100.0
"""Logarithms of weights are clipped to this size, so that sums of weights stay finite."""

CLIP = 4.0
"""Standardised signals are clipped to this many standard deviations."""

ASSUMED = (-CLIP, -2.0, -1.0, 0.0, 1.0, 2.0, CLIP)
"""Standardised signals that stand for all that a sample may have."""

RIDGE = 1.0
NEWTON_STEPS = 30
MIN_STEP = 1e-4
"""Newton steps end when no coefficient changes by more."""


@dataclass(frozen=True, eq=False)
class Confidence:
    """Log-odds and log-weight of each sample from its arm and its signals.

    ``mean``, ``scale``, ``slope`` and ``weight_slope`` are (arms, signals), ``intercept`` and
    ``weight_intercept`` are (arms,). An unknown signal (NaN) counts as an average one.
    """

    signals: tuple[str, ...]
    mean: FloatArray
    scale: FloatArray
    slope: FloatArray
    intercept: FloatArray
    weight_slope: FloatArray
    weight_intercept: FloatArray

    def standardise(self, arm: IntArray, values: FloatArray) -> FloatArray:
        """Return signals (S, signals) minus their mean, in standard deviations of their arm."""
        standard = (values - self.mean[arm]) * self.scale[arm]
        return np.asarray(np.clip(np.where(np.isnan(standard), 0.0, standard), -CLIP, CLIP))

    def log_odds(self, arm: IntArray, values: FloatArray) -> FloatArray:
        """Return the log-odds of samples from their signals, (S, signals)."""
        total = self.intercept[arm] + (self.standardise(arm, values) * self.slope[arm]).sum(axis=1)
        return np.asarray(np.clip(total, -MAX_LOG_ODDS, MAX_LOG_ODDS))

    def weight(self, arm: IntArray, values: FloatArray) -> FloatArray:
        """Return the weights of samples in votes from their signals, (S, signals)."""
        total = self.standardise(arm, values) * self.weight_slope[arm]
        logarithm = self.weight_intercept[arm] + total.sum(axis=1)
        return np.asarray(np.exp(np.clip(logarithm, -MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)))

    def measure(self, arm: int, values: Sequence[float]) -> tuple[float, float]:
        """Return the log-odds and the weight of one sample from its signals."""
        arms, row = np.array([arm]), np.array([values], dtype=np.float64)
        return float(self.log_odds(arms, row)[0]), float(self.weight(arms, row)[0])

    def assume(self, arm: int) -> list[tuple[float, float]]:
        """Return log-odds and weights that samples of an arm may have, from low to high."""
        if not self.slope[arm].any():
            return [self.measure(arm, self.mean[arm].tolist())]
        spread = 1 / np.where(self.scale[arm] > 0, self.scale[arm], np.inf)
        direction = np.sign(self.slope[arm]) * spread
        return [self.measure(arm, (self.mean[arm] + z * direction).tolist()) for z in ASSUMED]

    @property
    def given(self) -> list[str]:
        """Signals that a caller gives with each sample: no server reports them."""
        return [name for name in self.signals if is_given(name)]


def vote(answer: Sequence[int], weight: Sequence[float]) -> int:
    """Return the first sample of the class with the largest weight, −1 if none was parsed."""
    total: dict[int, float] = {}
    for label, one in zip(answer, weight, strict=True):
        if label != UNPARSED:
            total[label] = total.get(label, 0.0) + one
    if not total:
        return -1
    return list(answer).index(max(total, key=lambda label: total[label]))


def equal_confidence(n_arms: int) -> Confidence:
    """Return the confidence that counts every sample once, whatever was recorded of it."""
    none, zero = np.zeros((n_arms, 0)), np.zeros(n_arms)
    return Confidence((), none, none, none, zero, none, zero)


def fit_confidence(
    arm: IntArray,
    values: FloatArray,
    correct: BoolArray,
    *,
    signals: tuple[str, ...],
    n_arms: int,
) -> Confidence:
    """Fit the log-odds of the parsed samples of training questions; every sample counts once.

    A likelihood or a score whose slope would be negative is not used.
    """
    shape = (n_arms, len(signals))
    mean, scale, slope = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    intercept = np.zeros(n_arms)
    for number in range(n_arms):
        own = arm == number
        known, right = values[own], correct[own].astype(np.float64)
        if len(known):
            usable = ~np.isnan(known).all(axis=0)
            mean[number, usable] = np.nanmean(known[:, usable], axis=0)
            spread = np.nanstd(known[:, usable], axis=0)
            scale[number, usable] = np.where(spread > 0, 1 / np.maximum(spread, 1e-12), 0.0)
        standard = np.where(np.isnan(known), 0.0, (known - mean[number]) * scale[number])
        intercept[number], slope[number] = _fit_monotone(
            np.clip(standard, -CLIP, CLIP), right, signals
        )
    none = np.zeros(shape), np.zeros(n_arms)
    return Confidence(signals, mean, scale, slope, intercept, *none)


def _fit_monotone(
    values: FloatArray, correct: FloatArray, signals: tuple[str, ...]
) -> tuple[float, FloatArray]:
    """Fit a logistic regression; leave out rising signals until no slope of one is negative."""
    used = values.any(axis=0)
    while True:
        weights = fit_logistic(values[:, used], correct)
        slope = np.zeros(len(signals))
        slope[used] = weights[1:]
        wrong = np.array([name in RISING for name in signals], dtype=np.bool_) & (slope < 0)
        if not wrong.any():
            return float(weights[0]), slope
        used &= ~wrong


def fit_logistic(
    values: FloatArray,
    correct: FloatArray,
    *,
    ridge: float = RIDGE,
    weight: float = 1.0,
    start: FloatArray | None = None,
) -> FloatArray:
    """Return intercept and slopes of a logistic regression with a small ridge, by Newton steps.

    Every row counts with the ``weight``. ``correct`` may be shares. Fewer steps are needed from a
    ``start`` that is near.
    """
    design = np.column_stack([np.ones(len(values)), values])
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = ridge / 100
    weights = np.zeros(design.shape[1]) if start is None else start
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = weight * (design.T @ (correct - chance)) - penalty * weights
        curvature = weight * ((design * (chance * (1 - chance))[:, None]).T @ design)
        step = np.linalg.solve(curvature + np.diag(penalty), gradient)
        weights = weights + np.clip(step, -2.0, 2.0)
        if float(np.abs(step).max()) < MIN_STEP:
            break
    return np.asarray(weights)


def measure_separation(
    values: FloatArray, correct: BoolArray, cell: IntArray, question: IntArray
) -> float:
    """Return by how many standard errors a signal is larger in correct samples than in wrong ones.

    Samples are compared with those of the same ``cell``: the same question and the same arm. How
    easy a question is makes no difference, so a signal that tells only that does not count.
    """
    known = ~np.isnan(values)
    if not known.any():
        return 0.0
    _, cell = np.unique(cell[known], return_inverse=True)
    _, question = np.unique(question[known], return_inverse=True)
    size = np.bincount(cell)
    deviation = [
        one - (np.bincount(cell, one) / size)[cell]
        for one in (values[known], correct[known].astype(np.float64))
    ]
    by_question = np.bincount(question, deviation[0] * deviation[1] / size[cell])
    error = float(by_question.std()) / math.sqrt(len(by_question))
    return float(by_question.mean()) / error if error > 0 else 0.0
