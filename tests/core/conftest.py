"""Random tables, random samples and exact arithmetic, for all tests of the core.

``st.from_type(UtilityTable)`` returns small tables with many ties: equal costs, equal gains,
levels on a straight line, curves that fall, utilities that differ by rounding alone.
``st.from_type(Answers)`` returns a few samples of a few questions, some unparsed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adacompute.core.answers import UNPARSED, Answers
from adacompute.core.types import UtilityTable

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

MAX_QUESTIONS, MAX_LEVELS, MAX_SAMPLES = 5, 4, 6


def _fractions(denominator: int) -> st.SearchStrategy[float]:
    return st.integers(0, denominator).map(lambda n: n / denominator)


UTILITIES = st.sampled_from(
    [
        _fractions(1),
        _fractions(3),
        _fractions(4),
        _fractions(48),
        st.floats(0, 1),
        st.integers(-3, 3).map(lambda n: 0.5 + n * 2.0**-53),
        st.floats(-1, 1).map(lambda x: 1e6 + x),
    ]
)
COSTS = st.sampled_from(
    [
        st.integers(0, 3).map(float),
        st.integers(0, 20).map(float),
        st.integers(0, 40).map(lambda n: n / 8),
        st.floats(0, 10),
        st.integers(0, 2**32).map(float),
    ]
)


def _array(shape: tuple[int, ...], of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return arrays(np.float64, shape, elements=of)


@st.composite
def _tables(draw: st.DrawFn) -> UtilityTable:
    questions = draw(st.integers(1, MAX_QUESTIONS))
    levels = draw(st.integers(1, MAX_LEVELS))
    shape = (questions, levels)
    utility = draw(_array(shape, draw(UTILITIES)))
    cost = draw(_array(draw(st.sampled_from([shape, shape[1:]])), draw(COSTS)))
    keys = draw(
        st.lists(st.integers(0, 2**64 - 1), min_size=questions, max_size=questions, unique=True)
    )
    return UtilityTable(utility, cost, np.array(keys, dtype=np.uint64))


@st.composite
def _samples(draw: st.DrawFn) -> Answers:
    sizes = draw(st.lists(st.integers(1, MAX_SAMPLES), min_size=1, max_size=3))
    total = sum(sizes)
    answer = draw(arrays(np.int64, total, elements=st.integers(UNPARSED, 2)))
    right = draw(arrays(np.bool_, total)) & (answer != UNPARSED)
    score = draw(_array((total,), st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0])))
    return Answers(np.concatenate([[0], np.cumsum(sizes)]), answer, right, score)


st.register_type_strategy(UtilityTable, _tables())
st.register_type_strategy(Answers, _samples())


def _exactly(values: npt.NDArray[np.float64]) -> list[list[Fraction]]:
    return [[Fraction(float(value)) for value in row] for row in values]


def _total(values: npt.NDArray[np.float64]) -> Fraction:
    return sum(map(Fraction, values.tolist()), Fraction())


def _mean_up(total: Fraction, size: int) -> float:
    """Round a mean up to a float, so that as a budget it covers the whole total."""
    mean = float(total / size)
    return mean if Fraction(mean) * size >= total else math.nextafter(mean, math.inf)


@pytest.fixture(scope="session")
def budget_at() -> Callable[[UtilityTable, float], float]:
    """Return a budget between the cheapest levels (share 0) and all upgrades (share 1)."""

    def at(table: UtilityTable, share: float) -> float:
        lowest, highest = (
            _total(costs) for costs in (table.costs.min(axis=1), table.costs.max(axis=1))
        )
        return _mean_up(lowest + Fraction(share) * (highest - lowest), len(table))

    return at


@pytest.fixture(scope="session")
def spent() -> Callable[[UtilityTable, npt.NDArray[np.int64]], Fraction]:
    """Return the exact mean cost of a choice."""

    def of(table: UtilityTable, choice: npt.NDArray[np.int64]) -> Fraction:
        return _total(table.costs[np.arange(len(table)), choice]) / len(table)

    return of


@pytest.fixture(scope="session")
def best_value() -> Callable[[UtilityTable, float], Fraction]:
    """Return the exact optimum of the linear program: the minimum of its dual over its corners."""

    def of(table: UtilityTable, budget: float) -> Fraction:
        points = [
            list(zip(c, u, strict=True))
            for c, u in zip(_exactly(table.costs), _exactly(table.utility), strict=True)
        ]
        prices = {Fraction()}
        for row in points:
            for i, (c, u) in enumerate(row):
                prices |= {(v - u) / (d - c) for d, v in row[i + 1 :] if d != c}
        return min(
            sum((max(u - price * c for c, u in row) for row in points), Fraction()) / len(table)
            + price * Fraction(budget)
            for price in prices
            if price >= 0
        )

    return of
