"""Holm's correction: p values of many comparisons, adjusted so that all of them hold together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

TWO_SIDED = NormalDist().inv_cdf(0.975)
"""Standard errors from the middle of an interval at 95 % to its ends."""


def p_value_of_loss(value: float, low: float, high: float) -> float:
    """Return the one-sided p value of a difference below 0, from its interval at 95 %.

    >>> round(p_value_of_loss(-0.01, -0.02, 0.0), 3)
    0.025
    """
    error = (high - low) / 2 / TWO_SIDED
    if error <= 0:
        return 0.0 if value < 0 else 1.0
    return NormalDist().cdf(value / error)


def adjust(p_values: Sequence[float]) -> list[float]:
    """Return the p values adjusted by Holm's method, in the given order.

    If every adjusted p value below 0.05 is called significant, the probability of any wrong call is
    at most 0.05, however the comparisons depend on each other.

    >>> adjust([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
