"""Arm samples: orders of the samples of several arms, and positions in them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.answers import Answers
from adacompute.policies.sequential.arm_samples import (
    N_SINGLE,
    ArmSamples,
    Grid,
    OrderedSamples,
    list_counts,
)

caps = st.lists(st.sampled_from([1, 2, 4, 17, 20]), min_size=1, max_size=3).map(tuple)


def make_samples(n_questions: int = 5, n_samples: int = 4, n_arms: int = 3) -> ArmSamples:
    """Samples that are numbered by question, arm and place: their cost is that number."""
    size = n_questions * n_arms * n_samples
    arm = np.tile(np.repeat(np.arange(n_arms), n_samples), n_questions)
    answer = np.arange(size) % 3
    offsets = np.arange(n_questions + 1) * n_arms * n_samples
    return ArmSamples(
        answers=Answers(offsets, answer, answer == 0),
        key=np.arange(n_questions, dtype=np.uint64),
        arm=arm,
        n_arms=n_arms,
        cost=np.arange(size, dtype=np.float64),
        signals=("mean_logprob", "log_length"),
        values=np.stack([arm, np.arange(size)], axis=1).astype(np.float64),
        latency_s=np.arange(size) / 10,
    )


@given(caps)
def test_positions_are_all_numbers_of_samples(max_samples: tuple[int, ...]) -> None:
    grid = Grid(max_samples)
    counts = grid.counts.tolist()
    assert len(counts) == len(grid) == len({tuple(one) for one in counts})
    assert [grid.find(one) for one in counts] == list(range(len(grid)))
    assert grid.counts.max(axis=0).tolist() == list(max_samples)
    for position, one in enumerate(counts):
        for arm, stride in enumerate(grid.stride.tolist()):
            if one[arm] < max_samples[arm]:
                later = next(n for n in list_counts(max_samples[arm]) if n > one[arm])
                more = [later if a == arm else n for a, n in enumerate(one)]
                assert counts[position + stride] == more
                assert later == one[arm] + 1 or one[arm] >= N_SINGLE


@given(caps, st.integers(0, 2**32 - 1))
def test_what_is_seen_at_a_position_are_the_first_samples_of_each_arm(
    max_samples: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    size = sum(max_samples)
    place = np.concatenate([np.arange(cap) for cap in max_samples])
    arm = np.repeat(np.arange(len(max_samples)), max_samples)
    orders = OrderedSamples(
        label=rng.integers(-1, 2, (6, size)),
        accuracy=np.ones((6, 2)),
        log_odds=rng.normal(size=(6, size)),
        weight=np.ones((6, size)),
        cost=np.ones((6, size)),
        max_samples=max_samples,
    )
    for counts in Grid(max_samples).counts.tolist():
        seen = np.flatnonzero(place < np.array(counts)[arm])
        assert orders.columns(counts).tolist() == seen.tolist()
        rows = np.array([4, 1])
        some, taken = orders.describe(counts, rows), orders.take(rows).describe(counts)
        assert (some.vector == taken.vector).all()
        assert (some.vector == orders.describe(counts).vector[rows]).all()


def test_orders_hold_different_samples_of_the_question_and_the_arm() -> None:
    samples, max_samples = make_samples(), (4, 1, 3)
    for arm, index in enumerate(samples.order(max_samples, 6, seed=1)):
        assert index.shape == (5 * 6, max_samples[arm])
        assert (samples.arm[index] == arm).all()
        question = np.repeat(np.arange(5), 6)[:, None]
        assert (samples.answers.question[index] == question).all()
        assert all(len(set(row)) == len(row) for row in index.tolist())
    (whole, *_) = samples.order((4, 4, 4), 4, seed=1)
    (other, *_) = samples.order((4, 4, 4), 4, seed=2)
    assert len(np.unique(whole.reshape(5, 4, 4)[:, :, 0], axis=1).T) > 1
    assert (whole != other).any()


def test_selected_arms_are_numbered_in_their_order() -> None:
    samples = make_samples()
    some = samples.select((2, 0))
    assert some.n_arms == 2
    assert some.answers.n_samples.tolist() == [8] * 5
    # The first signal is the old number of the arm.
    assert (some.values[:, 0] == np.array([2, 0])[some.arm]).all()
    kept = some.cost.astype(np.int64)
    assert (samples.arm[kept] != 1).all()
    assert (some.answers.answer == samples.answers.answer[kept]).all()
    assert (some.answers.question == samples.answers.question[kept]).all()
    assert some.latency_s is not None
    assert (some.latency_s == kept / 10).all()


def test_signals_are_found_by_name_and_samples_by_question() -> None:
    samples = make_samples()
    assert (samples.column(("log_length",))[:, 0] == samples.cost).all()
    assert samples.column(()).shape == (len(samples.cost), 0)
    mask = samples.in_rows(np.array([3, 1]))
    assert np.unique(samples.answers.question[mask]).tolist() == [1, 3]
    assert int(mask.sum()) == 2 * 12
