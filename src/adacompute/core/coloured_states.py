"""Coloured states: what votes say when samples differ in their arm and in their confidence.

A *colour* is an arm together with a confidence bin of its samples. After some samples, the state of
a question is the multiset of its answer classes, each with a vector of votes per colour (its
*type*), and the number of unparsed samples of each arm. Which answer a class stands for does not
matter. With one arm and one bin, a state is the sorted list of vote counts.

The policy chooses the arm of the next sample; the bin comes with the sample. Seen backwards, the
last sample of an arm is a random one of the arm's samples, whatever the question is, so transition
weights do not depend on the question.

This module enumerates the states and their transitions. It does not know questions or prices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adacompute.core.errors import DataError
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from adacompute.core.types import IntArray, KeyArray

MAX_STATES = 60_000
"""Largest number of states that are enumerated."""

MAX_TYPES = 4_000
"""Largest number of vote vectors that an answer class can have."""

NO_TYPE = -1
"""Type of an answer class without votes."""


@dataclass(frozen=True)
class Colours:
    """The largest number of samples of each arm, and the number of its confidence bins."""

    max_samples: tuple[int, ...]
    n_bins: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.max_samples) != len(self.n_bins) or not self.max_samples:
            raise DataError(f"every arm needs a number of bins, got {self}")
        if min(self.max_samples) < 1 or min(self.n_bins) < 1:
            raise DataError(f"an arm needs at least one sample and one bin, got {self}")

    @property
    def n_arms(self) -> int:
        """Number of arms."""
        return len(self.max_samples)

    @cached_property
    def arm_of(self) -> IntArray:
        """The arm of each colour."""
        return np.repeat(np.arange(self.n_arms), self.n_bins)

    @cached_property
    def first_colour(self) -> IntArray:
        """The first colour of each arm."""
        return np.concatenate([[0], np.cumsum(self.n_bins)[:-1]])

    @property
    def n_colours(self) -> int:
        """Number of colours."""
        return sum(self.n_bins)


@dataclass(frozen=True, eq=False)
class Transitions:
    """Edges from states to states with one sample more of an arm, sorted by their source.

    ``weight`` is the probability that removing a random sample of the arm leads back.
    """

    source: IntArray
    target: IntArray
    weight: np.ndarray


@dataclass(frozen=True, eq=False)
class ColouredStates:
    """All states of up to ``colours.max_samples`` samples per arm, by their number of samples.

    ``types`` (T, colours) are the vote vectors that a class can have. ``classes`` (states, T)
    counts the classes of each type, and ``unparsed`` (states, arms) the unparsed samples.
    ``grown`` (T + 1, colours) is the type of a class after one vote more, from type ``NO_TYPE`` in
    the last row; ``NO_TYPE`` where an arm would have too many samples.
    """

    colours: Colours
    types: IntArray
    grown: IntArray
    classes: npt.NDArray[np.uint8]
    unparsed: npt.NDArray[np.uint8]
    n_by_arm: IntArray
    first: IntArray
    key: KeyArray
    order: IntArray

    def __len__(self) -> int:
        return len(self.classes)

    def layer(self, n_samples: int) -> slice:
        """Return the states of exactly ``n_samples`` samples."""
        return slice(int(self.first[n_samples]), int(self.first[n_samples + 1]))

    @property
    def n_layers(self) -> int:
        """Number of layers: the largest number of samples, plus one."""
        return len(self.first) - 1

    def find(self, key: KeyArray) -> IntArray:
        """Return the state of each key."""
        return self.order[np.searchsorted(self.key, key)]

    @cached_property
    def type_salt(self) -> KeyArray:
        """What a class of each type adds to a state's key; 0 in the last row, without votes."""
        salt = hash_keys(np.arange(1, len(self.types) + 1, dtype=np.uint64))
        return np.append(salt, np.uint64(0))

    @cached_property
    def unparsed_salt(self) -> KeyArray:
        """What an unparsed sample of each arm adds to a state's key."""
        return _unparsed_salt(self.colours.n_arms)

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """State and type of every pair of a state and a type that some class of it has."""
        state, kind = np.nonzero(self.classes)
        return state, kind

    def find_pair(self, state: IntArray, kind: IntArray) -> IntArray:
        """Return the pair of each state and type, which must exist."""
        code = self.pairs[0] * len(self.types) + self.pairs[1]
        return np.searchsorted(code, state * len(self.types) + kind)

    @cached_property
    def transitions(self) -> tuple[Transitions, ...]:
        """The transitions by each arm."""
        return tuple(self._transitions(arm) for arm in range(self.colours.n_arms))

    def _transitions(self, arm: int) -> Transitions:
        """Return the edges by one arm: an unparsed sample, or a vote of one of its colours."""
        parts = [self._edges(arm, np.flatnonzero(self.unparsed[:, arm]), None, None)]
        begin = int(self.colours.first_colour[arm])
        for colour in range(begin, begin + self.colours.n_bins[arm]):
            for before in range(-1, len(self.types)):
                after = int(self.grown[before, colour])
                if after != NO_TYPE:
                    target = np.flatnonzero(self.classes[:, after])
                    parts.append(self._edges(arm, target, (before, after), colour))
        source, target, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(source, kind="stable")
        return Transitions(source[order], target[order], weight[order])

    def _edges(
        self, arm: int, target: IntArray, change: tuple[int, int] | None, colour: int | None
    ) -> tuple[IntArray, IntArray, np.ndarray]:
        """Return the edges that lead to states by one kind of sample of an arm."""
        key = self.keys[target]
        if change is None or colour is None:
            key = key - self.unparsed_salt[arm]
            ways = self.unparsed[target, arm].astype(np.float64)
        else:
            before, after = change
            key = key - self.type_salt[after] + self.type_salt[before]
            ways = self.classes[target, after] * float(self.types[after, colour])
        return self.find(key), target, ways / self.n_by_arm[target, arm]

    @cached_property
    def keys(self) -> KeyArray:
        """The key of each state."""
        return _keys(self.classes, self.unparsed, self.type_salt, self.unparsed_salt)


def _unparsed_salt(n_arms: int) -> KeyArray:
    return hash_keys(np.arange(2**32, 2**32 + n_arms, dtype=np.uint64))


def _keys(
    classes: npt.NDArray[np.uint8],
    unparsed: npt.NDArray[np.uint8],
    type_salt: KeyArray,
    unparsed_salt: KeyArray,
) -> KeyArray:
    """Return the key of each state: a sum over its classes and unparsed samples."""
    votes = classes.astype(np.uint64) @ type_salt[: classes.shape[1]]
    return np.asarray(votes + unparsed.astype(np.uint64) @ unparsed_salt, dtype=np.uint64)


def _list_types(colours: Colours) -> tuple[IntArray, IntArray]:
    """List the vote vectors that a class can have, and the type after one more vote."""
    pairs = zip(colours.max_samples, colours.n_bins, strict=True)
    if math.prod(math.comb(cap + bins, bins) for cap, bins in pairs) > MAX_TYPES:
        raise DataError(
            f"{colours.max_samples} samples of arms with {colours.n_bins} confidence bins are too "
            "many to count: use fewer samples or arms"
        )
    by_arm = [
        [v for v in itertools.product(range(cap + 1), repeat=bins) if sum(v) <= cap]
        for cap, bins in zip(colours.max_samples, colours.n_bins, strict=True)
    ]
    vectors = [tuple(itertools.chain(*parts)) for parts in itertools.product(*by_arm)]
    vectors = sorted((v for v in vectors if any(v)), key=lambda v: (sum(v), v))
    number = {vector: i for i, vector in enumerate(vectors)}
    grown = np.full((len(vectors) + 1, colours.n_colours), NO_TYPE)
    for vector, row in [*number.items(), ((0,) * colours.n_colours, len(vectors))]:
        for c in range(colours.n_colours):
            more = (*vector[:c], vector[c] + 1, *vector[c + 1 :])
            grown[row, c] = number.get(more, NO_TYPE)
    return np.array(vectors), grown


@lru_cache(maxsize=256)
def count_states(colours: Colours, limit: int = MAX_STATES) -> int:
    """Return the number of states, or a number above the limit if there are more."""
    try:
        return len(_enumerate(colours, limit))
    except DataError:
        return limit + 1


@lru_cache(maxsize=8)
def coloured_states(colours: Colours) -> ColouredStates:
    """Return all states. They do not depend on any data."""
    return _enumerate(colours, MAX_STATES)


def _enumerate(colours: Colours, limit: int) -> ColouredStates:
    """List the states layer by layer: each has one sample more than one of the layer before."""
    types, grown = _list_types(colours)
    n_types, n_arms = len(types), colours.n_arms
    type_salt = np.append(hash_keys(np.arange(1, n_types + 1, dtype=np.uint64)), np.uint64(0))
    unparsed_salt = _unparsed_salt(n_arms)
    layer = (np.zeros((1, n_types), dtype=np.uint8), np.zeros((1, n_arms), dtype=np.uint8))
    layers, total = [layer], 1
    caps = np.array(colours.max_samples)
    for _ in range(int(caps.sum())):
        parts = list(_grow(layer, colours, types, grown, caps))
        classes, unparsed = (np.concatenate(column) for column in zip(*parts, strict=True))
        key = _keys(classes, unparsed, type_salt, unparsed_salt)
        _, kept = np.unique(key, return_index=True)
        layer = classes[np.sort(kept)], unparsed[np.sort(kept)]
        layers.append(layer)
        total += len(kept)
        if total > limit:
            raise DataError(
                f"{colours.max_samples} samples of arms with {colours.n_bins} confidence bins have "
                f"more than {limit} vote states: use fewer samples or arms"
            )
    classes, unparsed = (np.concatenate(column) for column in zip(*layers, strict=True))
    key = _keys(classes, unparsed, type_salt, unparsed_salt)
    order = np.argsort(key)
    votes = np.stack([types[:, colours.arm_of == arm].sum(axis=1) for arm in range(n_arms)], axis=1)
    return ColouredStates(
        colours=colours,
        types=types,
        grown=grown,
        classes=classes,
        unparsed=unparsed,
        n_by_arm=classes.astype(np.int64) @ votes + unparsed,
        first=np.concatenate([[0], np.cumsum([len(one[0]) for one in layers])]),
        key=key[order],
        order=order,
    )


def _grow(
    layer: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]],
    colours: Colours,
    types: IntArray,
    grown: IntArray,
    caps: IntArray,
) -> Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]:
    """Return the states after one more sample, in groups; the same state may appear often."""
    classes, unparsed = layer
    votes = np.stack([types[:, colours.arm_of == a].sum(axis=1) for a in range(len(caps))], axis=1)
    n_by_arm = classes.astype(np.int64) @ votes + unparsed
    found = []
    for arm in range(len(caps)):
        rows = np.flatnonzero(n_by_arm[:, arm] < caps[arm])
        more = unparsed[rows].copy()
        more[:, arm] += 1
        found.append((classes[rows], more))
        begin = int(colours.first_colour[arm])
        for colour in range(begin, begin + colours.n_bins[arm]):
            for before in range(-1, len(types)):
                after = int(grown[before, colour])
                if after == NO_TYPE:
                    continue
                usable = rows if before < 0 else rows[classes[rows, before] > 0]
                if len(usable):
                    changed = classes[usable].copy()
                    if before >= 0:
                        changed[:, before] -= 1
                    changed[:, after] += 1
                    found.append((changed, unparsed[usable]))
    return found
