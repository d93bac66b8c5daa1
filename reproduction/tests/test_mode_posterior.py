"""Mode posterior: agrees with enumerating every outcome of the votes."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from reproduction.mode_posterior import list_vote_counts, measure_modes, vote_state_numbers

MAX_VOTES = 7
COUNTS = np.array([[5, 3, 2, 0], [4, 4, 1, 1], [10, 0, 0, 0], [7, 1, 1, 1], [1, 2, 3, 4]])


def enumerate_posterior(shapes: list[list[float]], n_votes: int) -> dict[tuple[int, ...], float]:
    """Return the probability that the answer named first is the mode, by the counts of votes.

    Of answers with equally many votes, each is named first equally often.
    """
    mass: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for shape in shapes:
        for counts in itertools.product(range(n_votes + 1), repeat=len(shape)):
            if sum(counts) != n_votes:
                continue
            chance = float(math.factorial(n_votes))
            for share, count in zip(shape, counts, strict=True):
                chance *= share**count / math.factorial(count)
            first, second, *_ = sorted(counts, reverse=True)
            state = (first, second, n_votes - first - second)
            n_first = counts.count(first)
            mass[state][0] += chance * (counts[0] == first) / n_first
            mass[state][1] += chance
    return {state: leading / total for state, (leading, total) in mass.items() if total > 0}


@pytest.mark.parametrize("rows", [[0], [2], [0, 1, 2, 3, 4]], ids=str)
def test_posterior_is_that_of_all_outcomes(rows: list[int]) -> None:
    posterior = measure_modes(COUNTS, MAX_VOTES).posterior(np.array(rows))
    shapes = [sorted((COUNTS[row] / COUNTS[row].sum()).tolist(), reverse=True) for row in rows]
    n_compared = 0
    for n_votes in range(1, MAX_VOTES + 1):
        for state, expected in enumerate_posterior(shapes, n_votes).items():
            number = vote_state_numbers(MAX_VOTES)[state]
            assert posterior[number] == pytest.approx(expected, abs=1e-9), state
            n_compared += 1
    assert n_compared >= MAX_VOTES


def test_a_state_that_no_question_can_produce_has_probability_zero() -> None:
    posterior = measure_modes(COUNTS, MAX_VOTES).posterior(np.array([2]))
    numbers = vote_state_numbers(MAX_VOTES)
    assert posterior[numbers[3, 0, 0]] == 1.0
    assert posterior[numbers[2, 1, 0]] == 0.0


def test_states_are_numbered_in_their_order() -> None:
    numbers = vote_state_numbers(5)
    for number, counts in enumerate(list_vote_counts(5)):
        assert numbers[counts] == number
    assert numbers[1, 2, 0] == -1
    assert sum(n >= 0 for n in numbers.ravel().tolist()) == len(list_vote_counts(5))


def test_many_questions_are_measured_in_blocks() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(9, rng.dirichlet(np.ones(6), size=400))
    together = measure_modes(counts, 6)
    alone = measure_modes(counts[123:124], 6)
    np.testing.assert_allclose(together.leading[123], alone.leading[0], rtol=1e-9)
    np.testing.assert_allclose(together.total[123], alone.total[0], rtol=1e-9)
