"""Dial: the price as the one schedule of a policy that has settings of its own.

A stopping rule has thresholds, a mixture has weights. Their settings are scored on training
questions, those on the upper concave hull of (cost, utility) are kept, and each is given the price
at which it is the best. Between two such prices questions are mixed: each goes to the dearer
setting with a probability, by a ticket that depends on the question alone, so that the same
question at the same price always gets the same setting.

It knows nothing of what a setting is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from adacompute.core.errors import BundleError
from adacompute.core.types import FloatArray, IntArray, UtilityTable
from adacompute.core.upgrades import envelope


@dataclass(frozen=True)
class PriceSchedule:
    """Prices of settings 0, 1, … in the order of rising cost; prices fall.

    >>> schedule = PriceSchedule((0.4, 0.1))
    >>> schedule.select(0.2, np.array([0.1, 0.9])).tolist()
    [1, 0]
    """

    prices: tuple[float, ...]

    def __post_init__(self) -> None:
        falling = all(a > b for a, b in zip(self.prices, self.prices[1:], strict=False))
        if not (self.prices and falling and self.prices[0] < math.inf and self.prices[-1] > 0):
            raise BundleError(
                f"the prices of a schedule must be finite, fall and stay above 0: {self.prices}"
            )

    def position(self, price: float) -> tuple[int, float]:
        """Setting at a price, and the share of questions that take the next one."""
        logs = -np.log(self.prices)
        at = float(np.interp(-np.log(max(price, 1e-300)), logs, np.arange(len(logs))))
        first = min(int(at), len(logs) - 1)
        return first, at - first

    def select(self, price: float, uniform: FloatArray) -> IntArray:
        """Setting of each question at a price; those with a low ticket take the dearer one."""
        first, share = self.position(price)
        return np.asarray(first + (uniform < share), dtype=np.int64)

    def price_at(self, position: float) -> float:
        """Price at which the schedule stands at a place between two settings."""
        return float(np.exp(np.interp(position, np.arange(len(self.prices)), np.log(self.prices))))


def fit_price_schedule(cost: FloatArray, utility: FloatArray) -> tuple[IntArray, PriceSchedule]:
    """Settings on the upper concave hull, by rising cost, and the schedule that turns through them.

    ``cost`` and ``utility`` (S,) are means over the training questions.

    >>> kept, schedule = fit_price_schedule(np.array([1, 2, 3]), np.array([0.5, 0.4, 0.7]))
    >>> kept.tolist()
    [0, 2]
    """
    start, upgrades = envelope(UtilityTable(utility[None, :], cost[None, :]))
    kept = np.concatenate([start, upgrades.level])
    return kept, PriceSchedule(_prices(upgrades.ratio))


def _prices(ratio: FloatArray) -> tuple[float, ...]:
    """Give each hull point a price between the ratios of the steps to it and on from it."""
    if len(ratio) == 0:
        return (1.0,)
    log = np.log(ratio)
    middle = (log[:-1] + log[1:]) / 2
    ends = [log[0] + np.log(2.0)], middle, [log[-1] - np.log(2.0)]
    prices = np.exp(np.concatenate(ends))
    # Steps of equal ratio would share a price; a schedule must still tell them apart.
    for i in range(1, len(prices)):
        prices[i] = min(prices[i], prices[i - 1] * (1 - 1e-9))
    return tuple(prices.tolist())
