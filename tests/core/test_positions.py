"""Positions: states and weighted votes at every position, compared with direct counting."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from adacompute.core.answers import UNPARSED
from adacompute.core.coloured_states import Colours, coloured_states
from adacompute.core.positions import Grid, OrderedSamples, class_salt, tabulate_votes

COLOURS = Colours((3, 2), (2, 1))


def test_positions_are_numbered_by_their_strides() -> None:
    grid = Grid((3, 2))
    assert len(grid) == 12
    for position, counts in enumerate(grid.counts):
        assert position == int(counts @ grid.stride)


def random_samples(n_rows: int, *, weighted: bool) -> OrderedSamples:
    rng = np.random.default_rng(3)
    answer = [rng.integers(UNPARSED, 3, (n_rows, cap)) for cap in COLOURS.max_samples]
    colour = [rng.integers(0, 2, (n_rows, 3)), np.full((n_rows, 2), 2)]
    weight = [
        rng.uniform(0.1, 1.0, one.shape) if weighted else np.ones(one.shape) for one in answer
    ]
    right = rng.integers(0, 3, n_rows)[:, None]
    return OrderedSamples(answer, colour, weight, [(one == right) * 1.0 for one in answer])


@pytest.mark.parametrize("weighted", [True, False])
def test_votes_and_states_equal_direct_counting(weighted: bool) -> None:  # noqa: FBT001
    samples = random_samples(60, weighted=weighted)
    found, table = tabulate_votes(samples, COLOURS), coloured_states(COLOURS)
    for position, counts in enumerate(Grid(COLOURS.max_samples).counts.tolist()):
        for row in range(60):
            total: defaultdict[int, float] = defaultdict(float)
            accuracy: dict[int, float] = {}
            votes: defaultdict[int, Counter[int]] = defaultdict(Counter)
            unparsed = [0, 0]
            for arm, n in enumerate(counts):
                for i in range(n):
                    label = int(samples.answer[arm][row, i])
                    if label == UNPARSED:
                        unparsed[arm] += 1
                        continue
                    total[label] += samples.weight[arm][row, i]
                    accuracy[label] = samples.accuracy[arm][row, i]
                    votes[label][int(samples.colour[arm][row, i])] += 1
            top = [one for one, sum_ in total.items() if sum_ >= max(total.values()) - 1e-12]
            expected = sum(accuracy[one] for one in top) / len(top) if top else 0.0
            assert found.correct[row, position] == pytest.approx(expected)
            state = int(found.state[row, position])
            vectors = sorted(tuple(one[c] for c in range(3)) for one in votes.values())
            own = [
                tuple(table.types[kind].tolist())
                for kind in np.flatnonzero(table.classes[state])
                for _ in range(table.classes[state, kind])
            ]
            assert sorted(own) == vectors
            assert table.unparsed[state].tolist() == unparsed


def test_class_without_votes_adds_nothing_to_a_key() -> None:
    salt, radix = class_salt(COLOURS)
    assert salt[0] == 0
    assert len(set(radix.tolist())) == COLOURS.n_colours
