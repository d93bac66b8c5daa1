"""Upgrades: the steps of each question's concave envelope, in the order in which they are bought.

The best allocation within a budget buys upgrades, from any question, in the order of gain per cost,
until the next one does not fit. Ties between questions are broken by the hash of their keys. This
module does not know estimation: it takes utilities as true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacompute.core.types import (
    FloatArray,
    IntArray,
    KeyArray,
    UtilityTable,
    hash_keys,
)

MIN_RATIO = float(np.nextafter(0.0, 1.0))
"""Smallest ratio of a gain to its cost. A price of 0 is reserved for "every upgrade fits"."""


@dataclass(frozen=True, eq=False)
class Upgrades:
    """All upgrades with a positive gain, of all questions, in no particular order.

    ``step`` numbers the upgrades of a question, ``ratio`` is ``gain / extra_cost``, and ``tie`` is
    the hash of the question's key.
    """

    question: IntArray
    level: IntArray
    ratio: FloatArray
    extra_cost: FloatArray
    gain: FloatArray
    step: IntArray
    tie: KeyArray

    def order(self) -> IntArray:
        """Return the upgrades in the order in which they are bought."""
        return np.lexsort((self.step, self.tie, -self.ratio))


def envelope(table: UtilityTable) -> tuple[IntArray, Upgrades]:
    """Return the cheapest level of each question, and all upgrades from it.

    Of levels with equal cost only the best counts. Gains are positive, and the ratios of a
    question's upgrades never increase. Levels on a straight line are separate upgrades.
    """
    rows = np.arange(len(table))
    order = np.lexsort((-table.utility, table.costs), axis=1)
    utility = np.take_along_axis(table.utility, order, axis=1)
    cost = np.take_along_axis(table.costs, order, axis=1)
    start = order[:, 0]
    current = np.zeros(len(table), dtype=np.int64)
    last_ratio = np.full(len(table), np.inf)
    found: list[tuple[IntArray, ...]] = []
    ratios, extra_costs, gains = [], [], []
    for step in range(table.n_levels - 1):
        here = np.arange(len(rows)), current
        gain = utility - utility[here][:, None]
        extra_cost = cost - cost[here][:, None]
        is_upgrade = (gain > 0) & (extra_cost > 0)
        ratio = np.divide(gain, extra_cost, out=np.full_like(gain, -np.inf), where=is_upgrade)
        np.maximum(ratio, MIN_RATIO, out=ratio, where=is_upgrade)
        best = ratio.argmax(axis=1)  # of equal ratios the nearest level
        there = np.arange(len(rows)), best
        goes_on = ratio[there] > 0
        if not goes_on.any():
            break
        # Rounding must not reverse the order of two upgrades of a question.
        last_ratio = np.minimum(ratio[there], last_ratio)[goes_on]
        steps = np.full(int(goes_on.sum()), step)
        found.append((rows[goes_on], order[there][goes_on], steps))
        ratios.append(last_ratio)
        extra_costs.append(extra_cost[there][goes_on])
        gains.append(gain[there][goes_on])
        rows, order, utility = rows[goes_on], order[goes_on], utility[goes_on]
        cost, current = cost[goes_on], best[goes_on]
    if not found:
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return start, Upgrades(none, none, empty, empty, empty, none, none.astype(np.uint64))
    question, level, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return start, Upgrades(
        question=question,
        level=level,
        ratio=np.concatenate(ratios),
        extra_cost=np.concatenate(extra_costs),
        gain=np.concatenate(gains),
        step=steps,
        tie=hash_keys(table.key)[question],
    )
