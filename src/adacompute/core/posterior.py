"""Posterior: what few samples say about a question, and whether more would change its level.

Every question is assumed to be of one of about five hundred types. A type is the probability of a
correct sample, the probability of an unparsed sample, and the distribution of the wrong answers.
How common each type is among the given questions is estimated from all their samples (maximum
likelihood, by EM), so that a question with four samples borrows strength from similar questions.
The utility of a level on a question is averaged over its likely types, and the more samples the
question has, the more its own samples count. The *expected value of information* of a question is
the expected gain at the current price if its type were known for certain. If it is small, the
question is settled, whether it is easy or hopeless: more samples would hardly change its level.

The wrong answers of a type are three slots and a tail of answers that rarely repeat. All correct
samples count as one answer. S vote states, G types, K levels. This module does not know models or
stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.allocation.oracle import solve
from adacompute.core.answers import Answers
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate, sum_leads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import FloatArray, IntArray

LEVELS = (1, 2, 4, 8, 16)
INITIAL_SAMPLES = 4
"""Samples that every question gets."""

SAMPLES_PER_ROUND = 2
"""Samples that an undecided question gets per round."""

SETTLED_THRESHOLD = 0.005
"""Expected value of information, in utility, up to which a question is settled."""

ACCURACIES = (0.002, 0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97, 0.998)
UNPARSED_RATES = (0.001, 0.05, 0.15, 0.35, 0.6, 0.9)
WRONG_ANSWER_SHARES = (
    (0.9, 0.08, 0.01, 0.01),
    (0.65, 0.05, 0.05, 0.25),
    (0.6, 0.25, 0.1, 0.05),
    (0.4, 0.3, 0.2, 0.1),
    (0.3, 0.15, 0.1, 0.45),
    (0.05, 0.05, 0.05, 0.85),
)
"""Shares of the three slots and the tail among wrong answers."""

SLOTS = 3
TAIL_ANSWERS = 8
"""Number of answers that represent the tail in a vote."""

REPEAT_PROBABILITY = 0.02
"""Probability that an answer of the tail repeats."""

EM_STEPS = 20
"""Steps of EM. More steps do not change the result noticeably."""

PSEUDO_SAMPLES = 16
"""Number of samples that a question's types weigh as much as."""

COPIES = 32
"""Copies of each sample, to approximate sampling with replacement."""

MAX_STATES = 4096
"""Number of states that the prior is estimated from at most, and that are processed at a time."""


@dataclass(frozen=True, eq=False)
class QuestionTypes:
    """Probabilities of each type, (G, 6), and the utility of each level on it, (G, K).

    The columns of ``probability`` are correct, unparsed, the three wrong answers, and the tail.
    """

    probability: FloatArray
    utility: FloatArray


@lru_cache
def make_question_types(levels: tuple[int, ...] = LEVELS) -> QuestionTypes:
    """Return a grid of types, with the utility of each level on each type."""
    rows = [
        [(1 - q) * p, q, *((1 - q) * (1 - p) * w for w in shares)]
        for p, q, shares in product(ACCURACIES, UNPARSED_RATES, WRONG_ANSWER_SHARES)
    ]
    probability = np.array(rows)
    tail = np.repeat(probability[:, 5:] / TAIL_ANSWERS, TAIL_ANSWERS, axis=1)
    classes = np.concatenate([probability[:, :1], probability[:, 2:5], tail], axis=1).T
    # Counts of independent samples are Poisson variables given their sum.
    max_samples, accuracy = max(levels), np.zeros(classes.shape)
    accuracy[0] = 1.0
    pick = np.stack([_poisson(rate, max_samples) for rate in classes])
    rest = _poisson(probability[:, 1], max_samples)
    utility = sum_leads(pick, accuracy, rest, levels, [max_samples] * len(classes))
    total = _poisson(np.ones(len(probability)), max_samples)[list(levels)]
    return QuestionTypes(probability, np.asarray((utility / total).T))


def _poisson(rate: FloatArray, max_samples: int) -> FloatArray:
    """Return the weights rate**n / n! of 0..max_samples samples, (max_samples + 1, G)."""
    weight = np.ones((max_samples + 1, len(rate)))
    for n in range(max_samples):
        weight[n + 1] = weight[n] * rate / (n + 1)
    return weight


def count_answers(answers: Answers) -> IntArray:
    """Return counts of each question, (N, 7): the state that types are compared with.

    The columns are correct samples, unparsed samples, the three most frequent wrong answers, all
    other wrong samples, and the number of different answers among those.
    """
    n_samples, n_correct, n_unparsed = answers.count_classes()
    wrong = n_samples - n_correct
    wrong = np.pad(wrong, ((0, 0), (0, max(0, SLOTS + 1 - wrong.shape[1]))))
    wrong = -np.sort(-wrong, axis=1)
    other = wrong[:, SLOTS:]
    columns = [n_correct.sum(axis=1), n_unparsed, wrong[:, :SLOTS]]
    columns += [other.sum(axis=1), (other > 0).sum(axis=1)]
    return np.column_stack(columns).astype(np.int64)


def _assignments() -> Iterator[tuple[int, ...]]:
    """List all ways to assign the three wrong answers to different slots, or to the tail."""
    for n_assigned in range(SLOTS + 1):
        for answers in combinations(range(SLOTS), n_assigned):
            for slots in permutations(range(SLOTS), n_assigned):
                slot = dict(zip(answers, slots, strict=True))
                yield tuple(slot.get(answer, SLOTS) for answer in range(SLOTS))


def _likelihood(state: IntArray, probability: FloatArray) -> FloatArray:
    """Return the likelihood of each state under each type, (S, G), scaled to a maximum of 1.

    It is not known which wrong answer of a question is which of its type, so all assignments are
    summed.
    """
    log = np.log(probability)
    votes, other, different = state[:, 2 : 2 + SLOTS], state[:, 5], state[:, 6]
    # Answers in the order of their votes fit about best; the others are relative to that.
    in_order = np.column_stack([votes, other]) @ log[:, 2:].T
    total = np.zeros(in_order.shape)
    for assignment in _assignments():
        slots = np.array(assignment)
        # An answer without votes is assigned in one way only.
        rows = (votes[:, slots < SLOTS] > 0).all(axis=1)
        taken = np.zeros((int(rows.sum()), SLOTS + 1))
        taken[:, SLOTS] = other[rows]
        for answer, slot in enumerate(assignment):
            taken[:, slot] += votes[rows, answer]
        repeats = np.maximum(votes[rows][:, slots == SLOTS] - 1, 0).sum(axis=1)
        fit = taken @ log[:, 2:].T + np.log(REPEAT_PROBABILITY) * repeats[:, None]
        total[rows] += np.exp(fit - in_order[rows])
    result = in_order + np.log(total) + state[:, :2] @ log[:, :2].T
    result += np.log(REPEAT_PROBABILITY) * (other - different)[:, None]
    return np.asarray(np.exp(result - result.max(axis=1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior probability of each type for N questions.

    Questions with equal counts share a state: ``probability`` is (S, G), and ``state`` is the
    state of each question.
    """

    answers: Answers
    levels: tuple[int, ...]
    types: QuestionTypes
    probability: FloatArray
    state: IntArray

    @property
    def type_utility(self) -> FloatArray:
        """Expected utility of each level by the question's types only, (N, K)."""
        return np.asarray((self.probability @ self.types.utility)[self.state])

    @property
    def utility(self) -> FloatArray:
        """Expected utility of each level by its types and its own samples, (N, K)."""
        n_samples = self.answers.n_samples
        weight = (n_samples / (n_samples + PSEUDO_SAMPLES))[:, None]
        own = _own_utility(self.answers, self.levels)
        return np.asarray(weight * own + (1.0 - weight) * self.type_utility)

    def expected_value_of_information(self, price: float, cost: FloatArray) -> FloatArray:
        """Return each question's expected gain at a price if its type were known, (N,)."""
        net = self.types.utility - price * cost
        gain = self.probability @ net.max(axis=1) - (self.probability @ net).max(axis=1)
        return np.asarray(np.maximum(gain, 0.0)[self.state])


def fit_posterior(
    answers: Answers, levels: tuple[int, ...] = LEVELS, *, train: IntArray | None = None
) -> Posterior:
    """Estimate how common each type is, and the posterior of each question.

    With ``train``, how common each type is comes from these questions only.

    >>> answers = Answers.of([[0, 0, 0, 0], [0, 1, 0, 2]], correct=[[True] * 4, [True, False] * 2])
    >>> np.round(fit_posterior(answers).utility[:, [0, 4]], 1).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    types = make_question_types(tuple(levels))
    states, state, count = np.unique(
        count_answers(answers), axis=0, return_inverse=True, return_counts=True
    )
    blocks = [
        _likelihood(states[start : start + MAX_STATES], types.probability)
        for start in range(0, max(1, len(states)), MAX_STATES)
    ]
    probability = np.concatenate(blocks)
    if train is not None:
        count = np.bincount(state.ravel()[train], minlength=len(states))
    some = np.linspace(0, len(states) - 1, min(len(states), MAX_STATES)).astype(np.int64)
    probability *= _type_frequency(probability[some], count[some].astype(np.float64))
    probability /= probability.sum(axis=1, keepdims=True)
    return Posterior(answers, tuple(levels), types, probability, state.ravel())


def _own_utility(answers: Answers, levels: tuple[int, ...]) -> FloatArray:
    """Return the utility of each level by the question's own samples, drawn with replacement.

    Subsets of many copies of the samples approximate that. Questions without samples get 0.
    """
    utility = np.zeros((len(answers), len(levels)))
    rows = np.flatnonzero(answers.n_samples)
    some = answers.take(rows)
    answer, correct = np.repeat(some.answer, COPIES), np.repeat(some.correct, COPIES)
    copies = Answers(some.offsets * COPIES, answer, correct)
    utility[rows] = estimate(copies, levels, standard_errors=False).utility
    return utility


def _type_frequency(likelihood: FloatArray, count: FloatArray) -> FloatArray:
    """Estimate the frequency of each type, (G,), by EM from a uniform start."""
    frequency = np.full(likelihood.shape[1], 1.0 / likelihood.shape[1])
    for _ in range(EM_STEPS):
        frequency *= (count / (likelihood @ frequency)) @ likelihood / max(1.0, count.sum())
    return frequency


def find_undecided(
    answers: Answers, budget: float, *, threshold: float = SETTLED_THRESHOLD
) -> IntArray:
    """Return the questions whose level more samples may still change, at the budget's price.

    The price is computed from types only: own samples take longer to count and hardly change it.
    """
    posterior, cost = fit_posterior(answers), np.array(LEVELS, dtype=np.float64)
    price = solve(UtilityTable(posterior.type_utility, cost), budget).price
    return np.flatnonzero(posterior.expected_value_of_information(price, cost) > threshold)
