"""Running votes: totals by answer after every sample, in many orders of the samples at once.

The answers of each order are numbered by their first sample, so that the totals of M orders fit in
one array, (C, M): numpy adds up over its first axis faster. Rules that only stop or weight votes
are replayed from these totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.answers import Answers
    from adacompute.core.types import FloatArray, IntArray

TIE = 1e-12
"""Relative difference of totals up to which two answers are tied."""


class OrderedVotes(NamedTuple):
    """Answers of M orders: the number of each sample's answer (M, n), and their accuracies (C, M).

    An answer that could not be parsed is −1.
    """

    label: IntArray
    accuracy: FloatArray


def label_orders(answers: Answers, index: IntArray) -> OrderedVotes:
    """Number the answers of orders of recorded samples, which are given by indices, (M, n)."""
    answer, accuracy = answers.answer[index], answers.class_accuracy[index]
    label = np.full(answer.shape, UNPARSED)
    n_answers = np.zeros(len(answer), dtype=np.int64)
    for i in range(answer.shape[1]):
        first = (answer[:, : i + 1] == answer[:, i : i + 1]).argmax(axis=1)
        known = label[np.arange(len(answer)), first]
        is_new = (first == i) & (answer[:, i] != UNPARSED)
        label[:, i] = np.where(is_new, n_answers, known)
        n_answers += is_new
    by_answer = np.zeros((max(1, int(n_answers.max(initial=0))), len(answer)))
    row, column = np.nonzero(label != UNPARSED)
    by_answer[label[row, column], row] = accuracy[row, column]
    return OrderedVotes(label, by_answer)


def running_totals(votes: OrderedVotes, weight: FloatArray | None = None) -> Iterator[FloatArray]:
    """Yield the total weight of each answer after 1, 2, … samples, (C, M), always the same array.

    Without ``weight`` (M, n) every sample counts once. After n samples there are at most n answers.
    """
    total = np.zeros(votes.accuracy.shape)
    row = np.arange(len(votes.label))
    for i, label in enumerate(votes.label.T):
        parsed = label != UNPARSED
        added = 1.0 if weight is None else weight[parsed, i]
        total[label[parsed], row[parsed]] += added
        yield total


def leader_accuracy(
    total: FloatArray, accuracy: FloatArray, has_votes: np.ndarray | None = None
) -> FloatArray:
    """Return how likely the answer with the largest total is correct, (M,); tied answers share.

    Totals are those of the first answers, (k, M). Answers without votes do not lead; by default
    they are those with a total of 0.
    """
    voted = total > 0 if has_votes is None else has_votes
    known = np.where(voted, total, -np.inf)
    best = known.max(axis=0)
    leads = voted & (known >= best - TIE * np.abs(best))
    correct = (leads * accuracy[: len(total)]).sum(axis=0)
    return np.asarray(correct / np.maximum(1, leads.sum(axis=0)))


def weighted_accuracies(votes: OrderedVotes, weight: FloatArray | None = None) -> FloatArray:
    """Return how likely the vote after 1, 2, … samples is correct, (M, n)."""
    totals = enumerate(running_totals(votes, weight), start=1)
    return np.stack([leader_accuracy(total[:n], votes.accuracy) for n, total in totals], axis=1)
