"""Answers: recorded samples of N questions as integer arrays.

Every sample has an answer class within its question (−1 if its answer could not be parsed), a flag
that says whether it is correct, and an optional score. Samples are stored flat, question after
question, in the order in which they were drawn. Two samples of a question have the same class if
the grader considers their answers equal.

This module does not know the texts: graders turn texts into classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.errors import DataError
from adacompute.core.types import hash_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import BoolArray, FloatArray, IntArray, KeyArray

UNPARSED = -1
"""Answer class of a sample whose answer could not be parsed. Such a sample does not vote."""


def number_by_appearance(values: IntArray | KeyArray) -> IntArray:
    """Number equal values alike: 0, 1, … in the order in which they first appear.

    >>> number_by_appearance(np.array([7, 3, 7, 9])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def number_classes_by_question(question: IntArray, code: IntArray) -> IntArray:
    """Return the answer classes of many questions, from codes that are shared by all questions.

    ``question`` is sorted; a code of −1 is an unparsed answer.

    >>> number_classes_by_question(np.array([0, 0, 1, 1]), np.array([5, 2, 2, -1])).tolist()
    [0, 1, 0, -1]
    """
    result = np.full(len(code), UNPARSED, dtype=np.int64)
    parsed = np.flatnonzero(code != UNPARSED)
    if len(parsed):
        number = number_by_appearance(question[parsed] * (int(code.max()) + 1) + code[parsed])
        # Questions are sorted, so the first number of a question is its smallest.
        _, first, inverse = np.unique(question[parsed], return_index=True, return_inverse=True)
        result[parsed] = number - number[first][inverse]
    return result


class ClassCounts(NamedTuple):
    """Samples and correct samples of each answer class, both (N, C), and unparsed samples, (N,)."""

    n_samples: IntArray
    n_correct: IntArray
    n_unparsed: IntArray

    def take(self, rows: slice) -> ClassCounts:
        """Return these questions."""
        return ClassCounts(*(column[rows] for column in self))


@dataclass(frozen=True, eq=False)
class Answers:
    """Samples of N questions; those of question i are ``offsets[i]:offsets[i + 1]``.

    >>> answers = Answers.of([[0, 0, 1]], correct=[[True, True, False]])
    >>> len(answers), answers.n_samples.tolist()
    (1, [3])
    """

    offsets: IntArray
    answer: IntArray
    correct: BoolArray
    score: FloatArray | None = None

    def __post_init__(self) -> None:
        ends, size = self.offsets, len(self.answer)
        fits = len(ends) > 0 and ends[0] == 0 and ends[-1] == size
        if not fits or bool((np.diff(ends) < 0).any()):
            raise DataError(f"offsets must rise from 0 to the number of samples, {size}")
        if len(self.correct) != size or (self.score is not None and len(self.score) != size):
            raise DataError(f"{size} samples need {size} grades and, if there are scores, as many")
        if self.answer.min(initial=UNPARSED) < UNPARSED:
            raise DataError(f"an answer class must be {UNPARSED} or a number from 0 on")
        if bool((self.correct & (self.answer == UNPARSED)).any()):
            raise DataError("a sample whose answer could not be parsed is marked as correct")

    @staticmethod
    def of(answer: list[list[int]], correct: list[list[bool]]) -> Answers:
        """Build from one list per question."""
        sizes = [len(row) for row in answer]
        return Answers(
            offsets=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
            answer=np.array([a for row in answer for a in row], dtype=np.int64),
            correct=np.array([c for row in correct for c in row], dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_samples(self) -> IntArray:
        """Number of samples of each question."""
        return np.diff(self.offsets)

    @cached_property
    def question(self) -> IntArray:
        """Question of each sample."""
        return np.repeat(np.arange(len(self)), self.n_samples)

    @cached_property
    def position(self) -> IntArray:
        """Position of each sample within its question."""
        return np.arange(len(self.answer)) - self.offsets[self.question]

    @property
    def n_parsed(self) -> IntArray:
        """Number of samples of each question whose answer could be parsed."""
        return np.bincount(self.question[self.answer != UNPARSED], minlength=len(self))

    @cached_property
    def class_accuracy(self) -> FloatArray:
        """Share of correct samples in the answer class of each sample.

        Samples of one class need not all be correct (programs with the same output on the public
        tests, for example), but a vote cannot distinguish them.
        """
        width = int(self.answer.max(initial=UNPARSED)) + 2
        _, inverse = np.unique(self.question * width + self.answer + 1, return_inverse=True)
        size = np.bincount(inverse)
        return (np.bincount(inverse, weights=self.correct) / size)[inverse]

    def count_classes(self) -> ClassCounts:
        """Count the samples of each answer class of each question."""
        parsed = self.answer != UNPARSED
        width = int(self.answer.max(initial=0)) + 1
        shape = (len(self), width)
        cell = self.question[parsed] * width + self.answer[parsed]
        n_samples, n_correct = (
            np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
            for cells in (cell, cell[self.correct[parsed]])
        )
        return ClassCounts(n_samples, n_correct, self.n_samples - self.n_parsed)

    def count_kinds(self) -> tuple[ClassCounts, IntArray]:
        """Return the counts of each kind of question, and the kind of every question.

        Questions with the same counts, in whatever order of classes, are of one kind and have the
        same estimates: a million questions with 16 samples are some thousand kinds. Classes are
        sorted, largest first; of the same size, the more accurate comes first.
        """
        counts, correct, unparsed = self.count_classes()
        width = max(1, int((counts > 0).sum(axis=1).max(initial=0)))
        order = np.lexsort((-correct, -counts), axis=1)[:, :width]
        columns = [np.take_along_axis(one, order, axis=1) for one in (counts, correct)]
        rows = np.column_stack([*columns, unparsed])
        kinds, kind_of = np.unique(rows, axis=0, return_inverse=True)
        found = ClassCounts(kinds[:, :width], kinds[:, width:-1], kinds[:, -1])
        return found, kind_of.reshape(-1)

    def take(self, rows: IntArray | BoolArray) -> Answers:
        """Return these questions."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        sizes = self.n_samples[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        return self._select(np.repeat(self.offsets[rows], sizes) + index, offsets)

    def keep(self, mask: BoolArray) -> Answers:
        """Return all questions with these samples only."""
        sizes = np.bincount(self.question[mask], minlength=len(self))
        return self._select(np.flatnonzero(mask), np.concatenate([[0], np.cumsum(sizes)]))

    def first(self, n_samples: int) -> Answers:
        """Return all questions with at most their first ``n_samples`` samples."""
        return self.keep(self.position < n_samples)

    def _select(self, index: IntArray, offsets: IntArray) -> Answers:
        return Answers(
            offsets=offsets.astype(np.int64),
            answer=self.answer[index],
            correct=self.correct[index],
            score=None if self.score is None else self.score[index],
        )

    def halves(self, rng: np.random.Generator) -> tuple[Answers, Answers]:
        """Split every question's samples into two random halves; an odd sample is dropped."""
        order = np.lexsort((rng.random(len(self.answer)), self.question))
        position = np.empty_like(order)
        position[order] = self.position
        half = (self.n_samples // 2)[self.question]
        return self.keep(position < half), self.keep((position >= half) & (position < 2 * half))

    def groups(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Group questions with equally many samples: their rows, and (n, R) indices of samples."""
        for size in np.unique(self.n_samples):
            rows = np.flatnonzero(self.n_samples == size)
            yield rows, self.offsets[rows][:, None] + np.arange(size)


def order_samples(
    answers: Answers, key: KeyArray, *, n_orders: int, length: int, seed: int
) -> IntArray:
    """Return random orders of each question's samples: indices (N, n_orders, length).

    Every question needs at least ``length`` samples. Each order is uniform over all permutations.
    Together the orders form a Latin design, in which every sample comes about equally often at
    every position; that halves the noise of independent orders. The orders of a question depend
    only on its key, its number of samples and the seed, not on the other questions.
    """
    fewest = int(answers.n_samples.min(initial=length))
    if fewest < length:
        raise DataError(f"every question needs {length} samples, one has {fewest}")
    index = np.empty((len(answers), n_orders, length), dtype=np.int64)
    for rows, samples in answers.groups():
        size = samples.shape[1]
        for start in range(0, n_orders, size):
            shift = np.arange(min(size, n_orders - start))
            ring = np.take_along_axis(samples, _permute(key[rows], size, seed, 2 * start), axis=1)
            offset = _permute(key[rows], size, seed, 2 * start + 1)
            position = (shift[None, :, None] + offset[:, None, :length]) % size
            index[rows, start : start + len(shift)] = np.take_along_axis(
                ring[:, None, :], position, axis=2
            )
    return index


def _permute(key: KeyArray, size: int, seed: int, stream: int) -> IntArray:
    """Return a random permutation of 0, 1, …, size − 1 for each key, (N, size)."""
    salt = hash_keys(hash_keys(np.array([seed], dtype=np.uint64)) + np.uint64(stream))
    own = hash_keys(key ^ salt)
    position = np.arange(size, dtype=np.uint64)
    return np.argsort(hash_keys(np.add(own[:, None], position)), axis=1)
