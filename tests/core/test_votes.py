from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.answers import UNPARSED
from adacompute.core.types import FloatArray, IntArray
from adacompute.core.votes import (
    majority_accuracy,
    running_accuracy,
    tally,
    winner,
)


@st.composite
def _votes(draw: st.DrawFn) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return answers, an accuracy per class, and weights that are multiples of 1/8."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 7)))
    answer = draw(arrays(np.int64, shape, elements=st.integers(UNPARSED, 3)))
    by_class = draw(arrays(np.float64, 5, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])))
    by_class[0] = 0.0
    weight = draw(arrays(np.float64, shape, elements=st.integers(-4, 8).map(lambda n: n / 8)))
    return answer, by_class[answer + 1], weight


votes = _votes()


def leaders(answer: list[int], weight: list[float]) -> list[int]:
    """Return the classes with the largest total weight, in order of appearance."""
    total: dict[int, Fraction] = {}
    for a, w in zip(answer, weight, strict=True):
        if a != UNPARSED:
            total[a] = total.get(a, Fraction()) + Fraction(w)
    return [a for a, t in total.items() if t == max(total.values())]


def chance(answer: list[int], share: list[float], weight: list[float]) -> float:
    of_class = dict(zip(answer, share, strict=True))
    best = leaders(answer, weight)
    return float(sum(Fraction(of_class[a]) for a in best) / len(best)) if best else 0.0


@given(votes)
def test_majority_accuracy_agrees_with_counting(
    vote: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    answer, share, _ = vote
    expected = [
        chance(a, s, [1.0] * len(a)) for a, s in zip(answer.tolist(), share.tolist(), strict=True)
    ]
    assert np.allclose(majority_accuracy(answer, share), expected, atol=1e-15, rtol=0)


@given(votes)
def test_the_winner_is_the_first_sample_of_the_leading_class_seen_first(
    vote: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    answer = vote[0]
    for row, a in zip(winner(answer).tolist(), answer.tolist(), strict=True):
        best = leaders(a, [1.0] * len(a))
        assert row == (a.index(best[0]) if best else -1)


def prefix_counts(answer: list[int]) -> list[int]:
    """Return the counts of the parsed classes, largest first."""
    return sorted(Counter(a for a in answer if a != UNPARSED).values(), reverse=True)


@given(votes)
def test_a_tally_agrees_with_counting_every_prefix(
    vote: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    answer = vote[0]
    state = tally(answer)
    for row, draws in enumerate(answer.tolist()):
        for i in range(len(draws)):
            upto = draws[: i + 1]
            counts = [*prefix_counts(upto), 0, 0]
            last, run = [(a, len(list(group))) for a, group in groupby(upto)][-1]
            assert state.leading[row, i] == counts[0]
            assert state.runner_up[row, i] == counts[1]
            assert state.n_parsed[row, i] == sum(counts)
            assert state.streak[row, i] == (run if last != UNPARSED else 0)


@given(votes)
def test_running_accuracy_is_that_of_every_prefix(
    vote: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    answer, share, _ = vote
    value = running_accuracy(answer, share)
    for i in range(answer.shape[1]):
        expected = majority_accuracy(answer[:, : i + 1], share[:, : i + 1])
        assert np.allclose(value[:, i], expected, atol=1e-15, rtol=0)
