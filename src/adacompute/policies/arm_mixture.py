"""Arm mixture: a number of samples of one arm, chosen by the price, whatever the question is.

The price selects two neighbouring levels of the efficient ones, and a question's key decides
between them. It is the baseline that every policy over arms must beat, and often the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adacompute.core.types import Level
from adacompute.policies.policy import Policy, PreparedKind, SeenSamples, mixing_uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from adacompute.core.types import IntArray, KeyArray
    from adacompute.policies.confidence import Confidence
    from adacompute.policies.price_schedule import PriceSchedule


def name_level(arms: Sequence[str], arm: int, n_samples: int) -> Level:
    """Return a number of samples of an arm as a level."""
    if len(arms) == 1:
        return Level(str(n_samples), n_samples)
    return Level(f"{arms[arm]} × {n_samples}", n_samples, arms[arm])


@dataclass(frozen=True, eq=False)
class ArmMixture(Policy):
    """Choose among efficient levels by price.

    ``choices`` are pairs of an arm and a number of samples, by rising cost. Votes are weighted by
    their ``confidence``.
    """

    name = "mixture"
    prepared = PreparedKind.NOTHING
    needs_choice = False
    arms: tuple[str, ...] = field()
    choices: tuple[tuple[int, int], ...] = field()
    schedule: PriceSchedule = field()
    confidence: Confidence = field()
    sample_cost: tuple[float, ...] = field()

    @property
    def levels(self) -> tuple[Level, ...]:  # type: ignore[override]  # from the choices
        """The efficient levels."""
        return tuple(name_level(self.arms, arm, n) for arm, n in self.choices)

    def next_level(
        self, seen: SeenSamples, *, price: float, key: int, **_: int
    ) -> tuple[int, int] | None:
        """Return the level to reach next and the samples it needs in total; None means stop."""
        level = self.schedule.select_one(price, key)
        n_samples = self.choices[level][1]
        return (level, n_samples) if len(seen.arm) < n_samples else None

    def arm_of_level(self, level: int) -> int:
        """Return the arm that a level samples."""
        return self.choices[level][0]

    def first_levels(self, price: float, prepared: npt.NDArray[Any], keys: KeyArray) -> IntArray:
        """Return the first level of each question, which is its only one."""
        del prepared
        return self.schedule.select(price, mixing_uniform(keys))

    def list_uniform(self) -> list[tuple[int, str | None]]:
        """Return the number of samples and the arm of each setting."""
        return [(level.n_samples, level.model) for level in self.levels]
