"""Coloured measure: how often questions reach each coloured state, over all orders of samples.

Samples of different arms are independent given the question, so the number of ways to see a state
is a sum, over the assignments of the question's answer classes to the classes of the state, of
products of binomial coefficients. The measure of a question is sparse. Measures of groups of
questions are sums, so they merge over blocks.

The expected cost of the next sample of an arm is measured beside the mass: hard questions have long
answers, so it depends on the state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.coloured_states import NO_TYPE, ColouredStates, Colours, coloured_states
from adacompute.core.errors import DataError

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray

NO_GROUP = -1
"""Group of a question that belongs to none."""


@dataclass(frozen=True, eq=False)
class ColouredSamples:
    """Recorded samples of N questions, sorted by question: arm, colour, answer class and cost.

    ``accuracy`` is the share of correct samples in the answer class of each sample. An unparsed
    sample has an arm; its colour is not used.
    """

    offsets: IntArray
    arm: IntArray
    colour: IntArray
    answer: IntArray
    accuracy: FloatArray
    cost: FloatArray

    def __len__(self) -> int:
        return len(self.offsets) - 1


class GroupMeasure(NamedTuple):
    """Sums over groups of questions: of states (S, G), of pairs (P, G), of costs (arms, S, G)."""

    mass: FloatArray
    correct: FloatArray
    cost: FloatArray

    def mix(self, weight: FloatArray) -> GroupMeasure:
        """Return mixtures of the groups, with weights (G, C)."""
        return GroupMeasure(self.mass @ weight, self.correct @ weight, self.cost @ weight)


@dataclass(frozen=True, eq=False)
class ColouredMeasure:
    """Sparse measures of N questions: one entry per question and state, or question and pair."""

    states: ColouredStates
    n_questions: int
    question: IntArray
    state: IntArray
    mass: FloatArray
    cost: FloatArray
    pair_question: IntArray
    pair: IntArray
    correct: FloatArray

    def sum(self, group: IntArray, n_groups: int) -> GroupMeasure:
        """Return the sums over groups of questions; ``NO_GROUP`` leaves a question out."""
        mass = _sum_by(self.state, group[self.question], self.mass, len(self.states), n_groups)
        n_pairs = len(self.states.pairs[0])
        correct = _sum_by(self.pair, group[self.pair_question], self.correct, n_pairs, n_groups)
        cost = np.stack(
            [
                _sum_by(self.state, group[self.question], one, len(self.states), n_groups)
                for one in self.cost
            ]
        )
        return GroupMeasure(mass, correct, cost)


def _sum_by(
    row: IntArray, group: IntArray, value: FloatArray, n_rows: int, n_groups: int
) -> FloatArray:
    used = group != NO_GROUP
    cell = row[used] * n_groups + group[used]
    total = np.bincount(cell, value[used], minlength=n_rows * n_groups)
    return np.asarray(total.reshape(n_rows, n_groups))


class KnownMeasures:
    """Measures of single questions that were computed before, up to a number of bytes.

    Fits to overlapping parts of the questions mostly cut confidence into the same bins, so most
    questions have the same counts in each of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._found: dict[bytes, _Measured] = {}
        self._bytes = 0

    def measure(self, table: ColouredStates, counts: _Counts) -> _Measured:
        """Return the measure of one question, computed only if it is not known."""
        key = counts.key(table.colours)
        if (found := self._found.get(key)) is None:
            found = _measure(table, counts)
            size = sum(array.nbytes for array in found)
            if self._bytes + size <= self.max_bytes:
                self._found[key] = found
                self._bytes += size
        return found


def measure_samples(
    samples: ColouredSamples, colours: Colours, known: KnownMeasures | None = None
) -> ColouredMeasure:
    """Measure all states of up to ``colours.max_samples`` samples of every question."""
    table, known = coloured_states(colours), known or KnownMeasures(0)
    found = [known.measure(table, _Counts.of(samples, q, colours)) for q in range(len(samples))]
    sizes, pair_sizes = [len(one.state) for one in found], [len(one.pair) for one in found]
    return ColouredMeasure(
        states=table,
        n_questions=len(samples),
        question=np.repeat(np.arange(len(samples)), sizes),
        state=np.concatenate([one.state for one in found]),
        mass=np.concatenate([one.mass for one in found]),
        cost=np.concatenate([one.cost for one in found], axis=1),
        pair_question=np.repeat(np.arange(len(samples)), pair_sizes),
        pair=np.concatenate([one.pair for one in found]),
        correct=np.concatenate([one.correct for one in found]),
    )


@dataclass(frozen=True, eq=False)
class _Counts:
    """Samples of one question: votes (classes, colours) and their mean costs, and the unparsed."""

    votes: IntArray
    vote_cost: FloatArray
    accuracy: FloatArray
    unparsed: IntArray
    unparsed_cost: FloatArray

    @staticmethod
    def of(samples: ColouredSamples, question: int, colours: Colours) -> _Counts:
        """Count the samples of one question."""
        rows = slice(int(samples.offsets[question]), int(samples.offsets[question + 1]))
        arm, answer, cost = samples.arm[rows], samples.answer[rows], samples.cost[rows]
        parsed = answer != UNPARSED
        shape = int(answer.max(initial=-1)) + 1, colours.n_colours
        cell = answer[parsed] * shape[1] + samples.colour[rows][parsed]
        votes = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
        vote_cost = np.bincount(cell, cost[parsed], minlength=votes.size).reshape(shape)
        accuracy = np.zeros(shape[0])
        accuracy[answer[parsed]] = samples.accuracy[rows][parsed]
        unparsed = np.bincount(arm[~parsed], minlength=colours.n_arms)
        unparsed_cost = np.bincount(arm[~parsed], cost[~parsed], minlength=colours.n_arms)
        given = np.bincount(arm, minlength=colours.n_arms)
        if (given < colours.max_samples).any():
            raise DataError(
                f"a question has {given.tolist()} samples of the arms, and states are measured up "
                f"to {list(colours.max_samples)}: use fewer samples"
            )
        used = votes.any(axis=1)
        return _Counts(
            votes[used],
            (vote_cost / np.maximum(votes, 1))[used],
            accuracy[used],
            unparsed,
            unparsed_cost / np.maximum(unparsed, 1),
        )

    def key(self, colours: Colours) -> bytes:
        """Return bytes that are equal for questions with the same measure."""
        arrays = (
            self.votes,
            self.vote_cost,
            self.accuracy,
            self.unparsed,
            self.unparsed_cost,
        )
        return repr((colours, self.votes.shape)).encode() + b"".join(a.tobytes() for a in arrays)


class _Measured(NamedTuple):
    state: IntArray
    mass: FloatArray
    cost: FloatArray
    pair: IntArray
    correct: FloatArray


@dataclass(frozen=True, eq=False)
class _Ways:
    """Partial states by key: number of ways, samples by arm, and ways times the cost by arm."""

    key: np.ndarray
    ways: FloatArray
    n_by_arm: IntArray
    cost: FloatArray

    def add(self, options: _Ways, caps: IntArray) -> _Ways:
        """Combine with every option; drop states with too many samples, and merge equal ones."""
        n_by_arm = self.n_by_arm[:, None] + options.n_by_arm
        fits = (n_by_arm <= caps).all(axis=2)
        ways = (self.ways[:, None] * options.ways)[fits]
        cost = (
            self.cost[:, None] * options.ways[None, :, None]
            + self.ways[:, None, None] * options.cost
        )[fits]
        return _Ways((self.key[:, None] + options.key)[fits], ways, n_by_arm[fits], cost).merge()

    def merge(self) -> _Ways:
        """Add up the ways to the same state."""
        key, first, inverse = np.unique(self.key, return_index=True, return_inverse=True)
        if len(key) == len(self.key):
            return self
        ways = np.bincount(inverse, self.ways, minlength=len(key)).astype(np.float64)
        cost = np.stack([np.bincount(inverse, c, minlength=len(key)) for c in self.cost.T], axis=1)
        return _Ways(key, ways, self.n_by_arm[first], cost.astype(np.float64))


@lru_cache(maxsize=65_536)
def _vote_options(
    colours: Colours, votes: tuple[int, ...]
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """Return the ways to take some of a class's votes: type, vector, ways and samples by arm."""
    caps = colours.max_samples
    ranges = [range(min(k, caps[a]) + 1) for k, a in zip(votes, colours.arm_of, strict=True)]
    vectors = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    n_by_arm = np.stack(
        [vectors[:, colours.arm_of == a].sum(axis=1) for a in range(colours.n_arms)], axis=1
    )
    kept = (n_by_arm <= np.array(caps)).all(axis=1)
    vectors, n_by_arm = vectors[kept], n_by_arm[kept]
    ways = np.ones(len(vectors))
    for column, k in zip(vectors.T, votes, strict=True):
        ways *= np.array([math.comb(k, v) for v in range(k + 1)], dtype=np.float64)[column]
    return _type_of(colours, vectors), vectors, ways, n_by_arm


def _type_of(colours: Colours, vectors: IntArray) -> IntArray:
    """Return the type of each vote vector; ``NO_TYPE`` without votes."""
    types = coloured_states(colours).types
    radix = (max(colours.max_samples) + 1) ** np.arange(types.shape[1])
    code = types @ radix
    order = np.argsort(code)
    found = order[np.minimum(np.searchsorted(code[order], vectors @ radix), len(order) - 1)]
    return np.where(vectors.any(axis=1), found, NO_TYPE)


def _measure(table: ColouredStates, counts: _Counts) -> _Measured:
    """Measure the states of one question."""
    colours, caps = table.colours, np.array(table.colours.max_samples)
    options, kinds = (
        zip(
            *(
                _class_options(table, votes, cost)
                for votes, cost in zip(counts.votes, counts.vote_cost, strict=True)
            ),
            strict=True,
        )
        if len(counts.votes)
        else ((), ())
    )
    right = np.flatnonzero(counts.accuracy > 0).tolist()
    start = _unparsed_ways(table, counts)
    total = _total_by_arm(counts, colours)
    if not right:
        whole = _add_all(start, options, caps)
        return _finish(table, counts, whole, total, [], [])
    pairs, masses, whole = [], [], start
    for number in right:
        others = [one for i, one in enumerate(options) if i != number]
        rest = _add_all(start, others, caps)
        option, kind = options[number], kinds[number]
        key, ways, which = _join(rest, option, caps)
        voted = kind[which] != NO_TYPE
        state = table.find(key[voted])
        mass = ways[voted] / _orders(table.n_by_arm[state], total)
        pairs.append(table.find_pair(state, kind[which][voted]))
        masses.append(mass * counts.accuracy[number])
        whole = rest.add(option, caps) if number == right[-1] else whole
    return _finish(table, counts, whole, total, pairs, masses)


def _finish(
    table: ColouredStates,
    counts: _Counts,
    whole: _Ways,
    total: IntArray,
    pairs: Sequence[IntArray],
    masses: Sequence[FloatArray],
) -> _Measured:
    """Turn ways into probabilities, and the cost of samples used into that of the next one."""
    state = table.find(whole.key)
    orders = _orders(whole.n_by_arm, total)
    spent = counts.votes[:, :, None] * counts.vote_cost[:, :, None]
    by_arm = np.zeros(len(total))
    np.add.at(by_arm, table.colours.arm_of, spent.sum(axis=(0, 2)))
    by_arm += counts.unparsed * counts.unparsed_cost
    left = total - whole.n_by_arm
    remaining = (by_arm * whole.ways[:, None] - whole.cost) / np.maximum(left, 1)
    mean = whole.ways[:, None] * (by_arm / total)
    cost = np.where(left > 0, remaining, mean) / orders[:, None]
    none = np.empty(0, dtype=np.int64)
    return _Measured(
        state,
        whole.ways / orders,
        cost.T,
        np.concatenate([none, *pairs]),
        np.concatenate([np.empty(0), *masses]),
    )


def _add_all(start: _Ways, options: Sequence[_Ways], caps: IntArray) -> _Ways:
    for option in options:
        start = start.add(option, caps)
    return start


def _join(rest: _Ways, option: _Ways, caps: IntArray) -> tuple[np.ndarray, FloatArray, IntArray]:
    """Return keys and ways of all combinations that fit, and the option of each."""
    fits = ((rest.n_by_arm[:, None] + option.n_by_arm) <= caps).all(axis=2)
    which = np.broadcast_to(np.arange(len(option.key)), fits.shape)[fits]
    key = (rest.key[:, None] + option.key)[fits]
    return key, (rest.ways[:, None] * option.ways)[fits], which


def _class_options(
    table: ColouredStates, votes: IntArray, cost: FloatArray
) -> tuple[_Ways, IntArray]:
    """Return the ways to take some votes of a class, and the type of each."""
    colours = table.colours
    kind, vectors, ways, n_by_arm = _vote_options(colours, tuple(votes.tolist()))
    spent = np.stack(
        [(vectors * cost)[:, colours.arm_of == a].sum(axis=1) for a in range(colours.n_arms)],
        axis=1,
    )
    return _Ways(table.type_salt[kind], ways, n_by_arm, spent * ways[:, None]), kind


def _unparsed_ways(table: ColouredStates, counts: _Counts) -> _Ways:
    """Return the ways to take some of the unparsed samples of each arm."""
    caps = table.colours.max_samples
    ranges = [range(min(int(n), cap) + 1) for n, cap in zip(counts.unparsed, caps, strict=True)]
    taken = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    ways = np.ones(len(taken))
    for column, n in zip(taken.T, counts.unparsed.tolist(), strict=True):
        ways *= np.array([math.comb(n, v) for v in range(n + 1)], dtype=np.float64)[column]
    key = taken.astype(np.uint64) @ table.unparsed_salt
    return _Ways(key, ways, taken, taken * counts.unparsed_cost * ways[:, None])


def _total_by_arm(counts: _Counts, colours: Colours) -> IntArray:
    total = counts.unparsed.copy()
    np.add.at(total, colours.arm_of, counts.votes.sum(axis=0))
    return np.asarray(total)


def _orders(n_by_arm: IntArray, total: IntArray) -> FloatArray:
    """Return the number of ways to take so many samples of each arm."""
    ways = np.ones(len(n_by_arm))
    for column, n in zip(n_by_arm.T, total.tolist(), strict=True):
        largest = int(column.max(initial=0))
        ways *= np.array([math.comb(n, v) for v in range(largest + 1)], dtype=np.float64)[column]
    return ways
