"""Price schedule: maps a price to one of several settings of a policy.

A stopping rule has thresholds, a mixture has weights. Their settings are scored on training
questions, those on the upper concave hull of (cost, utility) are kept, and each gets the price at
which it is the best. At a price between two settings, questions are mixed: each takes the more
expensive setting with a probability. The pseudo-random number for that depends only on the
question, so the same question at the same price always gets the same setting.

This module does not know what a setting is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from adacompute.core.allocation.upgrades import envelope
from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from adacompute.policies.policy import mixing_uniform_of

MIN_PRICE_GAP = 1e-9
"""Relative difference between the prices of two settings."""


@dataclass(frozen=True)
class PriceSchedule:
    """Decreasing prices of settings 0, 1, …, whose costs increase.

    >>> schedule = PriceSchedule((0.4, 0.1))
    >>> schedule.select(0.2, np.array([0.1, 0.9])).tolist()
    [1, 0]
    """

    prices: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in zip(self.prices, self.prices[1:], strict=False))
        if not (self.prices and falling and self.prices[0] < math.inf and self.prices[-1] > 0):
            raise BundleError(
                f"prices of a schedule must be finite, decreasing and above 0, got {self.prices}"
            )

    def position(self, price: float) -> tuple[int, float]:
        """Return the setting at a price, and the share of questions that take the next one."""
        return _position(self.prices, price)

    def select(self, price: float, uniform: FloatArray) -> IntArray:
        """Return each question's setting; low numbers get the more expensive of two settings."""
        first, share = self.position(price)
        return np.asarray(first + (uniform < share), dtype=np.int64)

    def select_one(self, price: float, key: int) -> int:
        """Return the setting of one question, as ``select`` does for many."""
        first, share = self.position(price)
        return first + (share > 0 and mixing_uniform_of(key) < share)

    def price_at(self, position: float) -> float:
        """Return the price at a position between two settings: the inverse of ``position``."""
        return float(np.exp(np.interp(position, np.arange(len(self.prices)), np.log(self.prices))))


@lru_cache(maxsize=1024)  # a gateway asks for the same prices again and again
def _position(prices: tuple[float, ...], price: float) -> tuple[int, float]:
    logs = -np.log(prices)
    at = float(np.interp(-np.log(max(price, 1e-300)), logs, np.arange(len(logs))))
    first = min(int(at), len(logs) - 1)
    return first, at - first


def fit_price_schedule(cost: FloatArray, utility: FloatArray) -> tuple[IntArray, PriceSchedule]:
    """Return the settings on the upper concave hull, by increasing cost, and their schedule.

    ``cost`` and ``utility`` (S,) are means over the training questions.

    >>> kept, schedule = fit_price_schedule(np.array([1, 2, 3]), np.array([0.5, 0.4, 0.7]))
    >>> kept.tolist()
    [0, 2]
    """
    start, upgrades = envelope(UtilityTable(utility[None, :], cost[None, :]))
    kept = np.concatenate([start, upgrades.level])
    return kept, PriceSchedule(_prices(upgrades.ratio))


def _prices(ratio: FloatArray) -> tuple[float, ...]:
    """Return a price for each hull point, between the ratios of the upgrades to and from it."""
    if len(ratio) == 0:
        return (1.0,)
    log = np.log(ratio)
    middle = (log[:-1] + log[1:]) / 2
    ends = [log[0] + np.log(2.0)], middle, [log[-1] - np.log(2.0)]
    prices = np.exp(np.concatenate(ends))
    # Upgrades of equal ratio would share a price; prices must decrease.
    for i in range(1, len(prices)):
        prices[i] = min(prices[i], prices[i - 1] * (1 - MIN_PRICE_GAP))
    return tuple(prices.tolist())
