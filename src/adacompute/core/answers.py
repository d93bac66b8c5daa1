"""Answers: recorded samples of N questions as integers, ready for counting.

Every sample has an answer class within its question (−1 when no answer could be read), whether it
is right, and, where there is one, a score. Samples are stored flat, question after question, in
the order in which they were drawn. It knows nothing of texts: graders turn texts into classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adacompute.core.types import BoolArray, FloatArray, IntArray

UNPARSED = -1
"""Answer class of a sample from which no answer could be read; it abstains in a vote."""


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
            raise DataError("the offsets of the questions do not match the number of samples")
        if len(self.correct) != size or (self.score is not None and len(self.score) != size):
            raise DataError(f"{size} samples need as many grades and, where there are any, scores")
        if self.answer.min(initial=UNPARSED) < UNPARSED:
            raise DataError(f"an answer class is {UNPARSED} or a number from 0 on")
        if bool((self.correct & (self.answer == UNPARSED)).any()):
            raise DataError("a sample whose answer could not be read is marked as right")

    @staticmethod
    def of(answer: list[list[int]], correct: list[list[bool]]) -> Answers:
        """Build from one list per question."""
        sizes = [len(row) for row in answer]
        return Answers(
            offsets=np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
            answer=np.array([a for row in answer for a in row], dtype=np.int64),
            correct=np.array([r for row in correct for r in row], dtype=np.bool_),
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

    @property
    def n_parsed(self) -> IntArray:
        """Number of samples of each question with a readable answer."""
        return np.bincount(self.question[self.answer != UNPARSED], minlength=len(self))

    @cached_property
    def _class(self) -> IntArray:
        """A number for each (question, class), unreadable samples included."""
        width = int(self.answer.max(initial=UNPARSED)) + 2
        return self.question * width + self.answer + 1

    @cached_property
    def class_accuracy(self) -> FloatArray:
        """How right each sample's class is: the share of its samples that are.

        Programs that behave alike need not all pass; in a vote they stand for each other.
        """
        _, inverse = np.unique(self._class, return_inverse=True)
        size = np.bincount(inverse)
        return (np.bincount(inverse, weights=self.correct) / size)[inverse]

    def take(self, rows: IntArray | BoolArray) -> Answers:
        """Return these questions."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        sizes = self.n_samples[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        index = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
        return self._pick(np.repeat(self.offsets[rows], sizes) + index, offsets)

    def keep(self, mask: BoolArray) -> Answers:
        """Return these samples of all questions."""
        sizes = np.bincount(self.question[mask], minlength=len(self))
        return self._pick(np.flatnonzero(mask), np.concatenate([[0], np.cumsum(sizes)]))

    def first(self, n_samples: int) -> Answers:
        """Return the first samples of each question."""
        return self.keep(self.position < n_samples)

    @cached_property
    def position(self) -> IntArray:
        """Position of each sample within its question."""
        return np.arange(len(self.answer)) - self.offsets[self.question]

    def _pick(self, index: IntArray, offsets: IntArray) -> Answers:
        return Answers(
            offsets=offsets.astype(np.int64),
            answer=self.answer[index],
            correct=self.correct[index],
            score=None if self.score is None else self.score[index],
        )

    def halves(self, rng: np.random.Generator) -> tuple[Answers, Answers]:
        """Split every question's samples into two random halves; an odd one out is left over."""
        order = np.lexsort((rng.random(len(self.answer)), self.question))
        place = np.empty_like(order)
        place[order] = self.position
        half = (self.n_samples // 2)[self.question]
        return self.keep(place < half), self.keep((place >= half) & (place < 2 * half))

    def groups(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Questions with equally many samples: their rows, and the (n, R) indices of samples."""
        for size in np.unique(self.n_samples):
            rows = np.flatnonzero(self.n_samples == size)
            yield rows, self.offsets[rows][:, None] + np.arange(size)


def order_samples(answers: Answers, *, n_orders: int, length: int, seed: int) -> IntArray:
    """Random orders of each question's samples: indices (N, orders, length) of the first ones.

    Every question needs that many samples. Each order is uniform over all of them; together they
    form a Latin design, in which every sample comes about equally often at every place. That
    halves the noise of independent orders.
    """
    short = int(answers.n_samples.min(initial=length))
    if short < length:
        raise DataError(f"{length} samples are needed of every question, one has {short}")
    rng = np.random.default_rng(seed)
    index = np.empty((len(answers), n_orders, length), dtype=np.int64)
    for rows, samples in answers.groups():
        size = samples.shape[1]
        for start in range(0, n_orders, size):
            turn = np.arange(min(size, n_orders - start))
            ring = rng.permuted(samples, axis=1)
            offset = rng.permuted(np.broadcast_to(np.arange(size), samples.shape), axis=1)
            place = (turn[None, :, None] + offset[:, None, :length]) % size
            index[rows, start : start + len(turn)] = np.take_along_axis(
                ring[:, None, :], place, axis=2
            )
    return index
