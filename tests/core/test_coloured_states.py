"""Coloured states: their number, their keys and their transitions."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.coloured_measure import ColouredSamples, KnownMeasures, measure_samples
from adacompute.core.coloured_states import Colours, coloured_states, count_states
from adacompute.core.errors import DataError


@pytest.mark.parametrize(
    ("max_samples", "n_bins", "n_states"),
    [
        ((16,), (1,), 3370),
        ((8, 1, 1), (1, 1, 1), 4266),
        ((8, 1, 1, 1), (1, 1, 1, 1), 23_210),
        ((12,), (2,), 32_926),
        ((8,), (3,), 15_729),
    ],
)
def test_number_of_states(
    max_samples: tuple[int, ...], n_bins: tuple[int, ...], n_states: int
) -> None:
    found = coloured_states(Colours(max_samples, n_bins))
    assert len(found) == n_states
    assert len(np.unique(found.keys)) == n_states
    assert (found.find(found.keys) == np.arange(n_states)).all()
    assert found.n_by_arm.max(axis=0).tolist() == list(max_samples)
    assert found.n_layers == sum(max_samples) + 1


def test_removing_a_random_sample_leads_somewhere() -> None:
    found = coloured_states(Colours((3, 2), (2, 1)))
    for arm, edges in enumerate(found.transitions):
        total = np.zeros(len(found))
        np.add.at(total, edges.target, edges.weight)
        has_sample = found.n_by_arm[:, arm] > 0
        assert total[has_sample] == pytest.approx(1.0, abs=1e-12)
        assert not total[~has_sample].any()
        steps = found.n_by_arm[edges.target] - found.n_by_arm[edges.source]
        assert (steps[:, arm] == 1).all()
        assert (steps.sum(axis=1) == 1).all()
        assert (np.diff(edges.source) >= 0).all()


def test_too_many_states_are_counted_and_refused() -> None:
    many = Colours((16, 1, 1, 1), (1, 1, 1, 1))
    assert count_states(many, 1000) == 1001
    assert count_states(Colours((2,), (1,)), 1000) == 7
    with pytest.raises(DataError, match="60000"):
        coloured_states(many)
    with pytest.raises(DataError, match="fewer samples or arms"):
        coloured_states(Colours((400, 400), (2, 2)))


@pytest.mark.parametrize(
    ("max_samples", "n_bins"), [((), ()), ((2,), (1, 1)), ((0,), (1,)), ((2,), (0,))]
)
def test_wrong_colours_are_refused(max_samples: tuple[int, ...], n_bins: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="arm"):
        Colours(max_samples, n_bins)


def test_questions_with_too_few_samples_are_refused() -> None:
    one = np.zeros(2, dtype=np.int64)
    samples = ColouredSamples(np.array([0, 2]), one, one, one, np.ones(2), np.ones(2))
    with pytest.raises(DataError, match="fewer samples"):
        measure_samples(samples, Colours((3,), (1,)))


def test_classes_that_are_partly_correct_share_their_mass() -> None:
    answer = np.array([0, 0, 1, 1])
    accuracy = np.array([0.5, 0.5, 0.25, 0.25])
    none = np.zeros(4, dtype=np.int64)
    samples = ColouredSamples(np.array([0, 4]), none, none, answer, accuracy, np.ones(4))
    measured = measure_samples(samples, Colours((2,), (1,)))
    total = measured.sum(np.zeros(1, dtype=np.int64), 1)
    state, _ = measured.states.pairs
    one_vote = measured.states.layer(1)
    in_layer = (state >= one_vote.start) & (state < one_vote.stop)
    assert total.correct[in_layer, 0].sum() == pytest.approx((0.5 + 0.25) / 2)
    left_out = measured.sum(np.array([-1]), 1)
    assert not left_out.mass.any()
    mixed = total.mix(np.array([[0.25]]))
    assert mixed.mass == pytest.approx(total.mass / 4)


@pytest.mark.parametrize("max_bytes", [0, 2_000, 10_000_000])
def test_known_measures_change_nothing(max_bytes: int) -> None:
    rng = np.random.default_rng(0)
    size, colours = 6 * 40, Colours((3, 2), (2, 1))
    arm = np.tile(np.repeat([0, 1], 3), 40)
    samples = ColouredSamples(
        np.arange(0, size + 1, 6),
        arm,
        np.where(arm == 0, rng.integers(0, 2, size), 2),
        rng.integers(-1, 2, size),
        rng.integers(0, 2, size).astype(np.float64),
        np.where(arm == 0, 1.0, rng.integers(3, 5, size)),
    )
    group = np.arange(40) % 3
    expected = measure_samples(samples, colours).sum(group, 3)
    known = KnownMeasures(max_bytes)
    for _ in range(2):
        found = measure_samples(samples, colours, known).sum(group, 3)
        for left, right in zip(found, expected, strict=True):
            assert np.array_equal(left, right)
    other = measure_samples(samples, Colours((2, 2), (2, 1)), known)
    assert np.array_equal(
        other.sum(group, 3).mass,
        measure_samples(samples, Colours((2, 2), (2, 1))).sum(group, 3).mass,
    )
