"""Names and values of signals that a caller gives."""

from __future__ import annotations

import numpy as np
import pytest

from adacompute.core.signals import MAX_VALUE, is_given, is_value


@pytest.mark.parametrize("name", ["score", "signal_x", "signal_Tests_2", "signal_" + "x" * 40])
def test_scores_and_short_plain_names_are_given(name: str) -> None:
    assert is_given(name)


LONG = "signal_" + "x" * 41
PLAIN = ("mean_logprob", "Score", "signal_", "signal_a b", "signal_é", "signal_x\n", "xsignal_x")


@pytest.mark.parametrize("name", [*PLAIN, LONG, None, 3, ["score"]])
def test_other_names_are_not(name: object) -> None:
    assert not is_given(name)


def test_values_are_numbers_of_a_usual_size_or_unknown() -> None:
    usual = (1, -2.5, True, np.float32(0.5), np.int64(3), np.nan, MAX_VALUE, -MAX_VALUE)
    assert all(map(is_value, usual))
    odd = ("1", None, np.inf, -np.inf, 10**400, -2 * MAX_VALUE, 1j, [1.0])
    assert not any(map(is_value, odd))
