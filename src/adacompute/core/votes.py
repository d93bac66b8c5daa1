"""Votes: combine several samples of one question into one answer.

Arrays are (M, n): M votes over n samples each. A sample whose answer could not be parsed does not
vote, and a vote without any parsed sample is wrong. ``…_accuracy`` functions break ties uniformly,
in expectation. ``winner`` must return one sample: it breaks ties in favour of the answer seen
first.

This module does not know prices or policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray


def majority_accuracy(answer: IntArray, class_accuracy: FloatArray) -> FloatArray:
    """Probability that the most frequent answer is correct, (M,).

    >>> float(majority_accuracy(np.array([[0, 1]]), np.array([[1.0, 0.0]]))[0])
    0.5
    """
    # All leading classes have equally many votes: the mean over samples is that over classes.
    leads = _leaders(answer)
    return _ratio((leads * class_accuracy).sum(axis=1), leads.sum(axis=1))


def running_accuracy(answer: IntArray, class_accuracy: FloatArray) -> FloatArray:
    """Probability that the most frequent answer is correct after each sample, (M, n)."""
    value = np.zeros(answer.shape)
    for n in range(1, answer.shape[1] + 1):
        leads = _leaders(answer[:, :n])
        value[:, n - 1] = _ratio((leads * class_accuracy[:, :n]).sum(axis=1), leads.sum(axis=1))
    return value


def winner(answer: IntArray) -> IntArray:
    """Return the first sample of each vote's winning class, −1 if no answer could be parsed.

    Ties go to the class seen first.

    >>> winner(np.array([[0, 1], [-1, 1]])).tolist()
    [0, 1]
    """
    leads = _leaders(answer)
    return np.where((answer != UNPARSED).any(axis=1), leads.argmax(axis=1), -1)


def _leaders(answer: IntArray) -> BoolArray:
    """Return which samples belong to a leading class, (M, n)."""
    parsed = answer != UNPARSED
    same = (answer[:, :, None] == answer[:, None, :]) & parsed[:, None, :]
    total = same.sum(axis=2)
    leads: BoolArray = (total == total.max(axis=1, keepdims=True)) & parsed
    return leads


def _ratio(value: FloatArray, count: FloatArray | IntArray) -> FloatArray:
    """Divide, with 0 where the count is 0."""
    out: FloatArray = np.zeros(value.shape)
    np.divide(value, count, out=out, where=count > 0)
    return out


@dataclass(frozen=True, eq=False)
class Tally:
    """Vote counts after each sample, (M, n): column i is the state after i + 1 samples.

    ``leading`` and ``runner_up`` are the two largest counts, ``n_parsed`` is the number of parsed
    samples, and ``streak`` is the number of equal parsed answers in a row up to this sample.
    """

    leading: IntArray
    runner_up: IntArray
    n_parsed: IntArray
    streak: IntArray


def tally(answer: IntArray) -> Tally:
    """Count votes after every sample.

    >>> tally(np.array([[0, 1, -1, 1]])).leading.tolist()
    [[1, 1, 1, 2]]
    """
    n_votes, n_samples = answer.shape
    leading, runner_up, parsed, streak = (
        np.zeros((n_votes, n_samples), np.int64) for _ in range(4)
    )
    top, second, seen, run = (np.zeros(n_votes, np.int64) for _ in range(4))
    leader, previous = np.full(n_votes, UNPARSED), np.full(n_votes, UNPARSED)
    for i in range(n_samples):
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
        for column, value in ((leading, top), (runner_up, second), (parsed, seen), (streak, run)):
            column[:, i] = value
    return Tally(leading, runner_up, parsed, streak)
