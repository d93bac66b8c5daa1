"""Vote states: compared with direct counting and with all subsets."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.states import MAX_SAMPLES, find_state, states, vote_keys
from adacompute.core.utility import estimate
from adacompute.core.votes import majority_accuracy
from test_support.states import measure_states

Drawn = list[int]
drawn = st.lists(st.integers(UNPARSED, 4), min_size=1, max_size=MAX_SAMPLES)


def count(answers: Drawn) -> tuple[tuple[int, ...], int]:
    votes = Counter(answer for answer in answers if answer != UNPARSED)
    return tuple(sorted(votes.values(), reverse=True)), answers.count(UNPARSED)


def test_the_number_of_states_is_that_of_partitions() -> None:
    every = states()
    partitions = [1, 1, 2, 3, 5, 7, 11, 15, 22, 30, 42, 56, 77, 101, 135, 176, 231]
    assert len(every) == sum(p * (MAX_SAMPLES + 1 - n) for n, p in enumerate(partitions)) == 3370
    assert len(set(zip(every.votes, every.n_unparsed.tolist(), strict=True))) == len(every)
    assert len(np.unique(every.key)) == len(every)
    assert (np.diff(every.n_samples) >= 0).all()


@given(drawn)
def test_keys_find_the_counted_state(answers: Drawn) -> None:
    every = states()
    found = every.find(vote_keys(np.array([answers])))[0]
    for upto, state in enumerate(found):
        assert (every.votes[state], every.n_unparsed[state]) == count(answers[:upto])
        assert find_state(answers[:upto]) == state


def test_samples_after_the_last_state_are_ignored() -> None:
    assert vote_keys(np.zeros((2, MAX_SAMPLES + 5), dtype=np.int64)).shape == (2, MAX_SAMPLES + 1)
    assert vote_keys(np.zeros((3, 0), dtype=np.int64)).shape == (3, 1)


def test_backward_probabilities_sum_to_one() -> None:
    every = states()
    total = np.zeros(len(every))
    np.add.at(total, every.successor, every.backward_probability)
    assert total[every.n_samples > 0] == pytest.approx(1.0, abs=1e-12)
    last = every.n_samples == MAX_SAMPLES
    assert (every.backward_probability[last] == 0).all()
    steps = every.n_samples[every.successor] - every.n_samples[:, None]
    assert (steps[every.backward_probability > 0] == 1).all()


@st.composite
def recorded(draw: st.DrawFn) -> Answers:
    rows = draw(st.lists(st.lists(st.integers(UNPARSED, 3), min_size=5, max_size=5), min_size=1))
    right = [[a >= 0 and draw(st.booleans()) for a in row] for row in rows]
    return Answers.of(rows, right)


@settings(max_examples=25, deadline=None)
@given(recorded(), st.integers(1, 5))
def test_the_measure_is_that_of_all_subsets(answers: Answers, max_samples: int) -> None:
    every, measure = states(), measure_states(answers, max_samples)
    for i in range(len(answers)):
        one = answers.take(np.array([i]))
        for size in range(max_samples + 1):
            reached, right = np.zeros(len(every)), np.zeros(len(every))
            subsets = list(itertools.combinations(range(5), size))
            for subset in subsets:
                picked = one.answer[list(subset)][None, :]
                state = every.find(vote_keys(picked))[0, -1]
                reached[state] += 1 / len(subsets)
                value = (
                    majority_accuracy(picked, one.class_accuracy[list(subset)][None, :])[0]
                    if size
                    else 0.0
                )
                right[state] += value / len(subsets)
            layer = every.layer(size)
            assert measure.mass[layer, i] == pytest.approx(reached[layer], abs=1e-12)
            assert measure.correct_mass[layer, i] == pytest.approx(right[layer], abs=1e-12)


def test_the_measure_sums_to_one_and_to_the_exact_utility() -> None:
    rng = np.random.default_rng(0)
    answer = rng.integers(UNPARSED, 6, (700, 20))  # more than one block
    answers = Answers.of(answer.tolist(), (answer == 2).tolist())
    every, measure = states(), measure_states(answers, MAX_SAMPLES)
    utility = estimate(answers, range(1, MAX_SAMPLES + 1), standard_errors=False).utility
    for n in range(1, MAX_SAMPLES + 1):
        layer = every.layer(n)
        assert measure.mass[layer].sum(axis=0) == pytest.approx(1.0, abs=1e-12)
        assert measure.correct_mass[layer].sum(axis=0) == pytest.approx(
            utility[:, n - 1], abs=1e-11
        )
