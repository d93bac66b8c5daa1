from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacompute.features.draft import ENTROPY, NOT_RECORDED, SURPRISE, measure_uncertainty

NONE = np.full(2, np.nan)


def test_entropy_is_used_where_it_is_recorded_with_its_number_of_tokens() -> None:
    found = measure_uncertainty(np.array([0.25, 0.5]), np.array([5.0, 5.0]), np.array([-1.0, -2.0]))
    assert (found.source, found.top_logprobs, found.value.tolist()) == (ENTROPY, 5, [0.25, 0.5])


@pytest.mark.parametrize(
    ("entropy", "top_logprobs"),
    [([math.nan, 0.5], [math.nan, 5.0]), ([0.25, 0.5], [3.0, 5.0]), ([math.nan] * 2, [5.0] * 2)],
)
def test_surprise_stands_in_where_entropies_are_missing_or_not_comparable(
    entropy: list[float], top_logprobs: list[float]
) -> None:
    logprob = np.array([-math.log(2), -math.log(4)])
    found = measure_uncertainty(np.array(entropy), np.array(top_logprobs), logprob)
    assert (found.source, found.top_logprobs) == (SURPRISE, None)
    assert found.value == pytest.approx([0.5, 0.75])


def test_missing_log_probabilities_are_not_a_column_of_zeros() -> None:
    found = measure_uncertainty(NONE, NONE, NONE)
    assert (found.source, found.is_known) == (NOT_RECORDED, False)
    assert np.isnan(found.value).all()


@given(st.lists(st.floats(width=64), min_size=1))
def test_surprise_is_a_share(logprob: list[float]) -> None:
    none = np.full(len(logprob), np.nan)
    value = measure_uncertainty(none, none, np.array(logprob)).value
    known = value[~np.isnan(value)]
    assert ((known >= 0) & (known <= 1)).all()
