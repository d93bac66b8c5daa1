"""Positions: the vote after every number of samples of every arm, for many orders of the samples.

A *position* is a number of samples of each arm. In one order of the recorded samples, a policy
moves from position to position; what it sees there is the coloured state, and what it would answer
is the class with the largest total weight. Both are computed once for all positions, so that a plan
is replayed at any price by looking things up.

This module does not know prices or plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED
from adacompute.core.coloured_states import Colours, coloured_states

if TYPE_CHECKING:
    from adacompute.core.types import FloatArray, IntArray, KeyArray

TIE = 1e-12
"""Relative difference of total weights up to which two classes are tied."""


@dataclass(frozen=True)
class Grid:
    """All positions of up to so many samples of each arm, numbered with the last arm fastest."""

    max_samples: tuple[int, ...]

    @cached_property
    def counts(self) -> IntArray:
        """Samples of each arm at each position, (P, arms)."""
        ranges = [range(cap + 1) for cap in self.max_samples]
        return np.array(list(itertools.product(*ranges)), dtype=np.int64)

    @cached_property
    def stride(self) -> IntArray:
        """How far one more sample of each arm moves the position."""
        sizes = np.array([cap + 1 for cap in self.max_samples[1:]] + [1])
        return np.cumprod(sizes[::-1])[::-1].copy()

    def __len__(self) -> int:
        return len(self.counts)


class OrderedSamples(NamedTuple):
    """Samples of M orders, one array (M, cap) per arm: class, colour, weight, class accuracy."""

    answer: Sequence[IntArray]
    colour: Sequence[IntArray]
    weight: Sequence[FloatArray]
    accuracy: Sequence[FloatArray]


class VoteTable(NamedTuple):
    """Coloured state and probability of a correct answer at every position, both (M, P)."""

    state: IntArray
    correct: FloatArray


def tabulate_votes(samples: OrderedSamples, colours: Colours) -> VoteTable:
    """Return the state and the accuracy of the weighted vote at every position of every order.

    Classes with equal total weight share the answer. Without any parsed sample the answer is wrong.
    """
    grid, table = Grid(colours.max_samples), coloured_states(colours)
    label, accuracy = _label_classes(samples)
    codes, weights, unparsed = _accumulate(samples, colours, label)
    salt, _ = class_salt(colours)
    n_rows = len(samples.answer[0])
    key = np.zeros((n_rows, len(grid)), dtype=np.uint64)
    correct = np.zeros((n_rows, len(grid)))
    for position, counts in enumerate(grid.counts.tolist()):
        code = sum(one[:, n] for one, n in zip(codes, counts, strict=True))
        total = np.asarray(sum(one[:, n] for one, n in zip(weights, counts, strict=True)))
        key[:, position] = salt[code].sum(axis=1)
        for arm, n in enumerate(counts):
            missing = unparsed[arm][:, n].astype(np.uint64)
            key[:, position] += missing * table.unparsed_salt[arm]
        leads = (total >= total.max(axis=1, keepdims=True) * (1 - TIE)) & (code > 0)
        tied = np.maximum(leads.sum(axis=1), 1)
        correct[:, position] = (leads * accuracy).sum(axis=1) / tied
    return VoteTable(table.find(key), correct)


def _label_classes(samples: OrderedSamples) -> tuple[list[IntArray], FloatArray]:
    """Number the classes of each order by the first sample of each; return their accuracy too."""
    answer = np.concatenate(samples.answer, axis=1)
    first = (answer[:, :, None] == answer[:, None, :]).argmax(axis=2)
    label = np.where(answer == UNPARSED, UNPARSED, first)
    ends = np.cumsum([one.shape[1] for one in samples.answer])[:-1]
    return np.split(label, ends, axis=1), np.concatenate(samples.accuracy, axis=1)


def _accumulate(
    samples: OrderedSamples, colours: Colours, label: list[IntArray]
) -> tuple[list[IntArray], list[FloatArray], list[IntArray]]:
    """Sum type codes and weights by class, and unparsed samples, over the first n of each arm."""
    radix, n_rows = _radix(colours), len(label[0])
    n_classes = sum(one.shape[1] for one in label)
    codes, weights, unparsed = [], [], []
    row = np.arange(n_rows)
    for arm, own in enumerate(label):
        shape = (n_rows, own.shape[1] + 1, n_classes)
        code, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        for i in range(own.shape[1]):
            code[:, i + 1], weight[:, i + 1] = code[:, i], weight[:, i]
            voted = np.flatnonzero(own[:, i] != UNPARSED)
            cell = row[voted], i + 1, own[voted, i]
            code[cell] += radix[samples.colour[arm][voted, i]]
            weight[cell] += samples.weight[arm][voted, i]
        codes.append(code)
        weights.append(weight)
        missing = np.cumsum(own == UNPARSED, axis=1)
        unparsed.append(np.concatenate([np.zeros((n_rows, 1), dtype=np.int64), missing], axis=1))
    return codes, weights, unparsed


def _radix(colours: Colours) -> IntArray:
    """Return what a vote of each colour adds to the code of a class."""
    sizes = np.array(colours.max_samples)[colours.arm_of] + 1
    return np.concatenate([[1], np.cumprod(sizes)[:-1]])


@lru_cache(maxsize=8)
def class_salt(colours: Colours) -> tuple[KeyArray, IntArray]:
    """Return what a class adds to a state's key, by the code of its votes; 0 without votes.

    The code of a class is the sum of the second array over the colours of its votes.
    """
    table, radix = coloured_states(colours), _radix(colours)
    sizes = np.array(colours.max_samples)[colours.arm_of] + 1
    salt = np.zeros(int(np.prod(sizes)), dtype=np.uint64)
    salt[table.types @ radix] = table.type_salt[: len(table.types)]
    return salt, radix
