"""Similar sets: which of many sets of hashes are nearly the same, without comparing all pairs.

Two sets are similar if their Jaccard similarity, the size of the intersection over that of the
union, is at least 0.9. Then they differ in at most a nineteenth of their sizes together. Hashes are
dealt into one part more than that, so that at least one part of two similar sets is equal; only
sets with an equal part are compared. The result is exact for up to 5,000 sets, unless they are so
long and alike that comparing them would take minutes; then shares of them are compared. This module
does not know what the hashes stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from adacompute.core.types import Float32Array, IntArray, KeyArray

MAX_EXACT_SETS = 5_000
"""Sets that are compared with each other at once."""

MAX_PRODUCTS = 5 * 10**11
"""Multiplications that one comparison of sets may take; beyond it, shares of them are compared."""

MAX_HASHES = 20_000_000
"""Hashes of more than ``MAX_EXACT_SETS`` sets that are read; beyond it, a share of them."""

MIN_HASHES = 32
"""Hashes that a share of a set must have; smaller ones say too little and are left out."""

BLOCK_COLUMNS = 2_048
"""Hashes whose occurrences are multiplied at once."""

SHARED, SIZES = 19, 9
"""Sets are similar if 19 times their intersection is at least 9 times the sum of their sizes."""


def join_similar(sets: Sequence[KeyArray]) -> IntArray:
    """Return a label of each set; similar sets have the same, also through other sets.

    The label is the row of the first set that has it. The hashes of a set are different.

    >>> hashes = hash_keys(np.arange(60, dtype=np.uint64))
    >>> join_similar([hashes[:20], hashes[1:20], hashes[40:60]]).tolist()
    [0, 0, 2]
    """
    if len(sets) > MAX_EXACT_SETS:
        sets = _thin(sets, -(-sum(map(len, sets)) // MAX_HASHES))
    links = [
        (rows[part], rows[part[_compare([sets[row] for row in rows[part]])]])
        for rows in _find_candidates(sets)
        for part in _split([sets[row] for row in rows])
    ]
    return join_linked(len(sets), links)


def join_linked(size: int, links: Iterable[tuple[IntArray, IntArray]]) -> IntArray:
    """Return the smallest row that each of ``size`` rows is linked with, also through others.

    >>> join_linked(5, [(np.array([4, 2]), np.array([2, 1]))]).tolist()
    [0, 1, 1, 3, 1]
    """
    label = np.arange(size)
    first, second = np.concatenate([np.empty((2, 0), dtype=np.int64), *links], axis=1)
    while True:
        one, other = label[first], label[second]
        if np.array_equal(one, other):
            return label
        low = np.minimum(one, other)
        np.minimum.at(label, one, low)
        np.minimum.at(label, other, low)
        while not np.array_equal(label, label[label]):
            label = label[label]


def _thin(sets: Sequence[KeyArray], divisor: int) -> list[KeyArray]:
    """Return about one in ``divisor`` hashes of each set, the same ones in every set."""
    if divisor <= 1:
        return list(sets)
    kept = [one[hash_keys(one) % np.uint64(divisor) == 0] for one in sets]
    return [one if len(one) >= MIN_HASHES else one[:0] for one in kept]


def _find_candidates(sets: Sequence[KeyArray]) -> Iterator[IntArray]:
    """Yield the rows of sets that are linked by an equal part.

    The sizes of similar sets are at most one step apart, so two steps are searched together.
    """
    size = np.array([len(one) for one in sets], dtype=np.int64)
    bounds = [1]
    while bounds[-1] <= size.max(initial=0):
        bounds.append(-(-bounds[-1] * 10 // 9))
    step = np.searchsorted(bounds, size, side="right")
    for low in np.unique(step[size > 0]).tolist():
        rows = np.flatnonzero((step == low) | (step == low + 1))
        if len(rows) > 1:
            label = _link_parts([sets[row] for row in rows.tolist()])
            yield from (rows[linked] for linked in _split_labels(label))


def _link_parts(sets: Sequence[KeyArray]) -> IntArray:
    """Return a label of each set; sets with an equal part have the same."""
    n_parts = 2 * max(map(len, sets)) // SHARED + 1
    # The hash of a part is the sum of its hashes, and 0 if it is empty.
    part_hash = np.zeros((len(sets), n_parts), dtype=np.uint64)
    for row, one in enumerate(sets):
        np.add.at(part_hash[row], (one % np.uint64(n_parts)).astype(np.int64), hash_keys(one))
    order = np.argsort(part_hash, axis=0, kind="stable")
    ordered = np.take_along_axis(part_hash, order, axis=0)
    is_equal = ordered[1:] == ordered[:-1]
    return join_linked(len(sets), [(order[:-1][is_equal], order[1:][is_equal])])


def _split_labels(label: IntArray) -> Iterator[IntArray]:
    """Yield the rows of each label that several rows have."""
    order = np.argsort(label, kind="stable")
    rows: Iterable[IntArray] = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    yield from (own for own in rows if len(own) > 1)


def _split(sets: Sequence[KeyArray]) -> list[IntArray]:
    """Return the rows of sets that are compared with each other: all, or those with like hashes.

    The smallest hash of two similar sets is the same in nine of ten cases.
    """
    if len(sets) <= MAX_EXACT_SETS:
        return [np.arange(len(sets))]
    smallest = [hash_keys(hash_keys(one)).min() for one in sets], [one.min() for one in sets]
    order = np.lexsort(smallest)
    return np.array_split(order, -(-len(order) // MAX_EXACT_SETS))


def _compare(sets: Sequence[KeyArray]) -> IntArray:
    """Return the first set that each set is similar to, also through others."""
    _, count = np.unique(np.concatenate(list(sets)), return_counts=True)
    n_products = len(sets) ** 2 * int((count > 1).sum())
    sets = _thin(sets, -(-n_products // MAX_PRODUCTS))
    size = np.array([len(one) for one in sets], dtype=np.int64)
    shared = _count_shared(sets)
    label, is_open = np.arange(len(sets)), np.ones(len(sets), dtype=np.bool_)
    for first in range(len(sets)):
        waiting = [first] if is_open[first] else []
        is_open[first] = False
        while waiting:
            row = waiting.pop()
            label[row] = first
            is_similar = SHARED * shared[row] >= SIZES * (size[row] + size)
            found = np.flatnonzero(is_similar & is_open & (size > 0))
            is_open[found] = False
            waiting += found.tolist()
    return label


def _count_shared(sets: Sequence[KeyArray]) -> Float32Array:
    """Return the size of the intersection of each two sets."""
    row = np.repeat(np.arange(len(sets)), [len(one) for one in sets])
    _, column, count = np.unique(
        np.concatenate(list(sets)), return_inverse=True, return_counts=True
    )
    # A hash of one set only is in no intersection.
    number = np.where(count > 1, np.cumsum(count > 1) - 1, -1)[column]
    order = np.argsort(number, kind="stable")
    row, number = row[order], number[order]
    shared = np.zeros((len(sets), len(sets)), dtype=np.float32)
    for start in range(0, int(number.max(initial=-1)) + 1, BLOCK_COLUMNS):
        own = slice(*np.searchsorted(number, [start, start + BLOCK_COLUMNS]))
        occurs = np.zeros((len(sets), BLOCK_COLUMNS), dtype=np.float32)
        occurs[row[own], number[own] - start] = 1.0
        shared += occurs @ occurs.T
    return shared
