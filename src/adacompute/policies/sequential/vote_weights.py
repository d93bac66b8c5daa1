"""Vote weights: how much each sample counts in a vote, learned from votes of training questions.

The logarithm of a weight is linear in the signals of the sample and, where arms vote together, in
its arm. Its coefficients maximise the likelihood of the right answer, if an answer is right with a
probability that is proportional to a power of its total weight, minus a penalty. The penalty pulls
towards weights of exp(mean log-probability / 0.1), which are hard to beat where log-probabilities
say anything, and arms towards their log-odds. Equal weights are used where others are not more
accurate on held-out training questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.policies.confidence import (
    LENGTH,
    LIKELIHOODS,
    MAX_LOG_WEIGHT,
    RISING,
    Confidence,
    equal_confidence,
    fit_confidence,
    measure_separation,
)
from adacompute.policies.learners import assign_folds
from adacompute.policies.sequential.description import describe, vote_accuracy

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray
    from adacompute.policies.sequential.arm_samples import ArmSamples

TEMPERATURE = 0.1
"""Log-probability that changes the weight of a sample by a factor of e, if nothing is learned."""

PENALTY = 0.5
"""Penalty of coefficients per question, in squared standard deviations of a signal."""

POWER_PENALTY, MIN_LOG_POWER, MAX_LOG_POWER = 0.1, -2.0, 4.0

N_ORDERS = 6
N_SAMPLES, N_SAMPLES_PER_ARM = 4, 2
"""Votes that weights are fitted to: orders, samples of one arm, and samples of each of several."""

FOLDS = 3
MIN_ACCURACY = 0.02
"""Accuracies of arms are at least so far from 0 and 1."""

MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_OF_OTHERS = 0.25, 2.0
"""Standard errors by which weighted votes must be better than equal ones.

Log-probabilities and scores are known to help; other signals alone have to prove it.
"""

MIN_SEPARATION = 2.5
"""Standard errors by which a signal must differ between correct and wrong samples of a question.

By chance, about one useless signal in a hundred is that far above 0.
"""

MAX_STEPS, MAX_HALVINGS = 100, 30
MIN_GRADIENT, MIN_CURVATURE, MIN_FALL, MAX_STEP = 1e-7, 1e-12, 1e-4, 1.0
"""When a search for the largest likelihood ends, and how far it moves a coefficient at once."""

MIN_VOTES = 10
"""Votes with right and wrong answers that are needed to fit weights."""


class _Votes(NamedTuple):
    """Votes of M orders of n samples: answers numbered by their first sample, −1 if unparsed.

    ``values`` (M, n, F) are what the logarithm of a weight is linear in, ``accuracy`` (M, n) that
    of the answer with each number, and ``question`` (M,) the training question of each vote.
    """

    label: IntArray
    values: FloatArray
    accuracy: FloatArray
    question: IntArray

    def take(self, rows: IntArray | BoolArray) -> _Votes:
        return _Votes(self.label[rows], self.values[rows], self.accuracy[rows], self.question[rows])


def fit_votes(
    samples: ArmSamples,
    train: IntArray,
    max_samples: Sequence[int],
    *,
    seed: int,
    use: bool = True,
    joint: bool = True,
) -> Confidence:
    """Fit the confidence and the weights of samples to training questions.

    Without ``use`` no signal is used. Arms vote together if ``joint``, else each alone.
    """
    answers, n_arms = samples.answers, samples.n_arms
    training = samples.in_rows(train) & (answers.answer != UNPARSED)
    signals = _useful_signals(samples, training) if use else ()
    joint = joint and n_arms > 1
    if not signals and n_arms == 1:
        return equal_confidence(1)
    fitted = fit_confidence(
        samples.arm[training],
        samples.column(signals)[training],
        answers.correct[training],
        signals=signals,
        n_arms=n_arms,
    )
    if not signals and not joint:
        return fitted
    votes, centre = _list_votes(samples, fitted, train, max_samples, seed=seed, joint=joint)
    has_rising = any(name in RISING for name in signals)
    bounds = [_bounds(name, is_alone=len(signals) == 1) for name in signals]
    bounds += [(-math.inf, math.inf)] * (len(centre) - len(signals))
    needed = MIN_STANDARD_ERRORS if has_rising or joint else MIN_STANDARD_ERRORS_OF_OTHERS
    if not _is_better(votes, centre, bounds, len(train), needed, seed):
        return equal_confidence(1) if n_arms == 1 else fitted
    coefficient = _fit(votes, centre, bounds, len(train))
    return _with_weights(fitted, coefficient, joint=joint)


def _useful_signals(samples: ArmSamples, training: BoolArray) -> tuple[str, ...]:
    """Return the signals that tell correct samples of a question from wrong ones.

    The length of samples of a single arm is used only beside another signal.
    """
    question, correct = samples.answers.question[training], samples.answers.correct[training]
    cell = question * samples.n_arms + samples.arm[training]
    useful = []
    for name, values in zip(samples.signals, samples.values[training].T, strict=True):
        if np.isnan(values).all():
            continue
        found = measure_separation(values, correct, cell, question)
        if (found if name in RISING else abs(found)) >= MIN_SEPARATION:
            useful.append(name)
    if samples.n_arms == 1 and useful == [LENGTH]:
        return ()
    return tuple(useful)


def _bounds(name: str, *, is_alone: bool) -> tuple[float, float]:
    """Return between which numbers the coefficient of a signal is: rising ones speak for a sample.

    Beside another signal, the length of a sample does not change weights: it does not help.
    """
    if name in RISING:
        return 0.0, math.inf
    return (0.0, 0.0) if name == LENGTH and not is_alone else (-math.inf, math.inf)


def _list_votes(
    samples: ArmSamples,
    fitted: Confidence,
    train: IntArray,
    max_samples: Sequence[int],
    *,
    seed: int,
    joint: bool,
) -> tuple[_Votes, FloatArray]:
    """Return votes of training questions, and the coefficients that the penalty pulls towards."""
    limit = N_SAMPLES if len(max_samples) == 1 else N_SAMPLES_PER_ARM
    caps = [min(limit, cap) for cap in max_samples]
    orders = [
        one.reshape(len(samples.answers), N_ORDERS, -1)[train].reshape(-1, one.shape[1])
        for one in samples.order(caps, N_ORDERS, seed)
    ]
    values = fitted.standardise(samples.arm, samples.column(fitted.signals))
    centre = [1.0 / TEMPERATURE / _scale(fitted, name) for name in fitted.signals]
    if joint:
        chance = 1 / (1 + np.exp(-fitted.intercept))
        chance = np.clip(chance, MIN_ACCURACY, 1 - MIN_ACCURACY)
        log_odds = np.log(chance / (1 - chance))
        values = np.column_stack([values, samples.arm[:, None] == np.arange(samples.n_arms)])
        centre += (log_odds - log_odds.mean()).tolist()
        orders = [np.concatenate(orders, axis=1)]
    question = np.repeat(np.arange(len(train)), N_ORDERS)
    size = max(one.shape[1] for one in orders)
    parts = [_number_votes(samples, values, one, question, size) for one in orders]
    return _Votes(*map(np.concatenate, zip(*parts, strict=True))), np.array(centre)


def _scale(fitted: Confidence, name: str) -> float:
    """Return the inverse of a signal's spread; infinite unless it is the first likelihood."""
    first = next((one for one in fitted.signals if one in LIKELIHOODS), None)
    scale = fitted.scale[:, fitted.signals.index(name)]
    known = scale[scale > 0]
    return float(known.mean()) if name == first and len(known) else math.inf


def _number_votes(
    samples: ArmSamples, values: FloatArray, index: IntArray, question: IntArray, size: int
) -> _Votes:
    """Number the answers of orders by their first sample; pad them to a number of samples."""
    answer = samples.answers.answer[index]
    label = (answer[:, :, None] == answer[:, None, :]).argmax(axis=2)
    is_first = (label == np.arange(label.shape[1])) & (answer != UNPARSED)
    accuracy = np.where(is_first, samples.answers.class_accuracy[index], 0.0)
    label = np.where(answer != UNPARSED, label, UNPARSED)
    padding = ((0, 0), (0, size - index.shape[1]))
    return _Votes(
        np.pad(label, padding, constant_values=UNPARSED),
        np.pad(values[index], (*padding, (0, 0))),
        np.pad(accuracy, padding),
        question,
    )


def _fit(
    votes: _Votes, centre: FloatArray, bounds: Sequence[tuple[float, float]], n_questions: int
) -> FloatArray:
    """Return the coefficients of largest penalised likelihood."""
    size, share = votes.label.shape[1], n_questions / len(votes.label)
    # Answers have the numbers of their first samples.
    seen, right = votes.label == np.arange(size), votes.accuracy
    kept = ((right > 0) & seen).any(axis=1) & ((right < 1) & seen).any(axis=1)
    if kept.sum() < MIN_VOTES:
        return centre
    label, values, right, _ = votes.take(kept)
    n_rows, seen, is_parsed = len(right), seen[kept], label != UNPARSED
    safe = np.where(is_parsed, label, 0)
    cell = np.arange(n_rows)[:, None] * size + safe

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        coefficient, power = parameters[:-1], np.exp(parameters[-1])
        exponent = np.where(is_parsed, values @ coefficient, -np.inf)
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        total = np.bincount(cell.ravel(), weight.ravel(), n_rows * size).reshape(n_rows, size)
        total = np.maximum(total, 1e-300)
        score = np.where(seen, power * np.log(total), -np.inf)
        chance = np.exp(score - score.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        found = np.maximum((chance * right).sum(axis=1), 1e-300)
        by_answer = chance * (right / found[:, None] - 1)
        by_sample = np.take_along_axis(power * by_answer / total, safe, axis=1)
        by_sample = np.where(is_parsed, by_sample * weight, 0.0)
        slope = np.einsum("mn,mnf->f", by_sample, values)
        by_power = float((by_answer * np.where(seen, score, 0.0)).sum())
        away = coefficient - centre
        value = -share * np.log(found).sum() + PENALTY * (away @ away) / 2
        value += POWER_PENALTY * parameters[-1] ** 2 / 2
        gradient = np.append(PENALTY * away, POWER_PENALTY * parameters[-1])
        return float(value), gradient - share * np.append(slope, by_power)

    start = np.append(centre, 0.0)
    return minimise(loss, start, [*bounds, (MIN_LOG_POWER, MAX_LOG_POWER)])[:-1]


def _is_better(
    votes: _Votes,
    centre: FloatArray,
    bounds: Sequence[tuple[float, float]],
    n_questions: int,
    needed: float,
    seed: int,
) -> bool:
    """Whether weighted votes of held-out training questions are more accurate than equal ones."""
    if n_questions < FOLDS:
        return False
    fold = assign_folds(np.arange(n_questions), FOLDS, seed=seed)[votes.question]
    gain = np.zeros(len(fold))
    for f in range(FOLDS):
        train, held_out = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        n_train = len(np.unique(votes.question[train]))
        coefficient = _fit(votes.take(train), centre, bounds, n_train)
        scored = votes.take(held_out)
        logarithm = scored.values @ coefficient
        weighted = np.exp(np.clip(logarithm, -MAX_LOG_WEIGHT, MAX_LOG_WEIGHT))
        equal = np.ones(weighted.shape)
        gain[held_out] = _accuracy(scored, weighted) - _accuracy(scored, equal)
    by_question = np.bincount(votes.question, gain) / np.bincount(votes.question)
    error = by_question.std() / math.sqrt(max(1, len(by_question)))
    return bool(by_question.mean() > needed * error)


def _accuracy(votes: _Votes, weight: FloatArray) -> FloatArray:
    """Return the accuracy of each vote, as the mean over its first 1, 2, … samples."""
    n_samples = votes.label.shape[1]
    found = [
        vote_accuracy(
            describe(votes.label[:, :n], np.zeros((len(weight), n)), weight[:, :n], (n,)).leads,
            votes.accuracy,
        )
        for n in range(1, n_samples + 1)
    ]
    return np.asarray(np.mean(found, axis=0))


def _with_weights(fitted: Confidence, coefficient: FloatArray, *, joint: bool) -> Confidence:
    """Return the confidence with these weights; those of arms come last if ``joint``."""
    n_signals, n_arms = len(fitted.signals), len(fitted.intercept)
    slope = np.tile(coefficient[:n_signals], (n_arms, 1))
    intercept = coefficient[n_signals:] if joint else np.zeros(n_arms)
    return replace(fitted, weight_slope=slope, weight_intercept=np.asarray(intercept))


def minimise(
    loss: Callable[[FloatArray], tuple[float, FloatArray]],
    start: FloatArray,
    bounds: Sequence[tuple[float, float]],
) -> FloatArray:
    """Return where a smooth loss of a few numbers, which comes with its gradient, is least.

    It takes quasi-Newton steps (BFGS) of the numbers that are not held at a bound. SciPy does it,
    too, but is not part of the base install, which weighs votes as well.
    """
    low, high = np.array(bounds).T
    point = np.clip(start, low, high)
    value, gradient = loss(point)
    inverse = np.eye(len(point))
    for _ in range(MAX_STEPS):
        held = ((point <= low) & (gradient > 0)) | ((point >= high) & (gradient < 0))
        free = np.flatnonzero(~held)
        if np.abs(gradient[free]).max(initial=0.0) < MIN_GRADIENT:
            break
        step = np.zeros(len(point))
        step[free] = -inverse[np.ix_(free, free)] @ gradient[free]
        if step @ gradient >= 0:
            inverse = np.eye(len(point))
            step[free] = -gradient[free]
        step *= min(1.0, MAX_STEP / np.abs(step).max())
        moved, found = _search(loss, point, step, (value, gradient), (low, high))
        change, bend = moved - point, found[1] - gradient
        if not change.any():
            break
        if (curvature := float(change @ bend)) > MIN_CURVATURE:
            shift = np.eye(len(point)) - np.outer(change, bend) / curvature
            inverse = shift @ inverse @ shift.T + np.outer(change, change) / curvature
        point, (value, gradient) = moved, found
    return np.asarray(point)


def _search(
    loss: Callable[[FloatArray], tuple[float, FloatArray]],
    point: FloatArray,
    step: FloatArray,
    here: tuple[float, FloatArray],
    bounds: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, tuple[float, FloatArray]]:
    """Return the first point on a step, halved until the loss falls enough, and the loss there."""
    for halving in range(MAX_HALVINGS):
        moved = np.clip(point + step / 2**halving, *bounds)
        found = loss(moved)
        if found[0] <= here[0] + MIN_FALL * float(here[1] @ (moved - point)):
            return moved, found
    return point, here
