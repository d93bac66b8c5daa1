"""Rules run on given samples, and random sequences of answers, for all tests of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.types import IntArray, make_levels
from adacompute.policies.episode import Episode, run_episode, start_state
from adacompute.policies.policy import ObservedSamples, SampleMatrix
from adacompute.policies.price_schedule import PriceSchedule
from adacompute.policies.rule_policy import Rule, RulePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 18


@pytest.fixture(scope="session")
def play_rule() -> Callable[[Rule, IntArray], IntArray]:
    """Return how many samples a rule takes of each row."""

    def run(rule: Rule, answer: IntArray) -> IntArray:
        levels = make_levels(tuple(range(1, answer.shape[1] + 1)))
        start = Episode.start(
            RulePolicy("rule", levels, (rule,), PriceSchedule((1.0,))),
            1.0,
            start_state(
                key=np.arange(len(answer), dtype=np.uint64),
                features=np.empty((len(answer), 0), dtype=np.float32),
                cost=np.ones((len(answer), len(levels))),
                samples=SampleMatrix(answer),
            ),
        )
        return run_episode(start.decide()).state.observed.n_samples

    return run


@pytest.fixture(scope="session")
def sequences() -> IntArray:
    """Return sequences of answers from all equal to all different, some unparsed."""
    rng = np.random.default_rng(0)
    agree = rng.random((600, 1))
    answer = np.where(rng.random((600, LONGEST)) < agree, 0, rng.integers(1, 4, (600, LONGEST)))
    unparsed = rng.random((600, LONGEST)) < rng.choice([0.0, 0.3, 0.9], (600, 1))
    return np.where(unparsed, -1, answer)


def _views(answer: IntArray, row: list[int], size: list[int]) -> ObservedSamples:
    return ObservedSamples(
        SampleMatrix(answer), np.array(row, dtype=np.int64), np.array(size, dtype=np.int64)
    )


@st.composite
def _draws(draw: st.DrawFn) -> ObservedSamples:
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 8)))
    answer = draw(arrays(np.int64, shape, elements=st.integers(-1, 2)))
    views = st.lists(
        st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1])), min_size=1, max_size=6
    )
    row, size = zip(*draw(views), strict=True)
    return _views(answer, list(row), list(size))


st.register_type_strategy(ObservedSamples, _draws())
