"""Description: what is known of questions at a position, as a short vector of numbers.

It holds the shares of weight and of votes of the leading answer and of the second, what their best
samples say of themselves, how often answers differ, and how far the arms agree with the leader. It
does not depend on which answers these are. Decisions about all policies that see more than counts
of votes are linear in it, together with what the question's text says.

M rows, n samples each, C different answers. This module does not know prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray

N_SHARED = 18
"""Numbers of a description besides the agreement of each arm."""

LEADER = 6
"""Column of the log-odds of the leader's best sample."""

TIE = 1e-6
"""Relative difference of total weights up to which two answers are tied."""


class Description(NamedTuple):
    """Vectors (M, F), and which answers lead, (M, C)."""

    vector: FloatArray
    leads: BoolArray


def width(n_arms: int) -> int:
    """Return how many numbers describe a question that ``n_arms`` arms can be sampled for."""
    return N_SHARED + (n_arms if n_arms > 1 else 0)


class _Totals(NamedTuple):
    """Weight, votes, log-odds of the best and place of the first sample of answers, (M, C)."""

    weight: FloatArray
    votes: IntArray
    best: FloatArray
    first: IntArray


def _add_up(label: IntArray, log_odds: FloatArray, weight: FloatArray) -> _Totals:
    """Add up the samples of each answer."""
    shape = len(label), max(1, int(label.max()) + 1)
    row, column = np.nonzero(label != UNPARSED)
    cell, size = row * shape[1] + label[row, column], shape[0] * shape[1]
    best = np.full(size, -np.inf)
    np.maximum.at(best, cell, log_odds[row, column])
    total = np.asarray(np.bincount(cell, weight[row, column], size), dtype=np.float64)
    votes = np.bincount(cell, minlength=size)
    first = np.full(size, label.shape[1])
    np.minimum.at(first, cell, column)
    found = total.reshape(shape), votes.reshape(shape), best.reshape(shape)
    return _Totals(*found, first.reshape(shape))


def _find_largest(weight: FloatArray, first: IntArray) -> IntArray:
    """Return the answer of the largest weight, (M,); of equal ones, that of the first sample.

    Their numbers may depend on samples that come later.
    """
    is_largest = weight == weight.max(axis=1, keepdims=True)
    return np.asarray(np.where(is_largest, first, first.max() + 1).argmin(axis=1))


def describe(
    label: IntArray, log_odds: FloatArray, weight: FloatArray, counts: Sequence[int]
) -> Description:
    """Describe rows of samples, (M, n), of which ``counts`` are of each arm, one after another.

    ``label`` numbers the answers of a row from 0, −1 if unparsed.
    """
    n_rows, n = label.shape
    if not n:
        return Description(_start(n_rows, len(counts)), np.zeros((n_rows, 1), dtype=np.bool_))
    totals, is_parsed = _add_up(label, log_odds, weight), label != UNPARSED
    rows, leader = np.arange(n_rows), _find_largest(totals.weight, totals.first)
    largest = totals.weight[rows, leader]
    rest, others = totals.weight.copy(), totals.best.copy()
    rest[rows, leader], others[rows, leader] = -1.0, -np.inf
    second = _find_largest(rest, totals.first)
    has_second = rest[rows, second] > 0
    n_parsed, sums = is_parsed.sum(axis=1), np.maximum(totals.weight.sum(axis=1), TIE)
    none = n_parsed == 0
    share, second_share = largest / sums, np.maximum(rest[rows, second], 0.0) / sums
    vote_share = totals.votes[rows, leader] / n
    second_votes = np.where(has_second, totals.votes[rows, second], 0) / n
    leading = np.where(none, 0.0, totals.best[rows, leader])
    against = np.where(has_second, others.max(axis=1), 0.0)
    mean = np.where(is_parsed, log_odds, 0.0).sum(axis=1) / np.maximum(n_parsed, 1)
    alone, extra = ~has_second & ~none, share - vote_share
    lead = (share - second_share) - (vote_share - second_votes)
    columns = (
        *(none, share, second_share, vote_share, second_votes, share**2, leading, mean, alone),
        *(alone * leading, share * leading, against, (totals.votes > 0).sum(axis=1) / n),
        *(1.0 - n_parsed / n, lead, lead**2, extra, extra * leading),
        *_agreements((label == leader[:, None]) & is_parsed, counts),
    )
    vector = np.empty((n_rows, len(columns)))
    for i, one in enumerate(columns):
        vector[:, i] = one
    leads = (totals.weight >= largest[:, None] * (1 - TIE)) & (totals.votes > 0)
    return Description(vector, leads)


def _agreements(agrees: BoolArray, counts: Sequence[int]) -> list[FloatArray]:
    """Return the share of each arm's samples that agree with the leader; none of a single arm."""
    if len(counts) == 1:
        return []
    parts = np.split(agrees, np.cumsum(counts)[:-1], axis=1)
    return [one.sum(axis=1) / max(1, one.shape[1]) for one in parts]


def _start(n_rows: int, n_arms: int) -> FloatArray:
    """Return the description of questions without samples."""
    vector = np.zeros((n_rows, width(n_arms)))
    vector[:, 0] = 1.0
    return vector


def vote_accuracy(leads: BoolArray, accuracy: FloatArray) -> FloatArray:
    """Return how likely the vote is correct, (M,); tied answers share it."""
    correct = (leads * accuracy[:, : leads.shape[1]]).sum(axis=1)
    return np.asarray(correct / np.maximum(leads.sum(axis=1), 1))
