"""State sums: equal to sums of the measures of single questions, whatever the groups."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core import state_sums
from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.state_sums import NO_GROUP, StateSums
from adacompute.core.states import States, states, vote_keys
from adacompute.core.types import FloatArray
from test_support.states import measure_states


def questions(size: int = 60, *, seed: int = 0) -> Answers:
    rng = np.random.default_rng(seed)
    answer = rng.integers(UNPARSED, 3, (size, 12))
    answer[size // 2 :] = answer[: size - size // 2]  # half of them are copies
    return Answers.of(answer.tolist(), (answer == rng.integers(0, 3, (size, 1))).tolist())


@pytest.mark.parametrize("max_cached", [0, 10_000])
def test_sums_equal_the_sums_of_single_questions(
    max_cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_sums, "MAX_CACHED", max_cached)
    monkeypatch.setattr(state_sums, "BLOCK_SIZE", 7)
    answers = questions()
    sums = StateSums(answers, 10)
    group, part = np.arange(60) % 3, np.where(np.arange(60) < 20, 0, NO_GROUP)
    expected = measure_states(answers, 10)
    for measure, of in zip(sums.sum([group, part], [3, 1]), (group, part), strict=True):
        for g in range(measure.mass.shape[1]):
            rows = of == g
            for found, whole in (
                (measure.mass, expected.mass),
                (measure.correct_mass, expected.correct_mass),
            ):
                total = whole[:, rows].sum(axis=1)
                assert np.abs(found[:, g] - total[sums.reached]).max() < 1e-12
                assert total.sum() == pytest.approx(total[sums.reached].sum())


def test_the_states_before_a_reached_state_are_reached() -> None:
    sums = StateSums(questions(), 10)
    table, reached = states(), set(sums.reached.tolist())
    assert len(reached) < int(table.first[11])
    for state in reached:
        before = table.predecessor[state][table.predecessor_probability[state] > 0]
        assert set(before.tolist()) <= reached


def test_a_table_of_reached_states_is_expanded_with_zeros() -> None:
    sums = StateSums(questions(), 10)
    expanded = sums.expand(np.arange(1.0, 2 * len(sums.reached) + 1).reshape(-1, 2))
    assert len(expanded) == int(states().first[11])
    assert np.flatnonzero(expanded.any(axis=1)).tolist() == sums.reached.tolist()
    assert expanded[sums.reached].ravel().tolist() == list(range(1, 2 * len(sums.reached) + 1))


def test_restricted_states_keep_their_votes_and_neighbours() -> None:
    sums, every = StateSums(questions(), 10), states()
    table, rows = sums.table, sums.reached
    assert table.votes == tuple(every.votes[i] for i in rows.tolist())
    keys = vote_keys(sums.answers.answer.reshape(-1, 12)[:, :10])
    assert (rows[table.find(keys)] == every.find(keys)).all()
    for n in range(11):
        assert (table.n_samples[table.layer(n)] == n).all()
    for name, chance in (
        ("successor", "backward_probability"),
        ("predecessor", "predecessor_probability"),
    ):
        full, kept = (dense(t, name, chance) for t in (every, table))
        assert (full[np.ix_(rows, rows)] == kept).all()


def dense(table: States, name: str, chance: str) -> FloatArray:
    """Return the probability from each state to each other one."""
    matrix = np.zeros((len(table), len(table)))
    source = np.arange(len(table))[:, None]
    np.add.at(matrix, (source, getattr(table, name)), getattr(table, chance))
    return matrix
