from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adacompute.core.types import IntArray
from adacompute.policies.policy import (
    NO_LEVEL,
    ObservedSamples,
    SampleMatrix,
    State,
    mixing_uniform,
)

views = st.from_type(ObservedSamples)


def count(answers: list[int]) -> tuple[int, int, int, int]:
    """Count in plain Python."""
    votes = sorted(Counter(a for a in answers if a >= 0).values(), reverse=True)
    streak = 0
    for answer in reversed(answers):
        if answer < 0 or answer != answers[-1]:
            break
        streak += 1
    return (
        votes[0] if votes else 0,
        votes[1] if len(votes) > 1 else 0,
        sum(votes),
        streak,
    )


def counted(observed: ObservedSamples) -> list[tuple[int, ...]]:
    columns = observed.leading, observed.runner_up, observed.n_parsed, observed.streak
    return [tuple(row) for row in np.stack(columns, axis=1).tolist()]


@given(views)
def test_a_view_counts_its_samples(observed: ObservedSamples) -> None:
    answer = observed.samples.answer.tolist()
    seen = zip(observed.row.tolist(), observed.n_samples.tolist(), strict=True)
    assert counted(observed) == [count(answer[row][:size]) for row, size in seen]


@given(views, st.integers(-1, 2))
def test_a_view_ignores_later_samples(observed: ObservedSamples, later: int) -> None:
    for i, (row, size) in enumerate(zip(observed.row, observed.n_samples, strict=True)):
        answer = observed.samples.answer.copy()
        answer[row, size:] = later
        changed = ObservedSamples(SampleMatrix(answer), observed.row, observed.n_samples)
        assert counted(changed)[i] == counted(observed)[i]


def test_without_samples_all_counts_are_zero() -> None:
    empty = ObservedSamples(
        SampleMatrix(np.empty((2, 0), dtype=np.int64)), np.arange(2), np.zeros(2, np.int64)
    )
    assert counted(empty) == [(0, 0, 0, 0), (0, 0, 0, 0)]


def test_state_take_keeps_all_fields() -> None:
    record = SampleMatrix(np.array([[0, 0], [0, 1], [-1, 1]]))
    state = State(
        key=np.array([5, 6, 7], dtype=np.uint64),
        features=np.arange(6, dtype=np.float32).reshape(3, 2),
        cost=np.arange(3.0)[:, None],
        observed=ObservedSamples(record, np.arange(3), np.array([2, 2, 1])),
        level=np.array([1, 1, NO_LEVEL]),
        rounds_left=np.array([3, 2, 1]),
    )
    taken = state.take(np.array([2, 0]))
    assert len(state) == 3
    assert len(taken) == 2
    assert taken.key.tolist() == [7, 5]
    assert taken.features.tolist() == [[4, 5], [0, 1]]
    assert taken.cost.tolist() == [[2], [0]]
    assert taken.observed.row.tolist() == [2, 0]
    assert counted(taken.observed) == [(0, 0, 0, 0), (2, 0, 2, 2)]
    assert taken.level.tolist() == [NO_LEVEL, 1]
    assert taken.rounds_left.tolist() == [1, 3]


def test_mixing_uniform_is_uniform_and_depends_only_on_the_key() -> None:
    keys = np.arange(100_000, dtype=np.uint64)
    drawn = mixing_uniform(keys)
    shares: IntArray = np.histogram(drawn, bins=20, range=(0.0, 1.0))[0]
    assert shares.sum() == len(keys)
    assert np.abs(shares / len(keys) - 0.05).max() < 0.003
    assert (mixing_uniform(keys[::-1].copy())[::-1] == drawn).all()
    assert mixing_uniform(keys[7:8])[0] == drawn[7]
