"""Arm mixture: a number of samples of one arm, chosen by the price, whatever the question is.

The price selects two neighbouring levels of the efficient ones, and a question's key decides
between them. It is the baseline that every policy over arms must beat, and often the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adacompute.core.types import Level
from adacompute.policies.policy import State, decide_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adacompute.core.types import Float32Array, IntArray
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.price_schedule import PriceSchedule


@dataclass(frozen=True, eq=False)
class ArmMixture:
    """Choose among efficient levels by price.

    ``choices`` are pairs of an arm and a number of samples, by rising cost. Votes are weighted by
    their ``confidence``.
    """

    name = "mixture"
    arms: tuple[str, ...]
    choices: tuple[tuple[int, int], ...]
    schedule: PriceSchedule
    confidence: Confidence
    sample_cost: tuple[float, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The efficient levels."""
        if len(self.arms) == 1:
            return tuple(Level(str(n), n) for _, n in self.choices)
        return tuple(Level(f"{self.arms[a]} × {n}", n, self.arms[a]) for a, n in self.choices)

    def prepare_features(self, features: Float32Array) -> Float32Array:
        """Keep nothing: the question does not matter."""
        return np.empty((len(features), 0), dtype=np.float32)

    def next_level(
        self,
        arm: Sequence[int],
        answer: Sequence[int],
        bins: Sequence[int],
        *,
        price: float,
        key: int,
        cell: int,
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        del answer, bins, cell
        level = self.schedule.select_one(price, key)
        n_samples = self.choices[level][1]
        return (level, n_samples) if len(arm) < n_samples else None

    def decide(self, state: State, price: float) -> IntArray:
        """Return the next level of each question; the current level means stop."""
        return decide_rows(self.next_level, state, price)

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        return self.choices[level][0]
