"""Correctness: how likely the answer to a question is right, given what was seen of its samples.

A logistic regression ranks answers by the description that policies decide by (votes, what samples
say of themselves, arms), the number of samples, and what the policy knows of the question's text. A
curve turns the rank into a probability. The regression is fitted to training questions, the curve
to questions that were held out; with few questions both stay near the base rate.

M rows are answers, several of each question, so that every question counts once. Where the rows
come from is not known here, nor what is done with an answer that is not sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.policies.confidence import fit_logistic
from adacompute.policies.learners import assign_folds
from adacompute.policies.sequential.description import describe_one, width
from adacompute.policies.spec import read_entry, read_number, read_numbers

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

CLIP = 4.0
"""Standardised columns are clipped to this many standard deviations."""

RIDGE, TEXT_SCALE = 20.0, 0.5
"""Ridge penalty, in questions, and how much a column of the text counts compared with others."""

CURVE_RIDGE, CURVE_POINTS, CURVE_FOLDS = 1.0, 33, 5
"""Ridge penalty of a smooth curve, points that it is written as, and folds to choose a curve by."""

MAX_STEPS = 2000
"""Steps that isotonic regression begins with, at most."""

TILT = 1e-3
"""Slope in log-odds that is added to a curve, so that no two ranks have the same probability."""

ROUNDING = 1e-9
"""Relative difference up to which two prices are the same."""

MIN_CHANCE = 1e-6
"""Probabilities are at least this far from 0 and 1."""

Rows = tuple["FloatArray", "FloatArray", "IntArray"]
"""Score or vector of each row, whether its answer is right (or how likely), and its question."""


def _to_log_odds(chance: FloatArray) -> FloatArray:
    inside = np.clip(chance, MIN_CHANCE, 1 - MIN_CHANCE)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _to_chance(log_odds: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -30, 30))))


def question_weight(question: IntArray) -> FloatArray:
    """Return weights with which the rows of every question add up to 1."""
    _, number, size = np.unique(question, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / size[number])


def describe_answers(
    votes: FloatArray, n_samples: IntArray | int, text: FloatArray | None = None
) -> FloatArray:
    """Return what M answers are judged by: votes (M, F), numbers of samples, and text (M, T)."""
    count = np.empty((len(votes), 1))
    count[:, 0] = np.log1p(n_samples)
    return np.concatenate([votes, count] if text is None else [votes, count, text], axis=1)


@dataclass(frozen=True, eq=False)
class Ranking:
    """A linear score of standardised columns; the last ``n_text`` are of the text."""

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    n_text: int

    @staticmethod
    def fit(rows: Rows, n_text: int) -> Ranking:
        """Fit the score to rows whose vectors end with ``n_text`` columns of the text."""
        vector, correct, question = rows
        mean, spread = vector.mean(axis=0), vector.std(axis=0)
        scale = np.where(spread > MIN_CHANCE, 1 / np.maximum(spread, MIN_CHANCE), 0.0)
        scale[len(scale) - n_text :] *= TEXT_SCALE
        ranking = Ranking(mean, scale, np.zeros(len(mean) + 1), n_text)
        weight = 1.0 / max(1.0, len(question) / max(1, len(np.unique(question))))
        design = ranking.standardise(vector)
        fitted = fit_logistic(design, correct, ridge=RIDGE, weight=weight)
        return Ranking(mean, scale, fitted, n_text)

    def standardise(self, vector: FloatArray) -> FloatArray:
        """Return the columns in standard deviations."""
        return np.asarray(np.clip((vector - self.mean) * self.scale, -CLIP, CLIP))

    def score(self, vector: FloatArray) -> FloatArray:
        """Return the score of each row, in log-odds."""
        return np.asarray(self.standardise(vector) @ self.weights[1:] + self.weights[0])


@dataclass(frozen=True)
class Curve:
    """Log-odds of being right at rising scores; between them it is linear, outside constant."""

    score: tuple[float, ...]
    log_odds: tuple[float, ...]

    def predict(self, score: FloatArray) -> FloatArray:
        """Return the probability at each score; a higher score has a higher one."""
        found = np.interp(score, self.score, self.log_odds)
        return _to_chance(found + TILT * np.asarray(score))


def fit_curve(rows: Rows) -> Curve:
    """Fit isotonic regression or beta calibration, whichever predicts better on inner folds."""
    score, correct, question = rows
    fold = assign_folds(np.unique(question, return_inverse=True)[1], CURVE_FOLDS)
    loss = dict.fromkeys((_fit_smooth, _fit_isotonic), 0.0)
    for f in np.unique(fold):
        held_out, train = fold == f, fold != f
        for fit in loss:
            curve = fit(score[train], correct[train], question[train])
            loss[fit] += _log_loss(curve.predict(score[held_out]), correct[held_out])
    best = min(loss, key=lambda fit: loss[fit])
    return best(score, correct, question)


def _log_loss(chance: FloatArray, correct: FloatArray) -> float:
    inside = np.clip(chance, MIN_CHANCE, 1 - MIN_CHANCE)
    return -float((correct * np.log(inside) + (1 - correct) * np.log(1 - inside)).sum())


def _fit_smooth(score: FloatArray, correct: FloatArray, question: IntArray) -> Curve:
    """Fit beta calibration: a logistic regression on log p and −log(1 − p) that rises in both."""
    n_rows = len(question) / max(1, len(np.unique(question)))

    def columns(at: FloatArray) -> FloatArray:
        return np.column_stack([-np.logaddexp(0, -at), np.logaddexp(0, at)])

    design = columns(score)
    used = np.array([True, True])
    slope = np.zeros(2)
    while True:
        fitted = fit_logistic(design[:, used], correct, ridge=CURVE_RIDGE, weight=1 / n_rows)
        slope[:], slope[used] = 0.0, fitted[1:]
        if not (slope < 0).any():
            break
        used &= slope >= 0
    at = np.linspace(float(score.min()), float(score.max()), CURVE_POINTS)
    return Curve(tuple(at.tolist()), tuple((columns(at) @ slope + fitted[0]).tolist()))


def _fit_isotonic(score: FloatArray, correct: FloatArray, question: IntArray) -> Curve:
    """Fit steps that never fall, each with one more question of the base rate.

    A step is written at the lowest and at the highest score of its rows.
    """
    order = np.argsort(score, kind="stable")
    weight = question_weight(question)[order]
    base_rate = float(np.average(correct[order], weights=weight))
    first = np.arange(0, len(order), -(-len(order) // MAX_STEPS))
    sums = [np.add.reduceat(one, first) for one in (weight, weight * correct[order])]
    ends = score[order][first], score[order][np.append(first[1:], len(order)) - 1]
    steps: list[tuple[float, float, float, float]] = []  # weight, right, lowest, highest score
    for step in zip(*sums, *ends, strict=True):
        steps.append(step)
        while len(steps) > 1 and steps[-2][1] * steps[-1][0] >= steps[-1][1] * steps[-2][0]:
            (later, later_right, _, high), (size, own_right, low, _) = steps.pop(), steps.pop()
            steps.append((size + later, own_right + later_right, low, high))
    sizes, n_right, lowest, highest = np.array(steps).T
    chance = np.maximum.accumulate((n_right + base_rate) / (sizes + 1.0))
    at = np.stack([lowest, highest], axis=1).ravel()
    return Curve(tuple(at.tolist()), tuple(np.repeat(_to_log_odds(chance), 2).tolist()))


@dataclass(frozen=True, eq=False)
class Correctness:
    """How likely answers are right.

    Where the ranking does not tell right answers from wrong ones on held-out questions
    (``is_informative`` is false), every answer has the ``base_rate``. ``threshold`` is the lowest
    probability at which the precision that was asked for is guaranteed, at ``prices`` between the
    lowest and the highest one that it was tested at; None if none is.
    """

    ranking: Ranking
    curve: Curve
    base_rate: float
    is_informative: bool
    threshold: float | None = None
    prices: tuple[float, float] = (0.0, 0.0)

    def is_sure(self, chance: float, price: float) -> bool | None:
        """Whether an answer is one of those whose precision is guaranteed; None if not judged."""
        low, high = self.prices
        inside = low * (1 - ROUNDING) <= price <= high * (1 + ROUNDING)
        return chance >= self.threshold if self.threshold is not None and inside else None

    def predict(self, vector: FloatArray) -> FloatArray:
        """Return how likely the answer of each row is right."""
        if not self.is_informative:
            return np.full(len(vector), self.base_rate)
        return self.curve.predict(self.ranking.score(vector))

    def predict_one(
        self,
        answers: Sequence[int],
        evidence: tuple[Sequence[float], Sequence[float]],
        arms: Sequence[int],
        text: Sequence[float],
    ) -> float:
        """Return how likely the answer to one question is right.

        ``evidence`` are log-odds and weights of its samples, empty if every sample counts once, and
        ``arms`` is empty if there is one. Without ``text``, an average one is assumed.
        """
        if not self.is_informative:
            return self.base_rate
        n, n_text = len(answers), self.ranking.n_text
        log_odds, weight = evidence if evidence[1] else ([0.0] * n, [1.0] * n)
        n_arms = max(1, len(self.ranking.mean) - n_text - width(1) - 1)
        own = arms or [0] * n
        counts = [own.count(arm) for arm in range(n_arms)]
        known = describe_one(answers, log_odds, weight, own, counts)
        average = self.ranking.mean[len(self.ranking.mean) - n_text :]
        of_text = np.array([text if len(text) == n_text else average])
        vector = describe_answers(np.array([known]), n, of_text)
        return float(self.curve.predict(self.ranking.score(vector))[0])

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON values."""
        names = ("mean", "scale", "weights")
        return {
            "ranking": {name: getattr(self.ranking, name).tolist() for name in names},
            "n_text": self.ranking.n_text,
            "curve": {"score": self.curve.score, "log_odds": self.curve.log_odds},
            "base_rate": self.base_rate,
            "is_informative": self.is_informative,
            "threshold": self.threshold,
            "prices": self.prices,
        }


def correctness_from_json(content: Mapping[str, Any], n_arms: int) -> Correctness:
    """Build the model from JSON values, for a policy over so many arms."""
    tables = read_entry(content, "ranking", dict)
    mean, scale, weights = (
        np.array(read_numbers(tables[name])) for name in ("mean", "scale", "weights")
    )
    n_text, curve = read_entry(content, "n_text", int), read_entry(content, "curve", dict)
    score, log_odds = (read_numbers(curve[name]) for name in ("score", "log_odds"))
    base_rate, threshold = read_number(content["base_rate"]), content["threshold"]
    low, high = read_numbers(content["prices"])
    if not isinstance(content["is_informative"], bool):
        raise TypeError("is_informative must be true or false")
    widths = {len(mean), len(scale), len(weights) - 1, width(n_arms) + 1 + n_text}
    if n_text < 0 or len(widths) > 1:
        raise ValueError(f"the description of answers does not fit {n_arms} arms")
    if not score or len(score) != len(log_odds) or list(score) != sorted(score):
        raise ValueError("the scores of a curve must rise, with one value each")
    if not 0 <= base_rate <= 1:
        raise ValueError(f"base_rate must be from 0 to 1, got {base_rate}")
    return Correctness(
        Ranking(mean, scale, weights, n_text),
        Curve(score, log_odds),
        base_rate,
        content["is_informative"],
        None if threshold is None else read_number(threshold),
        (low, high),
    )
