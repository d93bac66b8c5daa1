"""States: what n draws have shown, when only the counts matter.

After some draws a question is in a vote state: the sorted counts of its answers, and how many draws
could not be read. Up to 16 draws there are 3,370 of them, so whatever depends on the votes alone
fits a table. Two facts make the tables exact:

    forward    how likely a question reaches a state, and with the majority right, when its draws
               are a random subset of its recorded samples: a finite sum over its answer classes
    backward   given the state after n + 1 draws, the one before is it with one draw taken out at
               random, whatever the question: the draws are exchangeable

It knows nothing of prices: what a state is worth is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.errors import DataError
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacompute.core.types import FloatArray, IntArray, KeyArray

MAX_SAMPLES = 16
"""Draws after which no state is told apart any more."""

BLOCK_SIZE = 512
"""Questions worked on at once."""

Partition: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class States:
    """All F states of up to 16 draws, those of fewer draws first.

    State i has the answer counts ``votes[i]``, largest first, and ``n_unparsed[i]`` unparsed
    samples. One more sample leads to a state of ``successor[i]``. If a random sample is removed
    from that state, the result is state i with ``backward_probability[i]``; unused columns have
    probability 0. ``first[n]`` is the first state of n samples.
    """

    votes: tuple[Partition, ...]
    n_unparsed: IntArray
    n_samples: IntArray
    successor: IntArray
    backward_probability: FloatArray
    first: IntArray
    key: KeyArray
    order: IntArray

    def __len__(self) -> int:
        return len(self.votes)

    def layer(self, n_samples: int) -> slice:
        """Return the states of so many draws."""
        return slice(int(self.first[n_samples]), int(self.first[n_samples + 1]))

    def find(self, key: KeyArray) -> IntArray:
        """Return the state of each key that ``vote_keys`` gave."""
        return self.order[np.searchsorted(self.key, key)]


def _partitions(max_samples: int) -> list[Partition]:
    """List the ways in which up to so many votes can fall, by their number."""
    found: list[list[Partition]] = [[()]]
    for _ in range(max_samples):
        grown = {tuple(sorted(more, reverse=True)) for p in found[-1] for _, more in _steps(p)}
        found.append(sorted(grown, reverse=True))
    return [partition for layer in found for partition in layer]


def _steps(votes: Partition) -> list[tuple[int, Partition]]:
    """One more vote: for an answer with v votes so far, and what the counts are then."""
    steps = [(0, (*votes, 1))]
    for v in sorted(set(votes)):
        place = votes.index(v)  # the first of equals, so the order stays
        steps.append((v, (*votes[:place], v + 1, *votes[place + 1 :])))
    return steps


# A class of v votes adds v · _SALT[v] to a state's key, an unreadable draw _SALT[0].
_SALT = hash_keys(np.arange(MAX_SAMPLES + 2, dtype=np.uint64))
_STEP = np.diff(np.arange(MAX_SAMPLES + 2, dtype=np.uint64) * _SALT)
_STEP = np.append(_STEP, _SALT[0])  # NULL, −1, takes the last
_EARLIER = np.tri(MAX_SAMPLES, MAX_SAMPLES, -1, dtype=np.bool_)


def vote_keys(answer: IntArray) -> KeyArray:
    """Return keys of the states after 0..n draws, (M, n + 1); past 16 draws they are of no use.

    >>> states().votes[states().find(vote_keys(np.array([[3, 5, 3]])))[0, 3]]
    (2, 1)
    """
    answer = answer[:, :MAX_SAMPLES]
    votes, draws = answer.shape
    same = (answer[:, :, None] == answer[:, None, :]) & _EARLIER[:draws, :draws]
    before = np.add.reduce(same, axis=2, dtype=np.int64)
    before[answer == UNPARSED] = -1
    key = np.zeros((votes, draws + 1), dtype=np.uint64)
    np.cumsum(_STEP[before], axis=1, out=key[:, 1:])
    return key


@lru_cache(maxsize=1)
def states() -> States:
    """Return all states; they are the same for every question."""
    partitions = _partitions(MAX_SAMPLES)
    size = np.array([sum(p) for p in partitions])
    each = [
        (votes, nulls)
        for draws in range(MAX_SAMPLES + 1)
        for nulls in range(draws + 1)
        for votes in (partitions[i] for i in np.flatnonzero(size == draws - nulls))
    ]
    number = {state: i for i, state in enumerate(each)}
    follow = [_follow(votes, nulls, number) for votes, nulls in each]
    width = max(map(len, follow))
    after, back = np.zeros((len(each), width), dtype=np.int64), np.zeros((len(each), width))
    for i, found in enumerate(follow):
        for j, (state, chance) in enumerate(found):
            after[i, j], back[i, j] = state, chance
    nulls = np.array([state[1] for state in each])
    draws = np.array([sum(state[0]) + state[1] for state in each])
    raw = [sum(int(v) * int(_SALT[v]) for v in votes) + n * int(_SALT[0]) for votes, n in each]
    key = np.array([value % 2**64 for value in raw], dtype=np.uint64)
    order = np.argsort(key)
    return States(
        votes=tuple(state[0] for state in each),
        n_unparsed=nulls,
        n_samples=draws,
        successor=after,
        backward_probability=back,
        first=np.searchsorted(draws, np.arange(MAX_SAMPLES + 2)),
        key=key[order],
        order=order,
    )


def _follow(
    votes: Partition, nulls: int, number: dict[tuple[Partition, int], int]
) -> list[tuple[int, float]]:
    """States that one more draw leads to, and the chance to come back from each."""
    draws = sum(votes) + nulls
    if draws == MAX_SAMPLES:
        return []
    found = [(number[votes, nulls + 1], (nulls + 1) / (draws + 1))]
    for v, more in _steps(votes):
        chance = more.count(v + 1) * (v + 1) / (draws + 1)
        found.append((number[more, nulls], chance))
    return found


@dataclass(frozen=True, eq=False)
class StateMeasure:
    """How likely each state is, (states, N), and that it is reached with the majority right.

    ``resort``, where there is one, is that it is reached and another model would be right there.
    """

    mass: FloatArray
    correct_mass: FloatArray
    resort: FloatArray | None = None

    def map(self, change: Callable[[FloatArray], FloatArray]) -> StateMeasure:
        """Return them with every table changed alike."""
        resort = None if self.resort is None else change(self.resort)
        return StateMeasure(change(self.mass), change(self.correct_mass), resort)


def measure_states(answers: Answers, max_samples: int) -> StateMeasure:
    """Chances of the states of up to ``max_samples`` draws for each question, over all its subsets.

    Ties are broken uniformly; a class is as right as the share of its samples that are.
    """
    short = int(answers.n_samples.min(initial=max_samples))
    if not 0 < max_samples <= min(MAX_SAMPLES, short):
        raise DataError(
            f"states of {max_samples} draws need at least as many samples of every question, "
            f"and are known up to {MAX_SAMPLES}; one question has {short}"
        )
    known = int(states().first[max_samples + 1])
    reached, right = np.empty((known, len(answers))), np.empty((known, len(answers)))
    for start in range(0, len(answers), BLOCK_SIZE):
        rows = np.arange(start, min(start + BLOCK_SIZE, len(answers)))
        some = answers.take(rows)
        count, share = _classes(some)
        votes, value = _split(count, share, max_samples)
        factor = _null_chances(some.n_samples - count.sum(axis=1), some.n_samples, max_samples)
        which = _partition_of(max_samples)
        reached[:, rows], right[:, rows] = votes[which] * factor, value[which] * factor
    return StateMeasure(reached, right)


def _classes(answers: Answers) -> tuple[IntArray, FloatArray]:
    """Samples of each readable class, (N, classes), the largest first, and how right each is."""
    read = answers.answer != UNPARSED
    question, answer = answers.question[read], answers.answer[read]
    width = int(answer.max(initial=0)) + 1
    cell = question * width + answer
    count = np.bincount(cell, minlength=len(answers) * width).reshape(-1, width)
    right = np.bincount(cell, answers.correct[read], minlength=len(answers) * width)
    share = right.reshape(-1, width) / np.maximum(count, 1)
    order = np.argsort(-count, axis=1, kind="stable")
    count = np.take_along_axis(count, order, axis=1)
    used = max(1, int((count > 0).any(axis=0).sum()))
    return count[:, :used], np.take_along_axis(share, order, axis=1)[:, :used]


@dataclass(frozen=True, eq=False)
class _Growth:
    """Adding a class of v votes to partitions: from where, to where, and the same for pairs.

    A pair is a partition and one of the counts in it; its sum runs over the classes with that
    count, and ``born`` is the pair of the class that is added.
    """

    source: IntArray
    target: IntArray
    pair_source: IntArray
    pair_target: IntArray
    born: IntArray


@lru_cache
def _growth(max_samples: int) -> tuple[list[_Growth], IntArray, IntArray, int]:
    """Every growth, the pair of each partition's largest count, its ties, and how many pairs."""
    partitions = _partitions(max_samples)
    number = {p: i for i, p in enumerate(partitions)}
    pairs = {(p, v): i for i, (p, v) in enumerate((p, v) for p in partitions for v in set(p))}
    grown = []
    for v in range(1, max_samples + 1):
        small = [p for p in partitions if sum(p) + v <= max_samples]
        large = [tuple(sorted((*p, v), reverse=True)) for p in small]
        moves = [
            (pairs[p, w], pairs[q, w]) for p, q in zip(small, large, strict=True) for w in {*p}
        ]
        grown.append(
            _Growth(
                source=np.array([number[p] for p in small]),
                target=np.array([number[q] for q in large]),
                pair_source=np.array([a for a, _ in moves], dtype=np.int64),
                pair_target=np.array([b for _, b in moves], dtype=np.int64),
                born=np.array([pairs[q, v] for q in large]),
            )
        )
    top = np.array([pairs[p, p[0]] if p else 0 for p in partitions])
    ties = np.array([p.count(p[0]) if p else 1 for p in partitions])
    return grown, top, ties, len(pairs)


def _split(count: IntArray, share: FloatArray, max_samples: int) -> tuple[FloatArray, FloatArray]:
    """Number of subsets with each partition, (partitions, N), and of those that are right.

    Classes are added one after another; the right ones are carried by their count, since which
    count will lead is known only at the end.
    """
    grown, top, ties, pairs = _growth(max_samples)
    votes, carried = np.zeros((len(top), len(count))), np.zeros((pairs, len(count)))
    votes[0] = 1.0
    for size, right in zip(count.T, share.T, strict=True):
        rows = np.flatnonzero(size)
        old, old_pairs = votes[:, rows], carried[:, rows]
        new, new_pairs = old.copy(), old_pairs.copy()
        for v in range(1, min(max_samples, int(size.max(initial=0))) + 1):
            ways, step = _choose(size[rows], v), grown[v - 1]
            added = old[step.source] * ways
            new[step.target] += added
            new_pairs[step.pair_target] += old_pairs[step.pair_source] * ways
            new_pairs[step.born] += added * right[rows]
        votes[:, rows], carried[:, rows] = new, new_pairs
    value = carried[top] / ties[:, None]
    value[0] = 0.0
    return votes, value


def _choose(of: IntArray, some: int) -> FloatArray:
    """Binomial coefficients."""
    ways = np.ones(len(of))
    for i in range(some):
        ways *= np.maximum(of - i, 0) / (i + 1)
    return ways


def _null_chances(nulls: IntArray, samples: IntArray, max_samples: int) -> FloatArray:
    """What turns a number of readable subsets into the chance of a state, (states, N)."""
    every = states()
    known = int(every.first[max_samples + 1])
    ways = np.stack([_choose(nulls, n) for n in range(max_samples + 1)])
    total = np.stack([_choose(samples, n) for n in range(max_samples + 1)])
    return np.asarray(ways[every.n_unparsed[:known]] / total[every.n_samples[:known]])


@lru_cache
def _partition_of(max_samples: int) -> IntArray:
    """Partition of each state."""
    number = {p: i for i, p in enumerate(_partitions(max_samples))}
    every = states()
    known = int(every.first[max_samples + 1])
    return np.array([number[votes] for votes in every.votes[:known]])
