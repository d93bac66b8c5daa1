"""The truth that savings are compared with: exact optima, and policies on fresh questions."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest

from adacompute.core.states import states
from adacompute.evaluation.experiment import Experiment
from adacompute.evaluation.factories import find_factory
from benchmarks.savings_truth import (
    cheapest_cost,
    draw_alike,
    first_crossing,
    is_inside,
    measure_distribution,
    measure_policy,
    vary_mix,
)
from test_support.pools import record_samples
from test_support.populations import Population


def three_votes(p: float) -> float:
    return p**3 + 3 * p**2 * (1 - p)


@pytest.mark.parametrize("p", [0.6, 0.8, 0.95])
def test_as_accurate_as_three_votes_is_two_that_agree_or_else_a_third(p: float) -> None:
    measure = measure_distribution(np.array([p, 1 - p]), 0.0, 3)
    assert cheapest_cost(measure, three_votes(p)) == pytest.approx(2 + 2 * p * (1 - p), abs=1e-6)


def test_an_accuracy_between_two_rules_costs_what_their_mixture_does() -> None:
    p = 0.8
    measure = measure_distribution(np.array([p, 1 - p]), 0.0, 3)
    middle = (p + three_votes(p)) / 2
    assert cheapest_cost(measure, middle) == pytest.approx((1 + 2 + 2 * p * (1 - p)) / 2, abs=1e-6)


def test_two_votes_and_a_vote_that_gets_worse_are_worth_one_sample() -> None:
    for p in (0.3, 0.8):
        measure = measure_distribution(np.array([p, 1 - p]), 0.0, 8)
        accuracy = p if p > 0.5 else three_votes(p)
        assert cheapest_cost(measure, accuracy) == pytest.approx(1.0, abs=1e-6)


def test_an_unparsed_sample_is_worth_another_one() -> None:
    unparsed = 0.25
    measure = measure_distribution(np.array([1.0]), unparsed, 2)
    accuracy = 1 - unparsed**2
    assert cheapest_cost(measure, accuracy) == pytest.approx(1 + unparsed, abs=1e-6)


def test_states_of_a_distribution_are_those_of_all_sequences_of_answers() -> None:
    probability, unparsed = np.array([0.5, 0.3, 0.2]), 0.1
    chance = [*(probability * (1 - unparsed)), unparsed]
    measure, table = measure_distribution(probability, unparsed, 4), states()
    mass, correct = defaultdict[int, float](float), defaultdict[int, float](float)
    for size in range(5):
        for sequence in itertools.product(range(4), repeat=size):
            count = np.bincount(sequence, minlength=4)
            votes = tuple(sorted((int(n) for n in count[:3] if n), reverse=True))
            state = next(
                i
                for i, v in enumerate(table.votes)
                if v == votes and table.n_unparsed[i] == count[3]
            )
            value = float(np.prod([chance[answer] for answer in sequence]))
            mass[state] += value
            if votes and count[0] == votes[0]:
                correct[state] += value / votes.count(votes[0])
    for i in range(len(measure.mass)):
        assert measure.mass[i, 0] == pytest.approx(mass[i])
        assert measure.correct_mass[i, 0] == pytest.approx(correct[i])


def test_states_of_a_distribution_agree_with_the_accuracy_of_a_vote() -> None:
    population = draw_alike(2, seed=9)
    measure = measure_distribution(population.probability[0], population.unparsed_rate, 8)
    accuracy = measure.correct_mass[states().layer(5)].sum()
    assert accuracy == pytest.approx(population.true_utility((5,))[0, 0])


def test_first_crossing_is_the_smallest_cost_even_if_accuracy_falls_again() -> None:
    cost = np.array([1.0, 2.0, 3.0, 4.0])
    assert first_crossing(cost, np.array([0.1, -0.1, 0.0, 0.2])) == 1.0
    assert first_crossing(cost, np.array([-0.1, 0.1, -0.1, 0.2])) == pytest.approx(1.5)
    assert first_crossing(cost, np.full(4, -0.1)) is None


def test_a_saving_that_does_not_exist_is_below_every_other() -> None:
    assert is_inside(0.3, 0.2, 0.4)
    assert not is_inside(0.1, 0.2, 0.4)
    assert not is_inside(0.5, 0.2, 0.4)
    assert is_inside(-0.5, None, 0.4)
    assert not is_inside(0.5, None, 0.4)
    assert is_inside(None, None, 0.4)
    assert is_inside(None, None, None)
    assert not is_inside(None, 0.2, 0.4)
    assert not is_inside(0.0, None, None)


def test_a_policy_is_measured_beside_the_vote_on_the_same_samples() -> None:
    population = Population(
        np.tile([0.7, 0.3], (2000, 1)), np.zeros((2000, 1), dtype=np.float32), unparsed_rate=0.1
    )
    experiment = Experiment(record_samples(population, 8, seed=1), (1, 2, 4, 8))
    fixed = experiment.fit_final(find_factory("mixture"))
    sequences = [record_samples(population, 8, seed=seed) for seed in (2, 3)]
    found = measure_policy(fixed, sequences, fixed.prices, today=1)
    exact = population.true_utility(range(1, 9))[0]
    assert found.today_accuracy == pytest.approx(exact[0], abs=0.02)
    assert found.cost[0] == 1
    assert found.difference[0] == found.error[0] == 0
    last = round(found.cost[-1])
    assert found.difference[-1] == pytest.approx(
        exact[last - 1] - exact[0], abs=4 * found.error[-1]
    )
    assert 0 < found.error[-1] < 0.02


def test_populations_differ_and_repeat_themselves() -> None:
    mixes = [vary_mix(seed) for seed in range(4)]
    assert {(mix.n_samples, mix.signal > 0) for mix in mixes} == {
        *((8, False), (8, True), (16, False), (16, True)),
    }
    one, again = (mixes[3].draw(50, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.probability, again.probability)
    np.testing.assert_allclose(one.probability.sum(axis=1), 1)


def test_a_signal_tells_the_difficulty() -> None:
    for seed in (1, 3):
        mix = vary_mix(seed)
        population = mix.draw(5000, seed=seed)
        right = population.probability[:, 0]
        correlation = np.corrcoef(right, population.features[:, 1])[0, 1]
        assert (correlation > 0.3) == (mix.signal > 0)
