from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from adacompute.core.utility import estimate
from test_support.populations import ARCHETYPES, Population, make_population


def enumerate_votes(chance: tuple[float, ...], null_rate: float, samples: int) -> float:
    """Return the mean accuracy of the vote over all sequences of answers."""
    total = 0.0
    readable = [(1 - null_rate) * c for c in chance]
    for drawn in itertools.product([*range(len(chance)), -1], repeat=samples):
        votes = Counter(a for a in drawn if a >= 0)
        best = [a for a in votes if votes[a] == max(votes.values())]
        worth = 1 / len(best) if 0 in best else 0.0
        total += worth * float(np.prod([null_rate if a < 0 else readable[a] for a in drawn]))
    return total


@pytest.mark.parametrize("null_rate", [0.0, 0.3])
def test_true_utility_is_the_sum_over_all_sequences(null_rate: float) -> None:
    chance = np.array([[0.4, 0.35, 0.25], [0.2, 0.8, 0.0], [1.0, 0.0, 0.0]])
    population = Population(chance, np.zeros((3, 1), np.float32), null_rate)
    truth = population.true_utility((1, 2, 5))
    for row, utility in zip(chance.tolist(), truth.tolist(), strict=True):
        expected = [enumerate_votes(tuple(row), null_rate, n) for n in (1, 2, 5)]
        assert utility == pytest.approx(expected, abs=1e-12)


def test_two_parsed_samples_are_worth_one() -> None:
    population, _ = make_population(20, feature_signal=0.0)
    truth = population.true_utility((1, 2))
    assert truth[:, 1] == pytest.approx(truth[:, 0])


def test_answers_are_drawn_with_their_probabilities() -> None:
    population = Population(
        np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]]), np.zeros((2, 1), np.float32), 0.1
    )
    answers = population.sample(50_000, seed=3)
    drawn = answers.answer.reshape(2, -1)
    shares = [[(row == c).mean() for c in (0, 1, 2, -1)] for row in drawn]
    assert shares[0] == pytest.approx([0.45, 0.27, 0.18, 0.1], abs=0.01)
    assert shares[1] == pytest.approx([0.0, 0.0, 0.9, 0.1], abs=0.01)
    assert (answers.correct == (answers.answer == 0)).all()
    assert (population.sample(5, seed=1).answer == population.sample(5, seed=1).answer).all()
    assert (population.sample(5, seed=1).answer != population.sample(5, seed=2).answer).any()


def test_exact_estimator_is_unbiased() -> None:
    population, archetype = make_population(4000, feature_signal=0.0, unparsed_rate=0.1)
    levels = (1, 2, 4, 8)
    found = estimate(population.sample(12, seed=0), levels, standard_errors=False).utility
    off = found - population.true_utility(levels)
    for kind in range(4):
        rows = off[archetype == kind]
        assert (np.abs(rows.mean(axis=0)) < 4 * rows.std(axis=0) / np.sqrt(len(rows))).all()


def test_archetypes_respond_as_named() -> None:
    population, archetype = make_population(1000, feature_signal=1.0, seed=5)
    shares = [share for share, _ in ARCHETYPES.values()]
    assert (np.bincount(archetype) / 1000).tolist() == pytest.approx(shares)
    truth = population.true_utility((1, 4, 16))
    easy, responsive, diminishing, hopeless = (truth[archetype == kind][0] for kind in range(4))
    assert easy[0] > 0.9
    assert responsive[2] - responsive[0] > 0.3
    assert 0 < diminishing[2] - diminishing[0] < 0.15
    assert hopeless[2] < hopeless[0] < 0.1


@pytest.mark.parametrize(("telling", "low", "high"), [(0.0, 0.0, 0.1), (1.0, 0.99, 1.0)])
def test_hint_is_as_informative_as_asked(telling: float, low: float, high: float) -> None:
    population, archetype = make_population(2000, feature_signal=telling, seed=2)
    related = np.abs(np.corrcoef(population.features.T, archetype)[-1, :-1])
    assert low <= related[1] <= high + 1e-6
    assert max(related[0], related[2]) < 0.1
