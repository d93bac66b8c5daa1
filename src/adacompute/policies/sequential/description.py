"""Description: what is known of questions at a position, as a short vector of numbers.

It holds the shares of weight and of votes of the leading answer and of the second, what their best
samples say of themselves, how often answers differ, and how far the arms agree with the leader. It
does not depend on which answers these are. Decisions about all policies that see more than counts
of votes are linear in it, together with what the question's text says.

M rows, n samples each, C different answers. This module does not know prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adacompute.core.answers import UNPARSED

if TYPE_CHECKING:
    from adacompute.core.types import BoolArray, FloatArray, IntArray

N_SHARED = 18
"""Numbers of a description besides the agreement of each arm."""

VOTE_SHARE, LEADER, UNPARSED_SHARE = 3, 6, 13
"""Columns of the leader's share of votes, the log-odds of its best sample, and unparsed samples."""

TIE = 1e-6
"""Relative difference of total weights up to which two answers are tied."""


class Description(NamedTuple):
    """Vectors (M, F), and which answers lead, (M, C)."""

    vector: FloatArray
    leads: BoolArray


def width(n_arms: int) -> int:
    """Return how many numbers describe a question that ``n_arms`` arms can be sampled for."""
    return N_SHARED + (n_arms if n_arms > 1 else 0)


class _Sums(NamedTuple):
    """What the samples of questions add up to: arrays with an entry per question, or numbers.

    ``weight``, ``votes`` and ``best`` (the largest log-odds) are of the leading answer and of the
    second; ``against`` is the largest log-odds of all answers but the leading one.
    """

    n_samples: Any
    n_parsed: Any
    n_answers: Any
    total_weight: Any
    total_log_odds: Any
    weight: Any
    votes: Any
    best: Any
    second_weight: Any
    second_votes: Any
    against: Any
    agreements: Sequence[Any]


def _list_numbers(of: _Sums) -> tuple[Any, ...]:
    """Return the numbers of a description, of many questions or of one."""
    n, none, alone = of.n_samples, of.n_parsed == 0, (of.n_parsed > 0) & (of.second_weight <= 0)
    share, second_share = of.weight / of.total_weight, of.second_weight / of.total_weight
    vote_share, second_votes = of.votes / n, of.second_votes / n
    extra, lead = share - vote_share, (share - second_share) - (vote_share - second_votes)
    mean = of.total_log_odds / (of.n_parsed + none)
    return (
        *(none, share, second_share, vote_share, second_votes, share * share, of.best, mean),
        *(alone, alone * of.best, share * of.best, of.against, of.n_answers / n),
        *(1.0 - of.n_parsed / n, lead, lead * lead, extra, extra * of.best),
        *of.agreements,
    )


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
        start = np.repeat(_start(len(counts))[None, :], n_rows, axis=0)
        return Description(start, np.zeros((n_rows, 1), dtype=np.bool_))
    totals, is_parsed = _add_up(label, log_odds, weight), label != UNPARSED
    rows, leader = np.arange(n_rows), _find_largest(totals.weight, totals.first)
    largest = totals.weight[rows, leader]
    rest, others = totals.weight.copy(), totals.best.copy()
    rest[rows, leader], others[rows, leader] = -1.0, -np.inf
    second = _find_largest(rest, totals.first)
    has_second = rest[rows, second] > 0
    n_parsed = is_parsed.sum(axis=1)
    columns = _list_numbers(
        _Sums(
            n_samples=n,
            n_parsed=n_parsed,
            n_answers=(totals.votes > 0).sum(axis=1),
            total_weight=np.maximum(totals.weight.sum(axis=1), TIE),
            total_log_odds=np.where(is_parsed, log_odds, 0.0).sum(axis=1),
            weight=largest,
            votes=totals.votes[rows, leader],
            best=np.where(n_parsed == 0, 0.0, totals.best[rows, leader]),
            second_weight=np.maximum(rest[rows, second], 0.0),
            second_votes=np.where(has_second, totals.votes[rows, second], 0),
            against=np.where(has_second, others.max(axis=1), 0.0),
            agreements=_agreements((label == leader[:, None]) & is_parsed, counts),
        )
    )
    vector = np.empty((n_rows, len(columns)))
    for i, one in enumerate(columns):
        vector[:, i] = one
    leads = (totals.weight >= largest[:, None] * (1 - TIE)) & (totals.votes > 0)
    return Description(vector, leads)


def describe_one(
    answer: Sequence[int],
    log_odds: Sequence[float],
    weight: Sequence[float],
    arm: Sequence[int],
    counts: Sequence[int],
) -> list[float]:
    """Return the vector of one question, whose samples can be of any ``arm`` in any order.

    It is that of ``describe``, without arrays: many of them would take most of the time.
    """
    if not answer:
        return [float(one) for one in _start(len(counts))]
    samples: Iterable[Any] = zip(arm, answer, log_odds, weight, strict=True)
    if len(counts) > 1:
        samples = sorted(samples, key=_FIRST)
    by_answer: dict[int, list[float]] = {}
    for _, one, odds, own in samples:
        totals = by_answer.get(one)
        if totals is None:
            by_answer[one] = [own, 1, odds, odds]
        else:
            totals[0] += own
            totals[1] += 1
            totals[2] = max(totals[2], odds)
            totals[3] += odds
    unparsed = by_answer.pop(UNPARSED, _NOTHING)
    ranked = sorted(by_answer.values(), key=_FIRST, reverse=True)  # keeps the order of equals
    first, second, *_ = [*ranked, _NOTHING, _NOTHING]
    agreements: list[float] = []
    if len(counts) > 1:
        leader = next((one for one, totals in by_answer.items() if totals is first), None)
        agreeing = [own for own, one in zip(arm, answer, strict=True) if one == leader]
        agreements = [agreeing.count(own) / max(1, n) for own, n in enumerate(counts)]
    sums = _Sums(
        n_samples=len(answer),
        n_parsed=len(answer) - unparsed[1],
        n_answers=len(ranked),
        total_weight=max(sum([totals[0] for totals in ranked]), TIE),
        total_log_odds=sum([totals[3] for totals in ranked]),
        weight=first[0],
        votes=first[1],
        best=first[2],
        second_weight=second[0],
        second_votes=second[1],
        against=max([totals[2] for totals in ranked[1:]], default=0.0),
        agreements=agreements,
    )
    return list(_list_numbers(sums))


_FIRST = itemgetter(0)
_NOTHING = [0.0, 0, 0.0, 0.0]


def _agreements(agrees: BoolArray, counts: Sequence[int]) -> list[FloatArray]:
    """Return the share of each arm's samples that agree with the leader; none of a single arm."""
    if len(counts) == 1:
        return []
    parts = np.split(agrees, np.cumsum(counts)[:-1], axis=1)
    return [one.sum(axis=1) / max(1, one.shape[1]) for one in parts]


def _start(n_arms: int) -> FloatArray:
    """Return the vector of a question without samples."""
    vector = np.zeros(width(n_arms))
    vector[0] = 1.0
    return vector


def vote_accuracy(leads: BoolArray, accuracy: FloatArray) -> FloatArray:
    """Return how likely the vote is correct, (M,); tied answers share it."""
    correct = (leads * accuracy[:, : leads.shape[1]]).sum(axis=1)
    return np.asarray(correct / np.maximum(leads.sum(axis=1), 1))
