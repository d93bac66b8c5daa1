"""Votes: how several samples of one question become one answer.

Arrays are (M, n): M votes over n samples each. An unreadable answer abstains, a vote of nothing
else is wrong. Ties are broken uniformly in expectation where a vote is valued, and towards the
first sample where one answer must be given; or, where log-probabilities are given, towards the
class of the likeliest sample. It knows nothing of prices or policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray


def majority_accuracy(answer: IntArray, share: FloatArray) -> FloatArray:
    """Chance that the most frequent answer is right, ties broken uniformly.

    >>> float(majority_accuracy(np.array([[0, 1]]), np.array([[1.0, 0.0]]))[0])
    0.5
    """
    return weighted_accuracy(answer, share, np.ones(answer.shape))


def weighted_accuracy(answer: IntArray, share: FloatArray, weight: FloatArray) -> FloatArray:
    """Chance that the answer of largest total weight is right, ties broken uniformly."""
    readable, same, total = _totals(answer, weight)
    leads = (total == total.max(axis=1, keepdims=True)) & readable
    per_class = np.where(leads, 1.0 / np.maximum(1, same.sum(axis=2)), 0.0)
    tied = per_class.sum(axis=1)
    value = (per_class * share).sum(axis=1)
    return _ratio(value, tied)


def _totals(answer: IntArray, weight: FloatArray) -> tuple[BoolArray, BoolArray, FloatArray]:
    """Which samples are readable, which pairs agree, and each sample's weight of its class."""
    readable = answer != UNPARSED
    same = (answer[:, :, None] == answer[:, None, :]) & readable[:, None, :]
    total = np.where(same, weight[:, None, :], 0.0).sum(axis=2)
    return readable, same, np.where(readable, total, -np.inf)


def _ratio(value: FloatArray, count: FloatArray | IntArray) -> FloatArray:
    out: FloatArray = np.zeros(value.shape)
    np.divide(value, count, out=out, where=count > 0)
    return out


def best_of_accuracy(answer: IntArray, right: FloatArray, score: FloatArray) -> FloatArray:
    """Chance that the sample of largest score is right, ties broken uniformly."""
    readable = answer != UNPARSED
    value = np.where(readable, score, -np.inf)
    best = (value == value.max(axis=1, keepdims=True)) & readable
    tied = best.sum(axis=1)
    return _ratio((best * right).sum(axis=1), tied)


def any_correct(right: FloatArray) -> FloatArray:
    """Whether some sample is right (pass@n): an upper bound no vote can be sure to reach."""
    return np.asarray(right.max(axis=1, initial=0.0), dtype=np.float64)


def winner(
    answer: IntArray, weight: FloatArray | None = None, *, logprob: FloatArray | None = None
) -> IntArray:
    """First sample of the winning class of each vote, −1 where nothing was readable.

    Ties go to the class that was seen first, or with log-probabilities to that of the likeliest
    sample; where one is not known, it is likelier than none.

    >>> winner(np.array([[0, 1]]), logprob=np.array([[-0.9, -0.2]])).tolist()
    [1]
    """
    weight = np.ones(answer.shape) if weight is None else weight
    readable, same, total = _totals(answer, weight)
    leads = (total == total.max(axis=1, keepdims=True)) & readable
    if logprob is not None:
        leads &= _likeliest(leads, same, logprob)
    place = leads.argmax(axis=1)  # the first of equals
    return np.where(readable.any(axis=1), place, -1)


def _likeliest(leads: BoolArray, same: BoolArray, logprob: FloatArray) -> BoolArray:
    """Which of the leading samples are of the class that holds the likeliest one of theirs."""
    known = np.where(np.isnan(logprob), -np.inf, logprob)
    best = np.where(same, known[:, None, :], -np.inf).max(axis=2)
    best = np.where(leads, best, -np.inf)
    return np.asarray(best == best.max(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Tally:
    """Votes after each draw, (M, n): column i holds the state with i + 1 draws.

    ``leading`` and ``runner_up`` are the two largest counts, ``n_parsed`` the number of readable
    draws, ``streak`` how many draws in a row, this one included, gave this readable answer.
    """

    leading: IntArray
    runner_up: IntArray
    n_parsed: IntArray
    streak: IntArray


def tally(answer: IntArray) -> Tally:
    """Count votes after every draw.

    >>> tally(np.array([[0, 1, -1, 1]])).leading.tolist()
    [[1, 1, 1, 2]]
    """
    votes, draws = answer.shape
    leading, runner_up, readable, streak = (np.zeros((votes, draws), np.int64) for _ in range(4))
    top, second, seen, run = (np.zeros(votes, np.int64) for _ in range(4))
    leader, previous = np.full(votes, UNPARSED), np.full(votes, UNPARSED)
    for i in range(draws):
        now = answer[:, i]
        valid = now != UNPARSED
        count = ((answer[:, : i + 1] == now[:, None]).sum(axis=1)) * valid
        ahead = (now == leader) & valid
        overtakes = valid & ~ahead & (count > top)
        behind = np.where(valid & ~ahead, np.maximum(second, count), second)
        second = np.where(overtakes, top, behind)
        top = np.where(ahead | overtakes, count, top)
        leader = np.where(overtakes, now, leader)
        seen = seen + valid
        run = np.where(valid, np.where(now == previous, run + 1, 1), 0)
        previous = now
        for column, value in ((leading, top), (runner_up, second), (readable, seen), (streak, run)):
            column[:, i] = value
    return Tally(leading, runner_up, readable, streak)


def running_accuracy(
    answer: IntArray, share: FloatArray, logprob: FloatArray | None = None
) -> FloatArray:
    """Chance that the majority is right after each draw, (M, n)."""
    readable = answer != UNPARSED
    value = np.zeros(answer.shape)
    for i in range(answer.shape[1]):
        upto = answer[:, : i + 1]
        same = (upto[:, :, None] == upto[:, None, :]) & readable[:, None, : i + 1]
        count = same.sum(axis=2)
        # Every leading class has equally many votes, so their mean is that of their samples.
        leads = (count == count.max(axis=1, keepdims=True)) & (count > 0)
        if logprob is not None:
            leads &= _likeliest(leads, same, logprob[:, : i + 1])
        value[:, i] = _ratio((leads * share[:, : i + 1]).sum(axis=1), leads.sum(axis=1))
    return value
