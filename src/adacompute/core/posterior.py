"""Adaptive: what few draws tell of a question, and whether more would change its level.

Every question is taken to be of one of some five hundred kinds: a kind is how often a draw is
right, how often none can be read, and how the wrong answers spread. How common each kind is among
the questions at hand is learned from all their draws together (a maximum of likelihood, by EM), so
that a question with four draws borrows from those it resembles. What a level is worth on it is
what its likely kinds say, and the more draws it has, what these say by themselves. Its *doubt* is
what it would gain at the current price, on the average, if its kind were known for certain. A
question whose doubt is small is settled, be it easy or hopeless: whatever more draws show, its
level will hardly change.

Wrong answers of a kind have three slots, and tail: answers that hardly ever come twice. All right
draws are taken for one answer there. S vote states, G kinds, K levels. It knows nothing of models
or ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations, product
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.oracle import solve
from adacompute.core.types import UtilityTable
from adacompute.core.utility import estimate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import FloatArray, IntArray

LEVELS = (1, 2, 4, 8, 16)
INITIAL_SAMPLES = 4
"""Draws that every question gets."""

SAMPLES_PER_ROUND = 2
"""Draws that an undecided question gets at once."""

SETTLED_THRESHOLD = 0.005
"""Doubt up to which a question is left alone, in utility; see the log for how it was set."""

ACCURACIES = (0.002, 0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97, 0.998)
UNPARSED_RATES = (0.001, 0.05, 0.15, 0.35, 0.6, 0.9)
SPREADS = (
    (0.9, 0.08, 0.01, 0.01),
    (0.65, 0.05, 0.05, 0.25),
    (0.6, 0.25, 0.1, 0.05),
    (0.4, 0.3, 0.2, 0.1),
    (0.3, 0.15, 0.1, 0.45),
    (0.05, 0.05, 0.05, 0.85),
)
"""How wrong answers share what is not right: three slots, and tail."""

SLOTS = 3
GRAINS = 8
"""Answers that stand for the tail in a vote."""

REPEAT_PROBABILITY = 0.02
"""Chance that an answer of the tail comes again."""

EM_STEPS = 20
"""Turns of EM: more of them change nothing that matters."""

SHRINKAGE = 16
"""Draws that a question's kinds count as much as; its own count as what they are."""

COPIES = 32
"""Copies of each draw that stand for drawing with replacement."""

MAX_STATES = 4096
"""States that the prior is learned from at most, and that are worked on at once."""


@dataclass(frozen=True, eq=False)
class QuestionTypes:
    """Shares of right, unread, three wrong answers and tail, (G, 6), and utilities, (G, K)."""

    share: FloatArray
    utility: FloatArray


@lru_cache
def make_question_types(levels: tuple[int, ...] = LEVELS) -> QuestionTypes:
    """Lay a grid of kinds, and work out what each level is worth on each."""
    rows = [
        [(1 - q) * p, q, *((1 - q) * (1 - p) * w for w in spread)]
        for p, q, spread in product(ACCURACIES, UNPARSED_RATES, SPREADS)
    ]
    share = np.array(rows)
    tail = np.repeat(share[:, 5:] / GRAINS, GRAINS, axis=1)
    wrong = np.concatenate([share[:, 2:5], tail], axis=1)
    return QuestionTypes(share, _vote(share[:, 0], wrong, share[:, 1], levels))


def _vote(
    right: FloatArray, wrong: FloatArray, unread: FloatArray, levels: tuple[int, ...]
) -> FloatArray:
    """Chance that the majority of independent draws is right, ties broken uniformly, (G, K).

    Independent draws are Poisson counts given their sum. With the right answer at a lead, the
    others are a polynomial in how many draws they take, for each number of ties.
    """
    most = max(levels)
    value = np.zeros((len(right), len(levels)))
    own, rest = _poisson(right, most), _poisson(unread, most)
    others = [_poisson(share, most) for share in wrong.T]
    every = _poisson(np.ones(len(right)), most)
    for lead in range(1, most + 1):
        ways = np.zeros((most + 1, most // lead + 1, len(right)))
        ways[0, 0] = 1.0
        for pick in others:
            ways = _add_class(ways, pick, lead)
        ways = (ways / np.arange(1, ways.shape[1] + 1)[:, None]).sum(axis=1)
        for k, size in enumerate(levels):
            if lead <= size:
                left = size - lead
                value[:, k] += own[lead] * (ways[: left + 1] * rest[left::-1][: left + 1]).sum(0)
    return np.asarray(value / every[list(levels)].T)


def _add_class(ways: FloatArray, pick: FloatArray, lead: int) -> FloatArray:
    """Let one more answer take fewer votes than the lead, or tie with it."""
    new = ways * pick[0]
    for taken in range(1, lead):
        new[taken:] += ways[:-taken] * pick[taken]
    new[lead:, 1:] += ways[:-lead, :-1] * pick[lead]
    return np.asarray(new)


def _poisson(share: FloatArray, most: int) -> FloatArray:
    """Weights share**n / n! of 0..most draws, (most + 1, G)."""
    weight = np.ones((most + 1, len(share)))
    for n in range(most):
        weight[n + 1] = weight[n] * share / (n + 1)
    return weight


def count_answers(answers: Answers) -> IntArray:
    """Count draws, (N, 7): right, unread, the three most frequent wrong answers, and the others.

    The last two are draws with any other wrong answer, and how many different ones there are.
    """
    size = len(answers)
    wrong = (answers.answer != UNPARSED) & ~answers.correct
    width = max(SLOTS + 1, int(answers.answer.max(initial=0)) + 1)
    cell = answers.question[wrong] * width + answers.answer[wrong]
    votes = np.bincount(cell, minlength=size * width).reshape(size, width)
    votes = -np.sort(-votes, axis=1)
    other = votes[:, SLOTS:]
    right = np.bincount(answers.question[answers.correct], minlength=size)
    unread = answers.n_samples - answers.n_parsed
    columns = [right, unread, votes[:, :SLOTS], other.sum(axis=1), (other > 0).sum(axis=1)]
    return np.column_stack(columns).astype(np.int64)


def _placings() -> Iterator[tuple[int, ...]]:
    """List every way to put the three wrong answers into slots of their own, or into the tail."""
    for placed in range(SLOTS + 1):
        for answers in combinations(range(SLOTS), placed):
            for slots in permutations(range(SLOTS), placed):
                where = dict(zip(answers, slots, strict=True))
                yield tuple(where.get(answer, SLOTS) for answer in range(SLOTS))


def _likelihood(state: IntArray, share: FloatArray) -> FloatArray:
    """How likely each kind makes each state, (S, G), the likeliest kind of each at 1.

    Which wrong answer of a question is which of its kind's is not known: all placings are added up.
    """
    log = np.log(share)
    votes, other, different = state[:, 2 : 2 + SLOTS], state[:, 5], state[:, 6]
    # In the order of their votes the answers fit about best; the others are told relative to that.
    usual = np.column_stack([votes, other]) @ log[:, 2:].T
    total = np.zeros(usual.shape)
    for place in _placings():
        slots = np.array(place)
        # An answer that nobody gave is placed in one way only.
        rows = (votes[:, slots < SLOTS] > 0).all(axis=1)
        taken = np.zeros((int(rows.sum()), SLOTS + 1))
        taken[:, SLOTS] = other[rows]
        for answer, slot in enumerate(place):
            taken[:, slot] += votes[rows, answer]
        again = np.maximum(votes[rows][:, slots == SLOTS] - 1, 0).sum(axis=1)
        fits = taken @ log[:, 2:].T + np.log(REPEAT_PROBABILITY) * again[:, None]
        total[rows] += np.exp(fits - usual[rows])
    found = usual + np.log(total) + state[:, :2] @ log[:, :2].T
    found += np.log(REPEAT_PROBABILITY) * (other - different)[:, None]
    return np.asarray(np.exp(found - found.max(axis=1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of N questions: how likely each is of each kind, by state.

    ``chance`` is (S, G), and ``state`` the state of each question.
    """

    answers: Answers
    levels: tuple[int, ...]
    kinds: QuestionTypes
    chance: FloatArray
    state: IntArray

    @property
    def together(self) -> FloatArray:
        """Utility of each level on each question by its kinds alone, (N, K)."""
        return np.asarray((self.chance @ self.kinds.utility)[self.state])

    @property
    def utility(self) -> FloatArray:
        """Expected utility of each level on each question, its own draws counted too, (N, K)."""
        trust = (self.answers.n_samples / (self.answers.n_samples + SHRINKAGE))[:, None]
        alone = _alone(self.answers, self.levels)
        return np.asarray(trust * alone + (1.0 - trust) * self.together)

    def expected_value_of_information(self, price: float, cost: FloatArray) -> FloatArray:
        """What knowing its kind for certain would gain each question at a price, (N,)."""
        net = self.kinds.utility - price * cost
        gain = self.chance @ net.max(axis=1) - (self.chance @ net).max(axis=1)
        return np.asarray(np.maximum(gain, 0.0)[self.state])


def fit_posterior(answers: Answers, levels: tuple[int, ...] = LEVELS) -> Posterior:
    """Learn how common each kind is, and from that what is to be believed of each question.

    >>> some = Answers.of([[0, 0, 0, 0], [0, 1, 0, 2]], correct=[[True] * 4, [True, False] * 2])
    >>> np.round(fit_posterior(some).utility[:, [0, 4]], 1).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    kinds = make_question_types(tuple(levels))
    states, state, count = np.unique(
        count_answers(answers), axis=0, return_inverse=True, return_counts=True
    )
    blocks = [
        _likelihood(states[start : start + MAX_STATES], kinds.share)
        for start in range(0, max(1, len(states)), MAX_STATES)
    ]
    chance = np.concatenate(blocks)
    some = np.linspace(0, len(states) - 1, min(len(states), MAX_STATES)).astype(np.int64)
    chance *= _common(chance[some], count[some].astype(np.float64))
    chance /= chance.sum(axis=1, keepdims=True)
    return Posterior(answers, tuple(levels), kinds, chance, state.ravel())


def _alone(answers: Answers, levels: tuple[int, ...]) -> FloatArray:
    """What each question's draws say by themselves: votes of draws from them, with replacement.

    That is, but for a little, subsets of many copies of them; nothing is said without any draws.
    """
    utility = np.zeros((len(answers), len(levels)))
    rows = np.flatnonzero(answers.n_samples)
    some = answers.take(rows)
    answer, right = np.repeat(some.answer, COPIES), np.repeat(some.correct, COPIES)
    copies = Answers(some.offsets * COPIES, answer, right)
    utility[rows] = estimate(copies, levels, standard_errors=False).utility
    return utility


def _common(likelihood: FloatArray, count: FloatArray) -> FloatArray:
    """How common each kind is, (G,), by EM from all kinds alike."""
    common = np.full(likelihood.shape[1], 1.0 / likelihood.shape[1])
    for _ in range(EM_STEPS):
        common *= (count / (likelihood @ common)) @ likelihood / max(1.0, count.sum())
    return common


def find_undecided(
    answers: Answers, budget: float, *, threshold: float = SETTLED_THRESHOLD
) -> IntArray:
    """Return the questions whose level more draws may still change, at the budget's price.

    The price is by kinds alone: it hardly differs, and own draws take longer to count.
    """
    posterior, cost = fit_posterior(answers), np.array(LEVELS, dtype=np.float64)
    price = solve(UtilityTable(posterior.together, cost), budget).price
    return np.flatnonzero(posterior.expected_value_of_information(price, cost) > threshold)
