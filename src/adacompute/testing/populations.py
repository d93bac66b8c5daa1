"""Populations: synthetic questions whose truth is known.

A question is a distribution over answer classes, of which class 0 is right, and a chance that a
sample cannot be read. Samples are independent given the question, so what a vote over any number of
them is worth is a finite sum, and no estimate: what is measured on draws can be held against it.
Nothing here imitates a model's texts.

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
"""Share of the questions, and chance of each answer class: right at once, right after some votes,
right after more votes than most can pay for, and wrong the surer the more there are."""


@dataclass(frozen=True, eq=False)
class Population:
    """Questions with a chance for each answer class, (N, C) with rows that sum to 1.

    ``null_rate`` is the chance that a sample cannot be read, whatever the question.
    """

    chance: FloatArray
    features: Float32Array
    null_rate: float = 0.0

    def __len__(self) -> int:
        return len(self.chance)

    def draw(self, samples: int, *, seed: int) -> Answers:
        """Draw samples of every question, independently."""
        rng = np.random.default_rng(seed)
        shape = (len(self), samples)
        below = np.cumsum(self.chance, axis=1)[:, None, :-1]
        answer = (rng.random(shape)[:, :, None] >= below).sum(axis=2)
        answer[rng.random(shape) < self.null_rate] = UNPARSED
        return Answers(
            offsets=np.arange(len(self) + 1) * samples,
            answer=answer.ravel(),
            correct=answer.ravel() == 0,
        )

    def true_utility(self, samples: Sequence[int]) -> FloatArray:
        """Chance that the majority of so many samples is right, exactly, (N, K).

        Counts of the classes are multinomial: the sum over all of them is a product of one
        polynomial a class, in the number of samples, for each count that the right class may lead
        or tie with.
        """
        kinds, kind = np.unique(self.chance, axis=0, return_inverse=True)
        return np.stack([_majority(row, self.null_rate, samples) for row in kinds])[kind]


def _majority(chance: FloatArray, null_rate: float, samples: Sequence[int]) -> FloatArray:
    """Chance that class 0 wins a vote, ties broken uniformly, for each number of samples."""
    most = max(samples)
    count = np.arange(most + 1)
    factorial = np.array([math.factorial(i) for i in count], dtype=np.float64)
    terms = (chance * (1 - null_rate))[:, None] ** count / factorial
    unread = null_rate**count / factorial
    value = np.zeros(len(samples))
    for lead in range(1, most + 1):
        by_ties = [np.where(count == lead, terms[0], 0.0)]  # by classes tied with class 0
        for other in terms[1:]:
            fewer = np.where(count < lead, other, 0.0)
            equal = np.where(count == lead, other, 0.0)
            grown = [np.convolve(part, fewer)[: most + 1] for part in [*by_ties, 0.0 * count]]
            for ties, part in enumerate(by_ties, start=1):
                grown[ties] = grown[ties] + np.convolve(part, equal)[: most + 1]
            by_ties = grown
        for ties, part in enumerate(by_ties):
            value += (np.convolve(part, unread)[: most + 1] * factorial)[list(samples)] / (ties + 1)
    return value


def mix_archetypes(
    questions: int, *, telling: float, null_rate: float = 0.0, seed: int = 0
) -> tuple[Population, IntArray]:
    """Make questions of the four archetypes, in their shares, and tell which is which.

    Features are a length and two more numbers that say nothing, and a hint that gives the archetype
    away when ``telling`` is 1 and says nothing either when it is 0.

    >>> population, archetype = mix_archetypes(10, telling=1.0)
    >>> np.bincount(archetype).tolist()
    [4, 3, 1, 2]
    """
    rng = np.random.default_rng(seed)
    shares = np.cumsum([share for share, _ in ARCHETYPES.values()])
    place = (rng.permutation(questions) + 0.5) / questions
    archetype = np.minimum(np.searchsorted(shares, place), len(shares) - 1)
    noise = rng.normal(size=(questions, 3))
    length = np.rint(200.0 * np.exp(0.5 * noise[:, 0]))
    hint = telling * archetype + (1.0 - telling) * noise[:, 1]
    features = np.stack([length, hint, noise[:, 2]], axis=1).astype(np.float32)
    chance = np.array([chance for _, chance in ARCHETYPES.values()])[archetype]
    return Population(chance, features, null_rate), archetype
