"""Confidence: one calibrated estimate per sample of the probability that it is correct.

A sample tells something about itself: how likely the model found its own words, how long it is. For
each arm, a logistic regression on the signals that are recorded turns them into the log-odds of a
correct answer. They are used twice: a sample votes with its odds to some power, and whether they
are above or below a few cuts is its *confidence bin*, which decisions see.

A log-probability is used only if it tells correct samples of a training question from wrong ones.
Which signals are used and which power is learned from how often votes of training questions are
correct. A power of 0 counts every sample once. The model does not know prices or states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray

LIKELIHOODS = ("mean_logprob", "min_logprob_window", "answer_logprob")
"""Signals that can only speak for a sample when they are larger."""

LENGTH = "log_length"
"""Logarithm of the number of tokens, or of characters where tokens are not recorded."""

SIGNALS = (*LIKELIHOODS, LENGTH)
POWERS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
MAX_LOG_ODDS = 6.0
"""Log-odds are clipped to this size."""

CLIP = 4.0
"""Standardised signals are clipped to this many standard deviations."""

RIDGE = 1.0
NEWTON_STEPS = 30
MIN_ACCURACY_GAIN = 2e-3
"""Gain in the accuracy of votes for which more signals are preferred to fewer."""

MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_OF_LENGTH = 0.25, 2.0
"""Standard errors by which weighted votes must be better than plain ones.

Log-probabilities are known to help; the length of a sample alone has to prove it.
"""

MIN_SEPARATION = 2.5
"""Standard errors by which a log-probability must be larger in the correct samples of a question.

By chance, about one useless signal in a hundred is that far above 0.
"""


@dataclass(frozen=True, eq=False)
class Confidence:
    """Log-odds of each sample from its arm and its signals.

    ``mean``, ``scale`` and ``slope`` are (arms, signals), ``intercept`` is (arms,). ``cuts`` are
    the limits between the confidence bins of each arm, in log-odds. Samples vote with their odds to
    the ``power``. An unknown signal (NaN) counts as an average one.
    """

    signals: tuple[str, ...]
    mean: FloatArray
    scale: FloatArray
    slope: FloatArray
    intercept: FloatArray
    cuts: tuple[tuple[float, ...], ...]
    power: float

    def log_odds(self, arm: IntArray, values: FloatArray) -> FloatArray:
        """Return the log-odds of samples from their signals, (S, signals)."""
        standard = (values - self.mean[arm]) * self.scale[arm]
        standard = np.clip(np.where(np.isnan(standard), 0.0, standard), -CLIP, CLIP)
        total = self.intercept[arm] + (standard * self.slope[arm]).sum(axis=1)
        return np.asarray(np.clip(total, -MAX_LOG_ODDS, MAX_LOG_ODDS))

    def weight(self, log_odds: FloatArray) -> FloatArray:
        """Return the weights of votes."""
        return np.asarray(np.exp(self.power * log_odds))

    def find_bin(self, arm: IntArray, log_odds: FloatArray) -> IntArray:
        """Return the confidence bin of each sample within its arm."""
        found = np.zeros(len(arm), dtype=np.int64)
        for number, cuts in enumerate(self.cuts):
            own = arm == number
            found[own] = np.searchsorted(np.array(cuts), log_odds[own], side="right")
        return found

    def vote(self, answer: Sequence[int], log_odds: Sequence[float]) -> int:
        """Return the first sample of the class with the largest weight, −1 if none was parsed."""
        total: dict[int, float] = {}
        for label, one in zip(answer, log_odds, strict=True):
            if label != UNPARSED:
                total[label] = total.get(label, 0.0) + math.exp(self.power * one)
        if not total:
            return -1
        return list(answer).index(max(total, key=lambda label: total[label]))

    def measure(self, arm: int, values: Sequence[float]) -> tuple[float, int]:
        """Return the log-odds and the confidence bin of one sample from its signals."""
        arms = np.array([arm])
        log_odds = self.log_odds(arms, np.array([values], dtype=np.float64))
        return float(log_odds[0]), int(self.find_bin(arms, log_odds)[0])

    def of_arm(self, arm: int) -> Confidence:
        """Return the confidence of the samples of one arm alone, without bins."""
        rows = slice(arm, arm + 1)
        arrays = (self.mean[rows], self.scale[rows], self.slope[rows], self.intercept[rows])
        return Confidence(self.signals, *arrays, ((),), self.power)

    @property
    def n_bins(self) -> tuple[int, ...]:
        """Number of confidence bins of each arm."""
        return tuple(len(cuts) + 1 for cuts in self.cuts)


def equal_confidence(n_arms: int) -> Confidence:
    """Return the confidence that counts every sample once, whatever was recorded of it."""
    none = np.zeros((n_arms, 0))
    return Confidence((), none, none, none, np.zeros(n_arms), ((),) * n_arms, 0.0)


def fit_confidence(
    arm: IntArray,
    values: FloatArray,
    correct: BoolArray,
    *,
    signals: tuple[str, ...],
    n_arms: int,
    n_bins: Sequence[int],
    power: float = 0.0,
) -> Confidence:
    """Fit the log-odds of the parsed samples of training questions, and cut them into bins.

    A likelihood whose slope would be negative is not used.
    """
    shape = (n_arms, len(signals))
    mean, scale, slope = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    intercept, cuts = np.zeros(n_arms), []
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
        fitted = intercept[number] + np.clip(standard, -CLIP, CLIP) @ slope[number]
        cuts.append(_cut(fitted, n_bins[number] if slope[number].any() else 1))
    return Confidence(signals, mean, scale, slope, intercept, tuple(cuts), power)


def _fit_monotone(
    values: FloatArray, correct: FloatArray, signals: tuple[str, ...]
) -> tuple[float, FloatArray]:
    """Fit a logistic regression; leave out likelihoods until no slope of one is negative."""
    used = values.any(axis=0)
    while True:
        weights = _fit_logistic(values[:, used], correct)
        slope = np.zeros(len(signals))
        slope[used] = weights[1:]
        wrong = np.array([name in LIKELIHOODS for name in signals], dtype=np.bool_) & (slope < 0)
        if not wrong.any():
            return float(weights[0]), slope
        used &= ~wrong


def _fit_logistic(values: FloatArray, correct: FloatArray) -> FloatArray:
    """Return intercept and slopes of a logistic regression with a small ridge, by Newton steps."""
    design = np.column_stack([np.ones(len(values)), values])
    penalty = np.full(design.shape[1], RIDGE)
    penalty[0] = RIDGE / 100
    weights = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (correct - chance) - penalty * weights
        curvature = (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        weights = weights + np.clip(step, -2.0, 2.0)
        if float(np.abs(step).max()) < 1e-9:  # noqa: PLR2004 - converged
            break
    return np.asarray(weights)


def _cut(log_odds: FloatArray, n_bins: int) -> tuple[float, ...]:
    """Return limits that cut samples into bins of about equal size; fewer if values repeat."""
    shares = np.arange(1, n_bins) / n_bins
    if not len(log_odds) or n_bins == 1:
        return ()
    return tuple(np.unique(np.quantile(log_odds, shares)).tolist())


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


def candidate_signals(names: Sequence[str], values: FloatArray) -> list[tuple[str, ...]]:
    """Return the sets of recorded signals that are tried, simple ones first."""
    known = [name for name, one in zip(names, values.T, strict=True) if not np.isnan(one).all()]
    likelihoods = [name for name in known if name in LIKELIHOODS]
    found: list[tuple[str, ...]] = [(name,) for name in likelihoods]
    if len(likelihoods) > 1:
        found.append(tuple(likelihoods))
    if LENGTH in known:
        found.append((*likelihoods, LENGTH))
    return found or [()]


def select_power(
    score: Callable[[float], FloatArray], min_standard_errors: float
) -> tuple[float, float]:
    """Return the power with the best mean score, and that mean.

    ``score`` returns one number per training question. A power above 0 is used only if it is better
    than 0 by more than so many standard errors over questions.
    """
    powers = POWERS
    plain = score(powers[0])
    best, value, gain = powers[0], plain, np.zeros(len(plain))
    for power in powers[1:]:
        new = score(power)
        if new.mean() > value.mean():
            best, value, gain = power, new, new - plain
    if gain.mean() <= min_standard_errors * gain.std() / math.sqrt(max(1, len(gain))):
        return powers[0], float(plain.mean())
    return best, float(value.mean())
