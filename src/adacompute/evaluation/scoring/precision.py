"""Precision: the largest share of the questions whose answers are right often enough.

Candidates are fixed shares of the questions, those with the highest probability at the delivered
price. The lowest probability of each is a threshold. At every pace, the answers above it are tested
by an exact binomial test, on one order of each independent question. A share is guaranteed if it
passes at every pace, so its p value is the largest of them, and the fallback procedure (Wiens,
2003) keeps the risk of all shares together. The answers were judged by models of other questions
than theirs, and the delivered model is fitted to all: the guarantee is for questions like these,
and not for a single one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from adacompute.evaluation.scoring.correctness import LEARNED, SHARES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adacompute.core.types import BoolArray, FloatArray
    from adacompute.evaluation.scoring.correctness import RankedAnswers

HALF = 0.5

STARTS = (0, 1, 3, 7)
"""Places of the shares that have a part of the risk of their own, each twice the one before."""


@dataclass(frozen=True)
class Precision:
    """The share of the questions whose answers are right in at least ``target``.

    Answers with a probability of at least ``threshold`` belong to it; both are None if no share
    passed. ``observed`` is how many of its held-out answers were right,
    ``questions_needed`` is about how many questions would be needed for some share; None if there
    is one, or if none is in sight.
    """

    target: float
    confidence: float
    questions: int
    share: float | None = None
    threshold: float | None = None
    observed: float | None = None
    questions_needed: int | None = None

    def __str__(self) -> str:
        sure = f"{100 * self.confidence:.4g} % confidence"
        wanted = f"at least {100 * self.target:.4g} % right"
        if self.share is None:
            none = f"No share of the answers is shown to be {wanted} on {self.questions} questions"
            if self.questions_needed is None:
                return f"{none}, and more questions would not change that."
            return f"{none}: about {self.questions_needed:,} would be needed."
        return f"The surest {100 * self.share:.0f} %: {wanted} ({sure}, questions like these)."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def find_precision(ranked: RankedAnswers, target: float, *, confidence: float) -> Precision:
    """Return the largest share of the questions that is shown to be right often enough."""
    chances, rights = ranked.draw()
    n_questions = len(chances[0])
    known = Precision(target, confidence, n_questions)
    if not ranked.is_informative:
        return known
    ranks = np.sort(chances[0])[::-1]
    thresholds = [float(ranks[max(0, round(share * n_questions) - 1)]) for share in SHARES]
    above = [[chance >= one for one in thresholds] for chance in chances]
    results = [
        [(int(right[own].sum()), int(own.sum())) for own in kept]
        for right, kept in zip(rights, above, strict=True)
    ]
    p_values = np.array([[binomial_tail(*one, target) for one in row] for row in results])
    passed = reject(p_values.max(axis=0), 1 - confidence)
    if not passed.any():
        needed = _count_needed(results[0], n_questions, target, confidence)
        return Precision(target, confidence, n_questions, questions_needed=needed)
    best = int(np.flatnonzero(passed)[-1])
    right, size = results[0][best]
    return Precision(
        target=target,
        confidence=confidence,
        questions=n_questions,
        share=SHARES[best],
        threshold=thresholds[best],
        observed=right / size,
    )


def binomial_tail(right: int, size: int, chance: float) -> float:
    """Return how likely at least so many of ``size`` are right if each is with a ``chance``.

    >>> round(binomial_tail(9, 10, 0.5), 6)
    0.010742
    """
    if right <= 0:
        return 1.0
    if chance <= 0 or chance >= 1:
        return float(chance >= 1)
    count = np.arange(1, size + 1)
    choices = np.concatenate([[0.0], np.cumsum(np.log((size + 1 - count) / count))])
    term = choices[right:] + np.arange(right, size + 1) * math.log(chance)
    term = term + np.arange(size - right, -1, -1) * math.log1p(-chance)
    largest = float(term.max())
    return min(1.0, math.exp(largest) * float(np.exp(term - largest).sum()))


def reject(p_values: FloatArray, risk: float) -> BoolArray:
    """Return which shares are not by chance, all together at a risk, by the fallback procedure.

    Those of ``STARTS`` are tested at equal parts of the risk. A share that passes hands on what it
    was tested at to the next larger one.

    >>> reject(np.array([0.01, 0.02, 0.02, 0.04] + [1.0] * 6), 0.05).tolist()[:4]
    [True, True, True, False]
    """
    found, level = np.zeros(len(p_values), dtype=np.bool_), 0.0
    for i, p_value in enumerate(p_values.tolist()):
        level += risk / len(STARTS) if i in STARTS else 0.0
        found[i] = level > 0 and p_value <= level
        level *= found[i]
    return found


def _count_needed(
    results: list[tuple[int, int]], n_questions: int, target: float, confidence: float
) -> int | None:
    """Return about how many questions would show some share, if its answers stay as they are."""
    quantile = NormalDist().inv_cdf(1 - (1 - confidence) / len(STARTS))
    needed = []
    for right, size in results:
        gap = right / size - target
        if gap > 0:
            wanted = quantile**2 * target * (1 - target) / gap**2
            needed.append(math.ceil(max(wanted, size + 1) * n_questions / size))
    return min(needed, default=None)


def describe_p_correct(found: Mapping[str, Any]) -> str:
    """Say how well right answers can be separated from wrong ones, in one sentence."""
    if not found["is_informative"]:
        return (
            "right answers cannot be separated from wrong ones on these questions: each is "
            f"taken to be right with {100 * found['base_rate']:.0f} %, the mean of all."
        )
    half = next(one for one in found["curves"] if one["score"] == LEARNED and one["share"] == HALF)
    return (
        f"the surer half of the answers is right in {100 * half['accuracy']:.0f} %, all of them "
        f"in {100 * found['base_rate']:.0f} %."
    )
