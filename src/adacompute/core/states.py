"""Vote states: everything that the answer counts of up to 16 samples can look like.

After n samples, a question is in a vote state: the sorted counts of its answers, and the number of
samples that could not be parsed. There are 3,370 states of up to 16 samples, so any function of the
votes is a table. Two facts make the tables exact:

    forward    the probability that a question reaches a state, and that the majority is correct
               there, when its samples are a random subset of its recorded samples: a finite sum
               over its answer classes
    backward   given the state after n + 1 samples, the state after n samples is this state with one
               random sample removed. That holds for every question, because samples are
               exchangeable

This module does not know prices: ``policies.sequential.induction`` decides what a state is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from adacompute.core.answers import ClassCounts
    from adacompute.core.types import FloatArray, IntArray, KeyArray

MAX_SAMPLES = 16
"""Largest number of samples for which vote states are defined."""

BLOCK_SIZE = 512
"""Questions processed at a time."""

Partition: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class States:
    """All vote states of up to 16 samples, ordered by their number of samples.

    State i has the answer counts ``votes[i]``, largest first, and ``n_unparsed[i]`` unparsed
    samples. One more sample leads to a state of ``successor[i]``. If a random sample is removed
    from that state, the result is state i with ``backward_probability[i]``. The states before state
    i are ``predecessor[i]``, each with ``predecessor_probability[i]``: the same table, read from
    the other end. Unused columns have probability 0. ``first[n]`` is the first state of n samples.
    ``key`` is sorted, and ``order`` is the state of each key.
    """

    votes: tuple[Partition, ...]
    n_unparsed: IntArray
    n_samples: IntArray
    successor: IntArray
    backward_probability: FloatArray
    predecessor: IntArray
    predecessor_probability: FloatArray
    first: IntArray
    key: KeyArray
    order: IntArray

    def __len__(self) -> int:
        return len(self.votes)

    def layer(self, n_samples: int) -> slice:
        """Return the states of exactly ``n_samples`` samples."""
        return slice(int(self.first[n_samples]), int(self.first[n_samples + 1]))

    def find(self, key: KeyArray) -> IntArray:
        """Return the state of each key from ``vote_keys``."""
        return self.order[np.searchsorted(self.key, key)]

    def restrict(self, rows: IntArray) -> States:
        """Return only these states, renumbered; with a state, the ones before it must be kept.

        Successors that are not kept get probability 0. States are found as before: ``find`` returns
        the new number of a state that is kept.
        """
        number = np.full(len(self), -1)
        number[rows] = np.arange(len(rows))
        successor = number[self.successor[rows]]
        kept = np.isin(self.order, rows)
        return States(
            votes=tuple(self.votes[i] for i in rows.tolist()),
            n_unparsed=self.n_unparsed[rows],
            n_samples=self.n_samples[rows],
            successor=np.maximum(successor, 0),
            backward_probability=np.where(successor < 0, 0.0, self.backward_probability[rows]),
            predecessor=number[self.predecessor[rows]],
            predecessor_probability=self.predecessor_probability[rows],
            first=np.searchsorted(self.n_samples[rows], np.arange(MAX_SAMPLES + 2)),
            key=self.key[kept],
            order=number[self.order[kept]],
        )


def _partitions(max_votes: int) -> list[Partition]:
    """List all sorted vote counts of up to ``max_votes`` votes, by their number of votes."""
    layers: list[list[Partition]] = [[()]]
    for _ in range(max_votes):
        grown = {tuple(sorted(more, reverse=True)) for p in layers[-1] for _, more in _add_vote(p)}
        layers.append(sorted(grown, reverse=True))
    return [partition for layer in layers for partition in layer]


def _add_vote(votes: Partition) -> list[tuple[int, Partition]]:
    """Add one vote in every possible way: the answer's count before, and the counts after."""
    grown = [(0, (*votes, 1))]
    for v in sorted(set(votes)):
        i = votes.index(v)  # the first of equal counts, so that the counts stay sorted
        grown.append((v, (*votes[:i], v + 1, *votes[i + 1 :])))
    return grown


# A class of v votes adds v · _SALT[v] to a state's key, an unparsed sample _SALT[0].
_SALT = hash_keys(np.arange(MAX_SAMPLES + 2, dtype=np.uint64))
_STEP = np.diff(np.arange(MAX_SAMPLES + 2, dtype=np.uint64) * _SALT)
_STEP = np.append(_STEP, _SALT[0])  # UNPARSED is −1, the last entry
_EARLIER = np.tri(MAX_SAMPLES, MAX_SAMPLES, -1, dtype=np.bool_)


def vote_keys(answer: IntArray) -> KeyArray:
    """Return the keys of the states after 0..n samples, (M, n + 1), for at most 16 samples.

    >>> states().votes[states().find(vote_keys(np.array([[3, 5, 3]])))[0, 3]]
    (2, 1)
    """
    answer = answer[:, :MAX_SAMPLES]
    n_rows, n_samples = answer.shape
    same = (answer[:, :, None] == answer[:, None, :]) & _EARLIER[:n_samples, :n_samples]
    before = np.add.reduce(same, axis=2, dtype=np.int64)
    before[answer == UNPARSED] = -1
    key = np.zeros((n_rows, n_samples + 1), dtype=np.uint64)
    np.cumsum(_STEP[before], axis=1, out=key[:, 1:])
    return key


@lru_cache(maxsize=1)
def states() -> States:
    """Return the table of all vote states. It does not depend on any data."""
    partitions = _partitions(MAX_SAMPLES)
    size = np.array([sum(p) for p in partitions])
    pairs = [
        (votes, unparsed)
        for n in range(MAX_SAMPLES + 1)
        for unparsed in range(n + 1)
        for votes in (partitions[i] for i in np.flatnonzero(size == n - unparsed))
    ]
    number = {pair: i for i, pair in enumerate(pairs)}
    successors = [_successors(votes, unparsed, number) for votes, unparsed in pairs]
    predecessors: list[list[tuple[int, float]]] = [[] for _ in pairs]
    for i, row in enumerate(successors):
        for state, chance in row:
            predecessors[state].append((i, chance))
    successor, probability = _pad_columns(successors)
    predecessor, predecessor_probability = _pad_columns(predecessors)
    n_samples = np.array([sum(votes) + unparsed for votes, unparsed in pairs])
    raw = [sum(int(v) * int(_SALT[v]) for v in votes) + n * int(_SALT[0]) for votes, n in pairs]
    key = np.array([value % 2**64 for value in raw], dtype=np.uint64)
    order = np.argsort(key)
    return States(
        votes=tuple(votes for votes, _ in pairs),
        n_unparsed=np.array([unparsed for _, unparsed in pairs]),
        n_samples=n_samples,
        successor=successor,
        backward_probability=probability,
        predecessor=predecessor,
        predecessor_probability=predecessor_probability,
        first=np.searchsorted(n_samples, np.arange(MAX_SAMPLES + 2)),
        key=key[order],
        order=order,
    )


def find_state(answer: Iterable[int]) -> int:
    """Return the state of the answers of one question, without arrays.

    >>> bool(find_state([3, 5, 3]) == states().find(vote_keys(np.array([[3, 5, 3]])))[0, 3])
    True
    """
    counts: dict[int, int] = {}
    for one in answer:
        counts[one] = counts.get(one, 0) + 1
    unparsed = counts.pop(UNPARSED, 0)
    return _numbers()[tuple(sorted(counts.values(), reverse=True)), unparsed]


@lru_cache(maxsize=1)
def _numbers() -> dict[tuple[Partition, int], int]:
    table = states()
    pairs = zip(table.votes, table.n_unparsed.tolist(), strict=True)
    return {pair: i for i, pair in enumerate(pairs)}


def _pad_columns(rows: list[list[tuple[int, float]]]) -> tuple[IntArray, FloatArray]:
    """Return lists of (state, probability) as two arrays; unused columns are 0."""
    shape = len(rows), max(map(len, rows))
    state, probability = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    for i, row in enumerate(rows):
        for j, (one, chance) in enumerate(row):
            state[i, j], probability[i, j] = one, chance
    return state, probability


def _successors(
    votes: Partition, unparsed: int, number: dict[tuple[Partition, int], int]
) -> list[tuple[int, float]]:
    """List the states after one more sample, each with the backward probability from it."""
    n_samples = sum(votes) + unparsed
    if n_samples == MAX_SAMPLES:
        return []
    found = [(number[votes, unparsed + 1], (unparsed + 1) / (n_samples + 1))]
    for v, more in _add_vote(votes):
        probability = more.count(v + 1) * (v + 1) / (n_samples + 1)
        found.append((number[more, unparsed], probability))
    return found


@dataclass(frozen=True, eq=False)
class StateMeasure:
    """Probability that each question reaches each state, (states, N).

    ``correct_mass`` is the probability that the state is reached and its majority is correct.
    """

    mass: FloatArray
    correct_mass: FloatArray

    def map(self, change: Callable[[FloatArray], FloatArray]) -> StateMeasure:
        """Apply the same function to both tables."""
        return StateMeasure(change(self.mass), change(self.correct_mass))


def measure_counts(
    counts: ClassCounts, max_samples: int, rows: IntArray | slice = slice(None)
) -> StateMeasure:
    """Measure some states of questions with these counts of answer classes, largest first."""
    count, n_correct, n_unparsed = counts
    subsets, correct = _count_subsets(count, n_correct / np.maximum(count, 1), max_samples)
    partition = _partition_of_state(max_samples)[rows]
    n_samples = n_unparsed + count.sum(axis=1)
    factor = _unparsed_factor(n_unparsed, n_samples, max_samples, rows)
    return StateMeasure(subsets[partition] * factor, correct[partition] * factor)


@dataclass(frozen=True, eq=False)
class _Growth:
    """Index arrays that add a class of v votes to every partition.

    A pair is a partition and one of its counts; sums over pairs run over the classes that have this
    count. ``new_pair`` is the pair of the added class. Partitions of few classes come first:
    ``n_sources[k]`` and ``n_pairs[k]`` count those of at most k classes.
    """

    source: IntArray
    target: IntArray
    pair_source: IntArray
    pair_target: IntArray
    new_pair: IntArray
    n_sources: IntArray
    n_pairs: IntArray


@lru_cache
def _growth(max_votes: int) -> tuple[list[_Growth], IntArray, IntArray, tuple[IntArray, IntArray]]:
    """Return all growths, each partition's pair of the largest count, its ties, and sizes.

    Partitions and pairs are numbered by their number of classes. The sizes are how many partitions
    and how many pairs have at most 0, 1, … classes.
    """
    number = _partition_numbers(max_votes)
    partitions = list(number)
    pairs = {(p, v): i for i, (p, v) in enumerate((p, v) for p in partitions for v in set(p))}
    grown = []
    for v in range(1, max_votes + 1):
        small = [p for p in partitions if sum(p) + v <= max_votes]
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
                new_pair=np.array([pairs[q, v] for q in large]),
                n_sources=_count_up_to([len(p) for p in small], max_votes),
                n_pairs=_count_up_to([len(p) for p in small for _ in {*p}], max_votes),
            )
        )
    top = np.array([pairs[p, p[0]] if p else 0 for p in partitions])
    ties = np.array([p.count(p[0]) if p else 1 for p in partitions])
    n_classes = [len(p) for p in partitions], [len(p) for p, _ in pairs]
    sizes = _count_up_to(n_classes[0], max_votes), _count_up_to(n_classes[1], max_votes)
    return grown, top, ties, sizes


@lru_cache
def _partition_numbers(max_votes: int) -> dict[Partition, int]:
    """Number the partitions of up to ``max_votes`` votes by their number of classes."""
    ordered = sorted(_partitions(max_votes), key=len)
    return {partition: i for i, partition in enumerate(ordered)}


def _count_up_to(sizes: list[int], largest: int) -> IntArray:
    """Return how many of the rising sizes are at most 0, 1, …, largest."""
    return np.searchsorted(sizes, np.arange(largest + 1), side="right")


def _count_subsets(
    count: IntArray, accuracy: FloatArray, max_votes: int
) -> tuple[FloatArray, FloatArray]:
    """Count the subsets with each partition, (partitions, N), and those with a correct majority.

    Classes are added one at a time. Correct subsets are summed by pair, because the leading count
    is known only after the last class.
    """
    grown, top, ties, (n_partitions, n_pairs) = _growth(max_votes)
    subsets, by_pair = (np.zeros((size[-1], len(count))) for size in (n_partitions, n_pairs))
    subsets[0] = 1.0
    for k, (size, class_accuracy) in enumerate(zip(count.T, accuracy.T, strict=True)):
        rows = np.flatnonzero(size)
        # After k classes, only partitions of up to k classes have subsets.
        before, after = min(k, max_votes), min(k + 1, max_votes)
        old = subsets[: n_partitions[before], rows]
        old_pairs = by_pair[: n_pairs[before], rows]
        new = subsets[: n_partitions[after], rows]
        new_pairs = by_pair[: n_pairs[after], rows]
        for v in range(1, min(max_votes, int(size.max(initial=0))) + 1):
            ways, growth = _binomial(size[rows], v), grown[v - 1]
            few, few_pairs = growth.n_sources[before], growth.n_pairs[before]
            added = old[growth.source[:few]] * ways
            new[growth.target[:few]] += added
            new_pairs[growth.pair_target[:few_pairs]] += (
                old_pairs[growth.pair_source[:few_pairs]] * ways
            )
            new_pairs[growth.new_pair[:few]] += added * class_accuracy[rows]
        subsets[: n_partitions[after], rows], by_pair[: n_pairs[after], rows] = new, new_pairs
    correct = by_pair[top] / ties[:, None]
    correct[0] = 0.0
    return subsets, correct


def _binomial(n: IntArray, k: int) -> FloatArray:
    """Return the binomial coefficients n over k."""
    ways = np.ones(len(n))
    for i in range(k):
        ways *= np.maximum(n - i, 0) / (i + 1)
    return ways


def _unparsed_factor(
    n_unparsed: IntArray, n_samples: IntArray, max_samples: int, rows: IntArray | slice
) -> FloatArray:
    """Return the factor from a number of parsed subsets to a state's probability, (states, N)."""
    table = states()
    n_states = int(table.first[max_samples + 1])
    ways = np.stack([_binomial(n_unparsed, n) for n in range(max_samples + 1)])
    total = np.stack([_binomial(n_samples, n) for n in range(max_samples + 1)])
    # A factor depends only on these two numbers, and few pairs of them occur.
    pair = table.n_unparsed[:n_states] * (max_samples + 1) + table.n_samples[:n_states]
    different, inverse = np.unique(pair[rows], return_inverse=True)
    unparsed, samples = np.divmod(different, max_samples + 1)
    return np.asarray((ways[unparsed] / total[samples])[inverse])


@lru_cache
def _partition_of_state(max_samples: int) -> IntArray:
    """Return the partition of each state."""
    number, table = _partition_numbers(max_samples), states()
    return np.array([number[v] for v in table.votes[: int(table.first[max_samples + 1])]])
