"""Populations: synthetic questions whose true utilities are known.

A question is a probability distribution over answer classes, of which class 0 is correct. A sample
is unparsed at a fixed rate. Samples are independent given the question, so the exact accuracy of a
vote over any number of them can be computed, and estimates can be compared with it. There are no
texts.

N questions, C answer classes, K levels, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, Answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, FloatArray, IntArray

ARCHETYPES: dict[str, tuple[float, tuple[float, ...]]] = {
    "easy": (0.4, (0.95, 0.03, 0.02, 0.0)),
    "responsive": (0.3, (0.46, 0.18, 0.18, 0.18)),
    "diminishing": (0.1, (0.52, 0.44, 0.02, 0.02)),
    "hopeless": (0.2, (0.05, 0.6, 0.25, 0.1)),
}
"""Share of the questions, and probabilities of the answer classes. A vote is correct with one
sample, with a few, with very many, or wrong ever more surely."""


@dataclass(frozen=True, eq=False)
class Population:
    """Questions with a probability for each answer class, (N, C), whose rows sum to 1.

    ``unparsed_rate`` is the probability that a sample is unparsed, for every question.
    """

    probability: FloatArray
    features: Float32Array
    unparsed_rate: float = 0.0

    def __len__(self) -> int:
        return len(self.probability)

    def sample(self, n_samples: int, *, seed: int) -> Answers:
        """Draw independent samples of every question."""
        rng = np.random.default_rng(seed)
        shape = (len(self), n_samples)
        threshold = np.cumsum(self.probability, axis=1)[:, None, :-1]
        answer = (rng.random(shape)[:, :, None] >= threshold).sum(axis=2)
        answer[rng.random(shape) < self.unparsed_rate] = UNPARSED
        return Answers(
            offsets=np.arange(len(self) + 1) * n_samples,
            answer=answer.ravel(),
            correct=answer.ravel() == 0,
        )

    def true_utility(self, levels: Sequence[int]) -> FloatArray:
        """Exact probability that the majority of so many samples is correct, (N, K).

        The counts of the classes are multinomial. For each count of the correct class, the sum over
        all counts of the others is a product of one polynomial per class.
        """
        rows, row_of = np.unique(self.probability, axis=0, return_inverse=True)
        return np.stack([_vote_accuracy(row, self.unparsed_rate, levels) for row in rows])[row_of]


def _vote_accuracy(
    probability: FloatArray, unparsed_rate: float, levels: Sequence[int]
) -> FloatArray:
    """Probability that class 0 wins a vote, with ties broken uniformly, for each level."""
    size = max(levels) + 1
    count = np.arange(size)
    factorial = np.array([math.factorial(i) for i in count], dtype=np.float64)
    terms = (probability * (1 - unparsed_rate))[:, None] ** count / factorial
    unparsed = unparsed_rate**count / factorial
    accuracy = np.zeros(len(levels))
    for lead in range(1, size):
        by_ties = [np.where(count == lead, terms[0], 0.0)]  # by number of classes tied with class 0
        for other in terms[1:]:
            fewer = np.where(count < lead, other, 0.0)
            equal = np.where(count == lead, other, 0.0)
            extended = [np.convolve(part, fewer)[:size] for part in [*by_ties, 0.0 * count]]
            for ties, part in enumerate(by_ties, start=1):
                extended[ties] = extended[ties] + np.convolve(part, equal)[:size]
            by_ties = extended
        for ties, part in enumerate(by_ties):
            total = np.convolve(part, unparsed)[:size] * factorial
            accuracy += total[list(levels)] / (ties + 1)
    return accuracy


def make_population(
    n_questions: int, *, feature_signal: float, unparsed_rate: float = 0.0, seed: int = 0
) -> tuple[Population, IntArray]:
    """Make questions of the four archetypes in their shares; return also the archetype of each.

    One of the three features is the archetype if ``feature_signal`` is 1, and noise if it is 0. The
    other two, one of them a length, are noise.

    >>> population, archetype = make_population(10, feature_signal=1.0)
    >>> np.bincount(archetype).tolist()
    [4, 3, 1, 2]
    """
    rng = np.random.default_rng(seed)
    shares = np.cumsum([share for share, _ in ARCHETYPES.values()])
    quantile = (rng.permutation(n_questions) + 0.5) / n_questions
    archetype = np.minimum(np.searchsorted(shares, quantile), len(shares) - 1)
    noise = rng.normal(size=(n_questions, 3))
    length = np.rint(200.0 * np.exp(0.5 * noise[:, 0]))
    signal = feature_signal * archetype + (1.0 - feature_signal) * noise[:, 1]
    features = np.stack([length, signal, noise[:, 2]], axis=1).astype(np.float32)
    probability = np.array([row for _, row in ARCHETYPES.values()])[archetype]
    return Population(probability, features, unparsed_rate), archetype
