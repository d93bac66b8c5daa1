"""Mode posterior: how likely the leading answer is the most frequent one, given past questions.

The *shape* of a question is the sorted shares of its answers. Past questions give a prior over
shapes, and which answer has which share is unknown. Of the votes, only the counts of the two
leading answers and the sum of all others are used (Huang, Ma and Zhou, 2026: three groups are
enough). The others may not have more votes than the second; of answers with equally many votes, any
may have been named first. Both are part of the likelihood.

N questions, D different shares, S states of the votes. It does not know policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from adacompute.core.types import FloatArray, IntArray

BLOCK_SIZE = 128
"""Shapes that are computed at a time; those of a block have about equally many shares."""


@lru_cache
def list_vote_counts(max_votes: int) -> tuple[tuple[int, int, int], ...]:
    """Return the states: votes of the first and of the second answer, and of all others.

    >>> list_vote_counts(2)
    ((1, 0, 0), (2, 0, 0), (1, 1, 0))
    """
    unanimous = [(n, 0, 0) for n in range(1, max_votes + 1)]
    return (
        *unanimous,
        *(
            (first, second, rest)
            for second in range(1, max_votes // 2 + 1)
            for first in range(second, max_votes - second + 1)
            for rest in range(max_votes - second - first + 1)
        ),
    )


@lru_cache
def vote_state_numbers(max_votes: int) -> IntArray:
    """Return the number of the state with these three counts, −1 if there is none."""
    numbers = np.full((max_votes + 1,) * 3, -1)
    for number, counts in enumerate(list_vote_counts(max_votes)):
        numbers[counts] = number
    return numbers


@dataclass(frozen=True, eq=False)
class ModeLikelihoods:
    """Likelihoods of the states under the shape of each question, both (N, S).

    Those of a state have a common factor. ``leading`` is the part in which the first answer is the
    most frequent one.
    """

    leading: FloatArray
    total: FloatArray

    def posterior(self, rows: IntArray) -> FloatArray:
        """Return the probability that the first answer is the mode, (S,).

        Any of the given questions' shapes is equally likely before the votes. A state that none of
        them can produce has probability 0.
        """
        leading, total = self.leading[rows].sum(axis=0), self.total[rows].sum(axis=0)
        return np.asarray(leading / np.where(total > 0, total, 1.0))


def measure_modes(counts: IntArray, max_votes: int) -> ModeLikelihoods:
    """Return the likelihoods of up to so many votes, from the class counts of questions, (N, C)."""
    ordered = -np.sort(-counts, axis=1)
    shares = ordered / np.maximum(1, ordered.sum(axis=1, keepdims=True))
    shape, question = np.unique(shares, axis=0, return_inverse=True)
    share, times = _distinct(shape)
    order = np.argsort((times > 0).sum(axis=1), kind="stable")
    leading, total = np.zeros((2, len(shape), len(list_vote_counts(max_votes))))
    for start in range(0, len(shape), BLOCK_SIZE):
        rows = order[start : start + BLOCK_SIZE]
        width = max(1, int((times[rows] > 0).sum(axis=1).max()))
        leading[rows], total[rows] = _measure_block(
            share[rows, :width], times[rows, :width], max_votes
        )
    return ModeLikelihoods(leading[question.ravel()], total[question.ravel()])


def _measure_block(
    share: FloatArray, times: IntArray, max_votes: int
) -> tuple[FloatArray, FloatArray]:
    states = list_vote_counts(max_votes)
    leading, total = np.zeros((2, len(share), len(states)))
    by_second = {
        second: _others(share, times, second, max_votes) for second in range(1, max_votes // 2 + 1)
    }
    for number, (first, second, rest) in enumerate(states):
        power = share**first
        if second:
            power = power * by_second[second][int(first == second), :, :, rest]
        leading[:, number] = power[:, 0]
        total[:, number] = (times * power).sum(axis=1)
    return leading, total


def _distinct(shape: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the different shares of each shape, the largest first, and how often each occurs."""
    rank = np.cumsum(np.diff(shape, axis=1, prepend=shape[:, :1]) != 0, axis=1)
    width = int(rank.max(initial=0)) + 1
    row = np.broadcast_to(np.arange(len(shape))[:, None], shape.shape)
    share, times = np.zeros((len(shape), width)), np.zeros((len(shape), width), dtype=np.int64)
    share[row, rank] = shape
    np.add.at(times, (row, rank), shape > 0)
    return share, times


def _others(share: FloatArray, times: IntArray, second: int, max_votes: int) -> FloatArray:
    """Return the likelihood of all votes but the first answer's, (2, N, D, rest), by its share.

    The second answer has ``second`` votes, and no other has more. The first entry is for a first
    answer with more votes, the second for one with as many. Others with as many as the second could
    have been named in its place: the likelihood is divided by the number of choices, which is an
    integral over a factor of each such answer, and Gauss' quadrature is exact for it. If the second
    answer has one vote, so have all others, and the number of choices is a common factor.
    """
    n_rest = max_votes - 2 * second
    n_nodes = 1 if second == 1 else (n_rest // second + 1) // 2 + 1
    node, weight = np.polynomial.legendre.leggauss(n_nodes)
    node, weight = (node + 1) / 2, weight / 2
    term = np.zeros((len(node), *share.shape, n_rest + 1))
    for votes in range(min(second, n_rest) + 1):
        term[..., votes] = share**votes / math.factorial(votes)
    if second <= n_rest:
        term[..., second] *= node[:, None, None]
    choices = np.stack([weight, 2 * weight * (1 - node)])
    factorial = np.array([float(math.factorial(n)) for n in range(n_rest + 1)])
    others = np.zeros((2, *share.shape, n_rest + 1))
    voted = share**second
    for i, j, product in _leave_two_out(term, times, second + 1):
        likelihood = np.einsum("wy,ynr->wnr", choices, product) * factorial
        if i == j:
            others[:, :, i] += ((times[:, i] - 1) * voted[:, i])[:, None] * likelihood
        else:
            others[:, :, i] += (times[:, j] * voted[:, j])[:, None] * likelihood
            others[:, :, j] += (times[:, i] * voted[:, i])[:, None] * likelihood
    return others


def _leave_two_out(
    term: FloatArray, times: IntArray, n_terms: int
) -> list[tuple[int, int, FloatArray]]:
    """Return the product of the series of all answers but two, for all pairs of shares i ≤ j.

    The series of one answer has so many terms.
    """
    width, one = times.shape[1], np.zeros_like(term)
    one[..., 0] = 1.0
    every, without, without_two = one.copy(), one.copy(), one.copy()
    power = one
    for exponent in range(int(times.max(initial=0)) + 1):
        for target, left_out in ((every, 0), (without, 1), (without_two, 2)):
            rows = times == exponent + left_out
            target[:, rows] = power[:, rows]
        power = _multiply(power, term, n_terms)
    after = [one[:, :, 0]]
    for d in range(width - 1, 0, -1):
        after.insert(0, _multiply(after[0], every[:, :, d]))
    found, before = [], one[:, :, 0]
    for i in range(width):
        outside = _multiply(before, after[i])
        found.append((i, i, _multiply(outside, without_two[:, :, i])))
        running = _multiply(before, without[:, :, i])
        for j in range(i + 1, width):
            found.append((i, j, _multiply(_multiply(running, without[:, :, j]), after[j])))
            running = _multiply(running, every[:, :, j])
        before = _multiply(before, every[:, :, i])
    return found


def _multiply(one: FloatArray, other: FloatArray, n_terms: int | None = None) -> FloatArray:
    """Multiply power series, whose coefficients are on the last axis; the second can be short."""
    product = np.zeros_like(one)
    size = one.shape[-1]
    for n in range(size if n_terms is None else min(size, n_terms)):
        product[..., n:] += one[..., : size - n] * other[..., n : n + 1]
    return product
